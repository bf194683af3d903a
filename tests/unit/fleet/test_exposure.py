"""Where else than on loopback an engine answers, by the tables of Linux and by asking."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineFailure, EngineReset, EngineTimeout, EngineUnreachable
from gateway.fleet import exposure
from gateway.fleet.exposure import Exposure, host_addresses, other_addresses
from gateway.fleet.look import Seen
from gateway.model import EngineSpec

# The shape of /proc/net/fib_trie: a tree for the main table and one for the local one, which repeat each other.
FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.1.2.0/24 2 0 2
        |-- 10.1.2.0
           /24 link UNICAST
        |-- 10.1.2.7
           /32 host LOCAL
        |-- 10.1.2.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 169.254.3.4
        /32 host LOCAL
     |-- 172.17.0.1
        /32 host LOCAL
Local:
        |-- 10.1.2.7
           /32 host LOCAL
"""
IF6 = """00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021122fffe334455 02 40 20 80     eth0
20010db8000000000000000000000007 02 40 00 80     eth0
"""


def test_the_addresses_of_a_host_but_loopback_and_link_local():
    assert other_addresses(FIB, IF6) == ("10.1.2.7", "172.17.0.1", "[2001:db8::7]")


def test_no_more_than_sixteen_are_asked():
    many = "".join(f"  |-- 10.0.0.{number}\n     /32 host LOCAL\n" for number in range(1, 100))
    assert len(other_addresses(many, IF6)) == 16


def test_tables_that_are_not_there_give_none():
    assert other_addresses("", "") == ()


@given(st.text(), st.text())
def test_tables_of_another_shape_give_none_and_do_no_harm(fib, inet6):
    assert other_addresses(fib, inet6) == ()


def test_what_cannot_be_read_gives_none(monkeypatch, tmp_path):
    monkeypatch.setattr(exposure, "_TABLES", (tmp_path, tmp_path / "none"))  # a folder is there and cannot be read
    assert host_addresses() == ()
    monkeypatch.setattr(exposure, "_TABLES", (tmp_path / "none", tmp_path / "none"))
    assert host_addresses() == ()
    (tmp_path / "fib").write_text(FIB)
    (tmp_path / "six").write_text(IF6)
    monkeypatch.setattr(exposure, "_TABLES", (tmp_path / "fib", tmp_path / "six"))
    assert host_addresses() == ("10.1.2.7", "172.17.0.1", "[2001:db8::7]")


@pytest.mark.skipif(not Path("/proc/net/fib_trie").exists(), reason="another kind of host")
def test_this_host_has_no_loopback_among_its_other_addresses():
    assert not {"127.0.0.1", "[::1]"} & set(host_addresses())


class Places:
    """What answers where."""

    def __init__(self, said: dict[str, tuple[int, bytes] | EngineFailure]) -> None:
        self.said = said
        self.asked: list[str] = []
        self.open = 0

    def __call__(self, spec: EngineSpec) -> Place:
        self.open += 1
        return Place(self, spec)


class Place:
    """A link to one of them."""

    def __init__(self, places: Places, spec: EngineSpec) -> None:
        self._places = places
        self._spec = spec

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        assert (path, patience) == ("/v1/models", 1.0)
        self._places.asked.append(self._spec.url)
        said = self._places.said[self._spec.id]
        if isinstance(said, EngineFailure):
            raise said
        return said

    def close(self) -> None:
        self._places.open -= 1


def listing(*models: str) -> tuple[int, bytes]:
    return 200, orjson.dumps({"data": [{"id": model} for model in models]})


def look(places: Places, url: str = "http://127.0.0.1:8001", addresses=("10.1.2.7", "[2001:db8::7]")):
    found = asyncio.run(Exposure(places, lambda: addresses).look(EngineSpec(url), Seen(("m", "lora"))))
    assert places.open == 0
    return found


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (listing("m"), True),
        (listing("other", "lora"), True),
        (listing("other"), False),
        (listing(), False),
        ((404, b""), False),
        ((401, listing("m")[1]), False),
        ((200, b"<html>"), False),
        (EngineUnreachable(), False),
        (EngineUnreachable(slow=True), False),
        (EngineTimeout(), False),
        (EngineReset(), False),
    ],
)
def test_only_the_same_engine_counts_not_whatever_listens_there(said, answers):
    places = Places({"10.1.2.7:8001": said, "[2001:db8::7]:8001": EngineUnreachable()})
    assert look(places) == (("10.1.2.7:8001",) if answers else ())
    assert places.asked == ["http://10.1.2.7:8001", "http://[2001:db8::7]:8001"]


@pytest.mark.parametrize("url", ["http://localhost:8001", "http://[::1]:8001", "http://127.8.9.1:8001"])
def test_every_loopback_url_is_looked_at(url):
    places = Places({"10.1.2.7:8001": listing("m"), "[2001:db8::7]:8001": listing("m")})
    assert look(places, url) == ("10.1.2.7:8001", "[2001:db8::7]:8001")


def test_an_engine_that_is_meant_to_be_reached_is_not_looked_at():
    assert look(Places({}), "https://gpu.example:8443") == ()


def test_on_a_host_without_other_addresses_nobody_is_asked():
    assert look(Places({}), addresses=()) == ()
