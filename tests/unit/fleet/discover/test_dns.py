"""Engines behind a name, whatever the system's resolver makes of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
import uvloop

from gateway.configvalues import Address
from gateway.fleet.discover.dns import DnsSource, system_lookup
from gateway.fleet.discover.sources import DiscoveryFault
from gateway.model import EngineSpec

AT = Address("nodes.serving.svc", 8443)


class Names:
    """A resolver that answers in turn; ``held`` answers wait for ``released``."""

    def __init__(self, *answers: Sequence[str] | Exception, held: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.released = asyncio.Event()
        if not held:
            self.released.set()

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        await self.released.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_addresses_become_engines_that_must_show_the_name():
    async def main() -> None:
        names = Names(["10.0.0.2", "10.0.0.1"], ["10.0.0.2"], [])
        source = DnsSource(AT, names)
        first = await source.look()
        assert first == (
            EngineSpec("https://10.0.0.1:8443", server_name="nodes.serving.svc"),
            EngineSpec("https://10.0.0.2:8443", server_name="nodes.serving.svc"),
        )
        assert await source.look() == first[1:]
        assert await source.look() == ()
        assert names.asked == ["nodes.serving.svc"] * 3
        await source.close()

    asyncio.run(main())


def test_an_absolute_name_is_asked_for_as_such_and_shown_without_its_dot():
    async def main() -> None:
        names = Names(["10.0.0.1"])
        (spec,) = await DnsSource(Address("nodes.example.", 1), names).look()
        assert (names.asked, spec.server_name) == (["nodes.example."], "nodes.example")

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [socket.gaierror(socket.EAI_AGAIN, "CANARY"), socket.gaierror(socket.EAI_FAIL, "CANARY"), OSError("CANARY")],
)
def test_a_resolver_that_fails_is_a_fault_and_is_asked_again(error):
    async def main() -> None:
        source = DnsSource(AT, Names(error, ["10.0.0.1"]))
        with pytest.raises(DiscoveryFault, match="cannot be looked up") as caught:
            await source.look()
        assert "CANARY" not in str(caught.value)
        assert len(await source.look()) == 1

    asyncio.run(main())


def test_a_forged_answer_is_a_fault():
    async def main() -> None:
        with pytest.raises(DiscoveryFault, match="loopback"):
            await DnsSource(AT, Names(["127.0.0.1"])).look()

    asyncio.run(main())


def test_a_look_that_was_given_up_leaves_one_question_behind_and_no_more():
    async def main() -> None:
        names = Names(["10.0.0.1"], held=True)
        source = DnsSource(AT, names)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await source.look()
        names.released.set()
        assert len(await source.look()) == 1
        assert len(names.asked) == 1

    asyncio.run(main())


@pytest.mark.parametrize("failing", [False, True])
def test_closing_leaves_no_question_behind(failing):
    async def main() -> None:
        names = Names(OSError(), held=True)
        source = DnsSource(AT, names)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await source.look()
        if failing:
            names.released.set()
        for _ in range(2):
            await source.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_systems_resolver(run, monkeypatch):
    async def main() -> None:
        found = await DnsSource(Address("localhost", 8001)).look()
        assert EngineSpec("http://127.0.0.1:8001") in found or EngineSpec("http://[::1]:8001") in found
        assert await system_lookup("10.0.0.7") == ["10.0.0.7"]

    run(main())


@pytest.mark.parametrize(("code", "found"), [("EAI_NONAME", True), ("EAI_NODATA", True), ("EAI_AGAIN", False)])
def test_a_name_that_is_not_there_is_told_from_one_that_cannot_be_looked_up(monkeypatch, code, found):
    async def main() -> None:
        async def fail(*_: object, **__: object) -> None:
            raise socket.gaierror(getattr(socket, code), "not now")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
        if found:
            assert await system_lookup("nodes.example") == ()
        else:
            with pytest.raises(OSError, match="not now"):
                await system_lookup("nodes.example")

    asyncio.run(main())
