"""What every source offers, and the one that never changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.configvalues import Address, Pods
from gateway.fleet.discover.dns import DnsSource
from gateway.fleet.discover.file import FileSource
from gateway.fleet.discover.kubernetes import KubernetesSource
from gateway.fleet.discover.sources import ConfiguredSource, Following, Origin, Source
from gateway.fleet.discover.srv import SrvSource
from gateway.model import EngineSpec


def test_the_configured_engines_are_always_the_same():
    async def main() -> None:
        source = ConfiguredSource([EngineSpec("http://127.0.0.1:1"), EngineSpec("http://127.0.0.1:2")])
        for _ in range(2):
            assert [spec.id for spec in await source.look()] == ["127.0.0.1:1", "127.0.0.1:2"]
        await source.close()

    asyncio.run(main())


def test_who_is_believed_when_it_names_nobody_and_who_tells_by_itself():
    sources: list[Source] = [
        ConfiguredSource(()),
        FileSource(Path("f"), ()),
        DnsSource(Address("h", 1)),
        SrvSource("s", ()),
        KubernetesSource(Pods("n", "s", 1), None),
    ]
    told = [(str(s.name), s.place, s.believes_empty, isinstance(s, Following)) for s in sources]
    assert told == [
        ("configuration", "engines", True, False),
        ("file", "f", True, False),
        ("dns", "h:1", False, False),
        ("dns", "s", False, False),
        ("kubernetes", "n/s:1", False, True),
    ]
    assert {str(source.name) for source in sources} | {"orders"} == set(Origin)
