"""Engines by SRV records, asked of a real name server on loopback in every mood."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
import uvloop
from dns.asyncresolver import Resolver
from dns.resolver import NoResolverConfiguration

from gateway.fleet.discover import srv
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.fleet.discover.srv import SrvSource, new_resolver
from gateway.model import EngineSpec

NAME = "_https._tcp.nodes.serving.svc.cluster.test"
BELOW = ".nodes.serving.svc.cluster.test"
REMOTE = ("gpu7.example", BELOW)

Records = Mapping[tuple[str, str], Sequence[str]]


def pod(name: str) -> str:
    return f"{name}{BELOW}"


def zone(*pods: str, address: str = "10.0.0.{}") -> dict[tuple[str, str], Sequence[str]]:
    """A headless Service: a record for each pod, each pod with an address."""
    rows = {(pod(name), "A"): [address.format(at)] for at, name in enumerate(pods, 1)}
    return {(NAME, "SRV"): [f"0 10 8443 {pod(name)}." for name in pods], **rows}


@dataclass
class NameServer:
    """Answers from ``records``. ``mood`` may say otherwise for one kind of question: with octets, or by silence."""

    records: Records
    mood: Callable[[dns.message.Message, dns.message.Message, bool], bytes | None] = lambda asked, answer, tcp: (
        answer.to_wire(max_size=65_535)
    )
    asked: list[tuple[str, str, bool]] = field(default_factory=list)
    port: int = 0

    def answer(self, data: bytes, *, tcp: bool) -> bytes | None:
        asked = dns.message.from_wire(data)
        question = asked.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind, tcp))
        answer = dns.message.make_response(asked, recursion_available=True)
        rows = self.records.get((name, kind))
        if rows:
            answer.answer.append(dns.rrset.from_text_list(question.name, 30, "IN", kind, rows))
        elif not any(there == name for there, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return self.mood(asked, answer, tcp)

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None: ...

    def error_received(self, error: Exception) -> None: ...

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        answer = self.answer(data, tcp=False)
        if answer is not None:
            self._transport.sendto(answer, peer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self.answer(await reader.readexactly(size), tcp=True)
            if answer is not None:
                writer.write(struct.pack("!H", len(answer)) + answer)
        writer.close()


@contextlib.asynccontextmanager
async def serving(server: NameServer) -> AsyncIterator[Resolver]:
    """A resolver that asks this server and nobody else."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", port)
    )
    resolver = Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], port
    resolver.use_edns(0, 0, 1_232)
    try:
        yield resolver
    finally:
        transport.close()
        listening.close()


def look(server: NameServer, remote: Sequence[str] = REMOTE, patience: float = 2.0) -> Sequence[EngineSpec]:
    async def main() -> Sequence[EngineSpec]:
        async with serving(server) as resolver:
            return await SrvSource(NAME, remote, resolver, patience).look()

    return uvloop.run(main())


def fault(server: NameServer, remote: Sequence[str] = REMOTE, patience: float = 2.0) -> str:
    with pytest.raises(DiscoveryFault) as caught:
        look(server, remote, patience)
    assert caught.value.reason.isprintable()
    return caught.value.reason


def spec(address: str, name: str, port: int = 8443) -> EngineSpec:
    return EngineSpec(f"https://{address}:{port}", server_name=name)


def test_each_target_is_an_engine_that_must_show_the_targets_name():
    server = NameServer(zone("b", "a"))
    assert look(server) == [spec("10.0.0.1", pod("b")), spec("10.0.0.2", pod("a"))]


def test_ports_are_the_records_and_both_families_count():
    records = {
        (NAME, "SRV"): ["0 0 1 GPU7.example.", "0 0 2 gpu7.example."],
        ("gpu7.example", "A"): ["10.0.0.1"],
        ("gpu7.example", "AAAA"): ["2001:db8::1"],
    }
    assert look(NameServer(records)) == [
        spec("10.0.0.1", "gpu7.example", 1),
        spec("10.0.0.1", "gpu7.example", 2),
        spec("[2001:db8::1]", "gpu7.example", 1),
        spec("[2001:db8::1]", "gpu7.example", 2),
    ]


def test_only_the_first_priority_counts():
    records = dict(zone("a", "b"))
    records[NAME, "SRV"] = [f"1 0 8443 {pod('a')}.", f"2 0 8443 {pod('b')}."]
    assert look(NameServer(records)) == [spec("10.0.0.1", pod("a"))]


def test_one_address_behind_two_names_is_one_engine():
    assert look(NameServer(zone("b", "a", address="10.0.0.9"))) == [spec("10.0.0.9", pod("a"))]


def test_an_answer_shrinks_and_vanishes():
    async def main() -> None:
        server = NameServer(zone("a", "b"))
        async with serving(server) as resolver:
            source = SrvSource(NAME, REMOTE, resolver)
            assert len(await source.look()) == 2
            server.records = zone("a")
            assert len(await source.look()) == 1
            server.records = {(NAME, "TXT"): ['"there, without SRV"']}
            assert await source.look() == []
            server.records = {}  # NXDOMAIN
            assert await source.look() == []
            server.records = zone("a")
            assert len(await source.look()) == 1
            await source.close()

    uvloop.run(main())


def test_a_lone_dot_says_that_there_is_no_such_service():
    assert look(NameServer({(NAME, "SRV"): ["0 0 0 ."]})) == []


def test_a_target_without_an_address_is_left_out():
    records = dict(zone("a", "b"))
    del records[pod("a"), "A"]
    assert look(NameServer(records)) == [spec("10.0.0.2", pod("b"))]


def test_a_truncated_answer_is_asked_for_again_by_tcp():
    pods = [f"pod-{n}" for n in range(60)]

    def truncated(asked: dns.message.Message, answer: dns.message.Message, tcp: bool) -> bytes:
        if tcp or asked.question[0].rdtype != dns.rdatatype.SRV:
            return answer.to_wire(max_size=65_535)
        answer.answer.clear()
        answer.flags |= dns.flags.TC
        return answer.to_wire()

    server = NameServer(zone(*pods), truncated)
    assert len(look(server)) == 60
    assert server.asked[:2] == [(NAME, "SRV", False), (NAME, "SRV", True)]


def servfail(asked: dns.message.Message, answer: dns.message.Message, tcp: bool) -> bytes:
    answer.set_rcode(dns.rcode.SERVFAIL)
    return answer.to_wire()


def other_question(asked: dns.message.Message, answer: dns.message.Message, tcp: bool) -> bytes:
    forged = dns.message.make_response(dns.message.make_query("other.example", "SRV", id=asked.id))
    return forged.to_wire()


def other_id(asked: dns.message.Message, answer: dns.message.Message, tcp: bool) -> bytes:
    answer.id ^= 1
    return answer.to_wire()


MOODS: dict[str, Callable[[dns.message.Message, dns.message.Message, bool], bytes | None]] = {
    "servfail": servfail,
    "silent": lambda asked, answer, tcp: None,
    "garbage": lambda asked, answer, tcp: b"\x00" * 40,
    "short": lambda asked, answer, tcp: answer.to_wire()[:30],
    "empty": lambda asked, answer, tcp: b"",
    "other id": other_id,
    "other question": other_question,
    "loops": lambda asked, answer, tcp: answer.to_wire()[:12] + b"\xc0\x0c\x00\x21\x00\x01",
}


@pytest.mark.parametrize("mood", MOODS)
@pytest.mark.parametrize("of", ["SRV", "A"])
def test_a_name_server_that_does_not_answer_properly(mood, of):
    def moody(asked: dns.message.Message, answer: dns.message.Message, tcp: bool) -> bytes | None:
        if asked.question[0].rdtype == dns.rdatatype.from_text(of):
            return MOODS[mood](asked, answer, tcp)
        return answer.to_wire(max_size=65_535)

    assert "cannot be looked up" in fault(NameServer(zone("a"), moody), patience=0.3)


@pytest.mark.parametrize(
    "target",
    [
        "0 0 8443 attacker.example.",
        "0 0 8443 nodes.serving.svc.cluster.test.",  # the suffix itself is not below it
        "0 0 8443 xnodes.serving.svc.cluster.test.",
        "0 0 8443 gpu7.example.attacker.test.",
        "0 0 8443 a.gpu7.example.",  # a name that is listed is no suffix
    ],
)
def test_a_target_that_is_not_listed_spoils_the_answer(target):
    records = dict(zone("a"))
    records[NAME, "SRV"] = [*records[NAME, "SRV"], target]
    server = NameServer(records)
    assert fault(server) == "leads to a host that is not listed in remote_engines"
    assert {kind for _, kind, _ in server.asked} == {"SRV"}  # nobody was asked where it is


@pytest.mark.parametrize(
    "target",
    [
        "0 0 0 gpu7.example.",
        "0 0 8443 localhost.",
        "0 0 8443 10.0.0.1.",
        "0 0 8443 _x.nodes.serving.svc.cluster.test.",
        "0 0 8443 a\\010b.nodes.serving.svc.cluster.test.",
        "0 0 8443 \\195\\169.nodes.serving.svc.cluster.test.",
        "0 0 8443 a\\.b.nodes.serving.svc.cluster.test.",
    ],
)
def test_a_target_that_is_no_host_and_port_spoils_the_answer(target):
    assert fault(NameServer({(NAME, "SRV"): [target]})) == "leads to something that is no host and port"


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "0.0.0.0"])
def test_a_listed_target_that_leads_to_this_host_spoils_the_answer(address):
    records = dict(zone("a", "b"))
    records[pod("b"), "A"] = [address]
    assert "address" in fault(NameServer(records))


def test_an_answer_has_a_size():
    records = {(NAME, "SRV"): [f"0 0 {port} gpu7.example." for port in range(1, MAX_ENGINES + 2)]}
    assert fault(NameServer(records)) == "has more than 1024 SRV records"
    # Fewer records, of a host with several addresses.
    rows = [f"0 0 {port} gpu7.example." for port in range(1, 12)]
    addresses = [f"10.0.{n // 250}.{n % 250}" for n in range(100)]
    assert fault(NameServer({(NAME, "SRV"): rows, ("gpu7.example", "A"): addresses})).startswith("leads to more than")


def test_a_look_given_up_asks_no_more():
    async def main() -> None:
        server = NameServer(zone("a", "b", "c"), lambda asked, answer, tcp: None)
        async with serving(server) as resolver:
            source = SrvSource(NAME, REMOTE, resolver)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await source.look()
            assert len(asyncio.all_tasks()) == 1
            server.mood = lambda asked, answer, tcp: answer.to_wire()
            assert len(await source.look()) == 3

    uvloop.run(main())


def test_a_name_is_completed_by_the_search_list_and_a_target_never():
    async def main() -> None:
        server = NameServer({**zone("a", "b"), (pod("b") + ".attacker.test", "A"): ["10.6.6.6"]})
        del server.records[pod("b"), "A"]  # type: ignore[attr-defined]
        async with serving(server) as resolver:
            resolver.search = [dns.name.from_text("attacker.test"), dns.name.from_text("cluster.test")]
            source = SrvSource(NAME.removesuffix(".cluster.test"), REMOTE, resolver)
            assert await source.look() == [spec("10.0.0.1", pod("a"))]

    uvloop.run(main())


def test_answers_may_be_as_large_as_no_network_cuts(monkeypatch):
    monkeypatch.setattr(srv, "Resolver", lambda: Resolver(configure=False))
    assert (new_resolver().edns, new_resolver().payload) == (0, 1_232)


def test_a_system_without_name_servers(monkeypatch):
    def none() -> Resolver:
        raise NoResolverConfiguration

    monkeypatch.setattr(srv, "Resolver", none)
    with pytest.raises(DiscoveryFault, match="names no name servers"):
        new_resolver()
