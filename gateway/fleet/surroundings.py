"""What all watches of one instance share. Values only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from gateway.fleet.look import Seen
from gateway.model import EngineSpec
from gateway.policy.engines import Floor
from gateway.policy.fleet import FleetPolicy


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a watch asks and tells.

    ``interval`` is seconds between steps; ``looks`` and ``warmups`` bound how many replicas are looked at, or warmed
    up, at once; ``exposure`` finds the other addresses at which an engine answers. ``report`` takes a line for
    operators; ``changed`` is called when what an engine serves has changed.
    """

    policy: Callable[[], FleetPolicy]
    floors: Callable[[], Mapping[str, Floor]]
    now: Callable[[], float]
    random: Random
    new_id: Callable[[], str]
    interval: float
    looks: asyncio.Semaphore
    warmups: asyncio.Semaphore
    report: Callable[[str], None]
    changed: Callable[[], None]
    exposure: Callable[[EngineSpec, Seen], Awaitable[tuple[str, ...]]]
