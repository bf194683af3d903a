"""What the admin plane is given to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from secrets import SystemRandom
from types import MappingProxyType
from typing import Any

from gateway.admin.fleetshow import FleetHandle
from gateway.admin.rules import PolicyView
from gateway.admin.writes import WriteLimit
from gateway.policy.access import Access
from gateway.secret import Secret
from gateway.steps.authenticate import Callers, Failures
from gateway.stores.interfaces import StateStore, StoreUnavailable


@dataclass(frozen=True, slots=True)
class AdminState:
    """Handed in by the composition root.

    ``changed`` is awaited after each write, so that this instance serves by what was written before the write is
    answered. ``ready`` is readiness, ``served_models`` what ready replicas serve now, ``render_metrics`` the
    exposition text. ``pepper`` is the newest one, of ``pepper_version``. ``callers`` know credentials, ``failures``
    counts those that are no good, ``access`` gives the access policy in force and ``policy`` how that stands with its
    files. ``compare`` gives what this instance has counted of the tracks of an alias's current revision, by track, in
    the fields of ``TrackView``; a track that has served nothing may be missing. ``fleet`` is what this instance knows
    of engines.
    """

    store: StateStore
    pepper: Secret
    admin_token: Secret
    changed: Callable[[], Awaitable[None]]
    render_metrics: Callable[[], bytes]
    ready: Callable[[], bool]
    served_models: Callable[[], Sequence[str]]
    callers: Callers
    failures: Failures
    access: Callable[[], Access]
    policy: Callable[[], PolicyView]
    compare: Callable[[str], Mapping[str, Mapping[str, Any]]] = lambda _: MappingProxyType({})
    fleet: FleetHandle = field(default_factory=FleetHandle)
    pepper_version: int = 1
    writes: WriteLimit = field(default_factory=WriteLimit)
    clock: Callable[[], float] = time.time
    random: Random = field(default_factory=SystemRandom)

    async def announce(self) -> None:
        """Call ``changed``. A store that fails just after it committed does not undo the write: the poll finds it."""
        with suppress(StoreUnavailable):
            await self.changed()
