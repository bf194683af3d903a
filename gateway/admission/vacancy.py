"""How many places the replicas of a model have, and for which classes one is left. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.admission.mix import held
from gateway.model import Priority
from gateway.policy.admission import PerClass

Above = Callable[[Priority], float]
"""How many requests the classes above one have on average."""
_DUST = 1e-9  # what binary fractions may lack: 0.9 of 20 places are 18


class Replica(Protocol):
    """What counts of a ready replica."""

    @property
    def in_flight(self) -> int:
        """Requests of this instance that it is serving."""
        ...

    @property
    def room(self) -> int:
        """How many it may have at most."""
        ...


class Vacancy:
    """What is left of the places of a pool. ``ready``: there is a replica at all."""

    __slots__ = ("_above", "_places", "_share", "_taken", "ready")

    def __init__(self, places: int, taken: int, share: PerClass, above: Above, *, ready: bool) -> None:
        self._places = places
        self._taken = taken
        self._share = share
        self._above = above
        self.ready = ready

    def may(self, priority: Priority) -> bool:
        """Whether a class may fill one more place: at least one of all is for each."""
        share = self._share.of(priority)
        if share >= 1.0:
            return self._taken < self._places
        kept = self._places - min(self._places * (1.0 - share), held(self._above(priority)))
        return self._taken < min(max(math.floor(kept + _DUST), 1), self._places)

    def fill(self) -> None:
        """One more is taken."""
        self._taken += 1


def vacancy(replicas: Iterable[Replica], promised: int, share: PerClass, above: Above) -> Vacancy:
    """What is left beside what is in flight and ``promised``. One that has more than its room takes none of others.

    ``share`` says what of all places a class may fill at least, and ``above`` how many requests those above it usually
    have: no more is held back than they may need.
    """
    places = taken = found = 0
    for replica in replicas:
        room, in_flight = replica.room, replica.in_flight
        places += room
        taken += in_flight if in_flight < room else room  # of hundreds: a call takes longer
        found += 1
    return Vacancy(places, taken + promised, share, above, ready=found > 0)
