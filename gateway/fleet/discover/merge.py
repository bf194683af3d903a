"""Every source's engines as one fleet: looked at together, believed one by one, merged in order.

What a source said last stands while it fails, and while it names nobody although it named somebody before (unless it
is believed then). Failing, naming nobody and naming engines again are each told once, when they begin.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.fleet.discover.sources import DiscoveryFault, Following, Found, Origin, Source
from gateway.model import EngineSpec

_EMPTY = "names no engines"
PATIENCE = 3.0
"""Seconds that one look may take."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of a source: the engines it named last, and what operators were told of it (empty: all is well).

    ``looked_at`` is when it was last believed, ``believed`` whether it was at the last look.
    """

    engines: tuple[EngineSpec, ...] = ()
    looked_at: float = -math.inf
    trouble: str = ""
    believed: bool = True


def judge(
    before: Standing, seen: Sequence[EngineSpec] | DiscoveryFault, *, believes_empty: bool, now: float
) -> tuple[Standing, str | None]:
    """What stands after a look, and what operators should be told of it, if it is news."""
    count = len(before.engines)
    if isinstance(seen, DiscoveryFault):
        after = replace(before, trouble=seen.reason, believed=False)
    elif seen:
        after = Standing(tuple(seen), now)
    elif believes_empty or not count:
        after = Standing((), now, _EMPTY)
    else:
        after = replace(before, trouble=_EMPTY, believed=False)
    if after.trouble == before.trouble:
        return after, None
    if not after.trouble:
        return after, f"names engines again: {len(after.engines)}"
    stands = len(after.engines)
    return after, after.trouble + (f"; what it named before stands (engines: {stands})" if stands else "")


class Discovery:
    """Looks at sources and tells ``apply`` the whole fleet whenever it differs from before.

    Engines are the same when their URLs are: the first source in order counts, then what operators ordered. Nothing is
    applied before the first ``step`` has looked everywhere. ``apply`` and ``report`` may not raise. ``close`` is
    idempotent.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        apply: Callable[[tuple[Found, ...]], None],
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._sources = tuple(sources)
        self._apply = apply
        self._report = report
        self._clock = clock
        self._patience = patience
        self._begun = clock()
        self._standing = [Standing() for _ in self._sources]
        self._ordered: tuple[EngineSpec, ...] = ()
        self._applied: tuple[Found, ...] | None = None
        self._twice: frozenset[str] = frozenset()
        self._looked = False

    @property
    def fleet(self) -> tuple[Found, ...]:
        """All engines, as applied last."""
        return self._applied or ()

    @property
    def followers(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """What has to run beside ``step``, with names: some sources tell of changes the moment they happen."""
        return [
            (f"discovery-{source.name}", partial(source.follow, partial(self._told, at)))
            for at, source in enumerate(self._sources)
            if isinstance(source, Following)
        ]

    async def step(self) -> None:
        """Look at every source once, at all of them at the same time, and apply what is different."""
        async with asyncio.TaskGroup() as group:
            for at, source in enumerate(self._sources):
                group.create_task(self._look(at, source))
        self._looked = True
        self._publish()

    def order(self, specs: tuple[EngineSpec, ...]) -> None:
        """Have exactly these engines besides those that sources name."""
        self._ordered = specs
        self._publish()

    def ages(self) -> Mapping[str, float]:
        """Seconds since each kind of source was last believed: of several, the one that has waited longest."""
        now = self._clock()
        ages: dict[str, float] = {}
        for source, standing in zip(self._sources, self._standing, strict=True):
            age = now - max(standing.looked_at, self._begun)
            ages[source.name] = max(age, ages.get(source.name, 0.0))
        return ages

    def faults(self) -> Mapping[str, int]:
        """How many sources of each kind fail now, or are not believed."""
        faults: dict[str, int] = {}
        for source, standing in zip(self._sources, self._standing, strict=True):
            faults[source.name] = faults.get(source.name, 0) + (not standing.believed)
        return faults

    def troubles(self) -> Mapping[str, str]:
        """What is wrong now with sources of each kind, in words; kinds without trouble are left out."""
        troubles: dict[str, str] = {}
        for source, standing in zip(self._sources, self._standing, strict=True):
            if standing.trouble:
                told = troubles.get(source.name)
                words = f"{source.place}: {standing.trouble}"
                troubles[source.name] = words if told is None else f"{told}; {words}"
        return troubles

    async def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            await source.close()

    async def _look(self, at: int, source: Source) -> None:
        try:
            async with asyncio.timeout(self._patience):
                seen: Sequence[EngineSpec] | DiscoveryFault = await source.look()
        except DiscoveryFault as fault:
            seen = fault
        except TimeoutError:
            seen = DiscoveryFault("does not answer in time")
        self._take(at, seen)

    def _told(self, at: int, seen: Sequence[EngineSpec]) -> None:
        self._take(at, seen)
        self._publish()

    def _take(self, at: int, seen: Sequence[EngineSpec] | DiscoveryFault) -> None:
        source = self._sources[at]
        self._standing[at], news = judge(
            self._standing[at], seen, believes_empty=source.believes_empty, now=self._clock()
        )
        if news is not None:
            self._report(f"discovery: {source.name} {source.place}: {news}")

    def _publish(self) -> None:
        """Apply the union of all that stands, if it is another one."""
        if not self._looked:
            return
        named = [
            *(
                Found(spec, str(source.name))
                for source, standing in zip(self._sources, self._standing, strict=True)
                for spec in standing.engines
            ),
            *(Found(spec, str(Origin.ORDERS)) for spec in self._ordered),
        ]
        fleet, twice = merge(named)
        for line in sorted(twice - self._twice):
            self._report(f"discovery: {line}")
        self._twice = twice
        if fleet != self._applied:
            self._applied = fleet
            self._apply(fleet)


def merge(named: Sequence[Found]) -> tuple[tuple[Found, ...], frozenset[str]]:
    """Each URL once, as it was named first, and a line for each one that was named again."""
    first: dict[str, Found] = {}
    twice = set()
    for found in named:
        held = first.setdefault(found.spec.url, found)
        if held is not found:
            twice.add(f"{found.spec.id} is named by {held.origin} and by {found.origin}: the first one counts")
    return tuple(first.values()), frozenset(twice)
