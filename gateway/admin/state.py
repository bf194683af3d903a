"""What the admin plane is given to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from secrets import SystemRandom

from gateway.secret import Secret
from gateway.stores.interfaces import StateStore, StoreUnavailable

AUTHOR = "admin-token"
"""Who the audit trail names: the admin token is one for all, so no more is known about who holds it."""


@dataclass(frozen=True, slots=True)
class AdminState:
    """Handed in by the composition root.

    ``changed`` is awaited after each write, so that this instance serves by what was written before the write is
    answered. ``ready`` is readiness, ``served_models`` what ready replicas serve now, ``render_metrics`` the
    exposition text.
    """

    store: StateStore
    pepper: Secret
    admin_token: Secret
    changed: Callable[[], Awaitable[None]]
    render_metrics: Callable[[], bytes]
    ready: Callable[[], bool]
    served_models: Callable[[], Sequence[str]]
    clock: Callable[[], float] = time.time
    random: Random = field(default_factory=SystemRandom)

    async def announce(self) -> None:
        """Call ``changed``. A store that fails just after it committed does not undo the write: the poll finds it."""
        with suppress(StoreUnavailable):
            await self.changed()
