"""Many sources, one fleet: what stands, what is told, and what is applied when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.discover.merge import Discovery, Standing, judge, merge
from gateway.fleet.discover.sources import DiscoveryFault, Found, Origin
from gateway.model import EngineSpec

A, B, C = (EngineSpec(f"http://127.0.0.1:{port}") for port in (1, 2, 3))
FAULT = DiscoveryFault("cannot be looked up")


class Told:
    """A source that says what a test tells it to; ``hangs`` until let go."""

    def __init__(
        self, *seen: EngineSpec, name: Origin = Origin.DNS, place: str = "nodes:1", empty: bool = False
    ) -> None:
        self.name = name
        self.place = place
        self.believes_empty = empty
        self.seen: Sequence[EngineSpec] | Exception = seen
        self.gate = asyncio.Event()
        self.gate.set()
        self.looks = 0
        self.closed = 0

    async def look(self) -> Sequence[EngineSpec]:
        self.looks += 1
        await self.gate.wait()
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    async def close(self) -> None:
        self.closed += 1


class Watching(Told):
    """A source that tells by itself."""

    async def follow(self, tell: Callable[[Sequence[EngineSpec]], None]) -> None:
        self.tell = tell
        await asyncio.Event().wait()


class Scene:
    """A discovery, what it applied and what it reported."""

    def __init__(self, *sources: Told, patience: float = 5.0) -> None:
        self.now = 100.0
        self.fleets: list[tuple[Found, ...]] = []
        self.reports: list[str] = []
        self.discovery = Discovery(
            sources, self.fleets.append, self.reports.append, clock=lambda: self.now, patience=patience
        )

    async def step(self) -> tuple[EngineSpec, ...]:
        await self.discovery.step()
        return self.urls()

    def urls(self) -> tuple[EngineSpec, ...]:
        return tuple(found.spec for found in self.discovery.fleet)

    def news(self) -> list[str]:
        news, self.reports[:] = list(self.reports), []
        return news


def test_the_union_is_applied_once_and_again_when_it_differs():
    async def main() -> None:
        first, second = Told(A, name=Origin.CONFIGURATION), Told(B)
        scene = Scene(first, second)
        for _ in range(3):
            assert await scene.step() == (A, B)
        assert scene.fleets == [(Found(A, "configuration"), Found(B, "dns"))]
        second.seen = (C, B)
        assert await scene.step() == (A, C, B)
        assert len(scene.fleets) == 2
        assert scene.reports == []

    asyncio.run(main())


def test_what_a_failing_source_said_last_stands_and_each_turn_is_told_once():
    async def main() -> None:
        source = Told(A, B)
        scene = Scene(source)
        await scene.step()
        source.seen = FAULT
        for _ in range(3):
            assert await scene.step() == (A, B)
        assert scene.news() == ["discovery: dns nodes:1: cannot be looked up; what it named before stands (engines: 2)"]
        source.seen = DiscoveryFault("leads away")
        await scene.step()
        assert scene.news() == ["discovery: dns nodes:1: leads away; what it named before stands (engines: 2)"]
        assert scene.discovery.faults() == {"dns": 1}
        assert scene.discovery.troubles() == {"dns": "nodes:1: leads away"}
        source.seen = (B,)
        for _ in range(2):
            assert await scene.step() == (B,)
        assert scene.news() == ["discovery: dns nodes:1: names engines again: 1"]
        assert scene.discovery.faults() == {"dns": 0}
        assert scene.discovery.troubles() == {}

    asyncio.run(main())


def test_an_answer_that_shrinks_to_nothing_is_not_believed_but_one_that_shrinks_is():
    async def main() -> None:
        source = Told(A, B)
        scene = Scene(source)
        await scene.step()
        source.seen = (A,)
        assert await scene.step() == (A,)
        source.seen = ()
        for _ in range(3):
            assert await scene.step() == (A,)
        assert scene.discovery.faults() == {"dns": 1}
        assert scene.news() == ["discovery: dns nodes:1: names no engines; what it named before stands (engines: 1)"]
        source.seen = (C,)
        assert await scene.step() == (C,)
        assert scene.news() == ["discovery: dns nodes:1: names engines again: 1"]

    asyncio.run(main())


def test_a_source_that_is_believed_may_name_nobody():
    async def main() -> None:
        source = Told(A, name=Origin.FILE, place="f.yaml", empty=True)
        scene = Scene(source)
        await scene.step()
        source.seen = ()
        for _ in range(2):
            assert await scene.step() == ()
        assert scene.discovery.faults() == {"file": 0}
        assert scene.news() == ["discovery: file f.yaml: names no engines"]
        source.seen = FAULT
        await scene.step()
        assert scene.news() == ["discovery: file f.yaml: cannot be looked up"]

    asyncio.run(main())


def test_a_source_that_never_named_anybody():
    async def main() -> None:
        source = Told()
        scene = Scene(source)
        assert await scene.step() == ()
        assert scene.fleets == [()]
        assert scene.news() == ["discovery: dns nodes:1: names no engines"]
        scene.now += 7
        assert scene.discovery.ages() == {"dns": 7.0}

    asyncio.run(main())


def test_one_slow_source_holds_up_no_other_for_longer_than_its_patience():
    async def main() -> None:
        slow, quick = Told(B), Told(A, place="other:1")
        slow.gate.clear()
        scene = Scene(slow, quick, patience=0.02)
        assert await scene.step() == (A,)
        assert scene.news() == ["discovery: dns nodes:1: does not answer in time"]
        slow.gate.set()
        assert await scene.step() == (B, A)

    asyncio.run(main())


def test_all_sources_are_asked_at_the_same_time():
    async def main() -> None:
        sources = [Told(place=str(n)) for n in range(3)]
        for source in sources:
            source.gate.clear()
        step = asyncio.create_task(Scene(*sources).discovery.step())
        while not all(source.looks for source in sources):
            await asyncio.sleep(0)
        for source in sources:
            source.gate.set()
        await step

    asyncio.run(main())


def test_an_unexpected_error_is_not_hidden():
    async def main() -> None:
        source = Told()
        source.seen = KeyError("a mistake of ours")
        with pytest.raises(ExceptionGroup):
            await Scene(source).step()

    asyncio.run(main())


def test_the_first_source_in_order_wins_and_that_is_told_once():
    async def main() -> None:
        labelled = EngineSpec(A.url, {"gpu": "a100"})
        first, second = Told(labelled, name=Origin.CONFIGURATION, place="engines"), Told(A, B)
        scene = Scene(first, second)
        for _ in range(2):
            await scene.step()
        assert scene.discovery.fleet == (Found(labelled, "configuration"), Found(B, "dns"))
        line = "discovery: 127.0.0.1:1 is named by configuration and by dns: the first one counts"
        assert scene.news() == [line]
        first.seen = FAULT
        await scene.step()
        assert line not in scene.news()
        second.seen = (B,)
        await scene.step()
        second.seen = (B, A)
        await scene.step()
        assert scene.news() == [line]

    asyncio.run(main())


def test_orders_are_merged_at_once_behind_what_sources_name():
    async def main() -> None:
        scene = Scene(Told(A, name=Origin.CONFIGURATION))
        scene.discovery.order((B, A))
        assert scene.fleets == []  # nothing is known of the sources yet: their engines must not seem to be gone
        await scene.step()
        assert scene.discovery.fleet == (Found(A, "configuration"), Found(B, "orders"))
        assert scene.news() == ["discovery: 127.0.0.1:1 is named by configuration and by orders: the first one counts"]
        scene.discovery.order((C,))
        assert scene.urls() == (A, C)
        scene.discovery.order((C,))
        scene.discovery.order(())
        assert [len(fleet) for fleet in scene.fleets] == [2, 2, 1]

    asyncio.run(main())


def test_what_a_source_tells_by_itself_is_applied_at_once():
    async def main() -> None:
        source = Watching(A, name=Origin.KUBERNETES)
        scene = Scene(Told(B), source)
        ((name, follow),) = scene.discovery.followers
        assert name == "discovery-kubernetes"
        running = asyncio.create_task(follow())
        await asyncio.sleep(0)
        source.tell((C,))
        assert scene.fleets == []
        assert await scene.step() == (B, A)
        source.tell((C,))
        assert scene.urls() == (B, C)
        source.tell(())
        assert scene.urls() == (B, C)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


def test_ages_grow_while_a_source_is_not_believed():
    async def main() -> None:
        good, bad = Told(A), Told(B, place="other:1")
        scene = Scene(good, bad, Told(name=Origin.FILE, empty=True))
        assert scene.discovery.ages() == {"dns": 0.0, "file": 0.0}
        await scene.step()
        for seen in (FAULT, ()):
            bad.seen = seen
            scene.now += 10
            await scene.step()
        assert scene.discovery.ages() == {"dns": 20.0, "file": 0.0}
        bad.seen = (B,)
        await scene.step()
        assert scene.discovery.ages() == {"dns": 0.0, "file": 0.0}

    asyncio.run(main())


def test_closing_closes_all_sources():
    async def main() -> None:
        sources = [Told(), Told()]
        scene = Scene(*sources)
        for _ in range(2):
            await scene.discovery.close()
        assert [source.closed for source in sources] == [2, 2]

    asyncio.run(main())


SEEN = st.one_of(st.just(FAULT), st.lists(st.sampled_from([A, B, C]), max_size=3, unique_by=lambda spec: spec.url))


@given(st.lists(SEEN, max_size=20), st.booleans())
def test_only_an_answer_changes_what_stands_and_only_a_believed_one_empties_it(looks, believes):
    standing, told = Standing(), 0
    for at, seen in enumerate(looks):
        before = standing
        standing, news = judge(before, seen, believes_empty=believes, now=float(at))
        told += news is not None
        if isinstance(seen, DiscoveryFault) or not (seen or believes):
            assert standing.engines == before.engines
            assert standing.believed == (not before.engines and not isinstance(seen, DiscoveryFault))
        else:
            assert standing.believed
            assert standing.engines == tuple(seen)
            assert standing.looked_at == at
        assert (news is None) == (standing.trouble == before.trouble)
        assert bool(standing.trouble) == (isinstance(seen, DiscoveryFault) or not seen)
    assert standing.looked_at == -math.inf or 0 <= standing.looked_at < len(looks)


@given(st.lists(st.builds(Found, st.sampled_from([A, B, C]), st.sampled_from(list(Origin)))))
def test_each_url_is_there_once_under_its_first_origin(named):
    fleet, twice = merge(named)
    urls = [found.spec.url for found in fleet]
    assert len(set(urls)) == len(urls)
    assert set(urls) == {found.spec.url for found in named}
    for found in fleet:
        assert next(first for first in named if first.spec.url == found.spec.url) is found
    assert bool(twice) == (len(named) > len(fleet))
