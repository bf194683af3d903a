"""What is remembered of the policy files for operators: kept from the first moment, shown when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_MAX_FAULTS = 100


class Standing(Protocol):
    """What is read of the policy in force."""

    @property
    def valid(self) -> bool: ...
    @property
    def epoch(self) -> int: ...


class PolicyNews:
    """Remembers when the policy came into force and what was wrong with the files refused since.

    ``refused`` takes the reports of the one who reads the files, ``replaced`` its news of another policy.
    ``loaded_at`` is in Unix seconds; ``faults`` are of the last files refused, be they mended since or not.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.loaded_at = clock()
        self.faults: tuple[str, ...] = ()

    def refused(self, text: str) -> None:
        """Files were not valid; one line for each fault, which quote no value."""
        self.faults = tuple(text.splitlines()[:_MAX_FAULTS])

    def replaced(self, policy: object) -> None:
        """Another policy is in force."""
        self.loaded_at = self._clock()
