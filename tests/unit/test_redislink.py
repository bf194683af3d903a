"""The link to a real Redis: what it says, deadlines, turns, TLS, sentinels, and failures by table."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions as raised_by
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis.asyncio.sentinel import MasterNotFoundError

from gateway.redislink import LinkFault, RedisLink, Script, fault_of
from gateway.stateurl import redis_place
from loadtests.vllm.engine import held_port
from tests.redisserver import RedisSentinel, RedisServer, port_of
from tests.streams import HOST, serving

PATIENCE = 5.0
"""Seconds for what a busy machine does at its own pace."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    shared.command("FLUSHALL")
    shared.command("SCRIPT", "FLUSH")
    return shared


@asynccontextmanager
async def linked(url: str, **options: Any) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_place(url), **{"timeout": PATIENCE, **options})
    try:
        yield link
    finally:
        await link.close()


async def kind_of(link: RedisLink, *command: str) -> str:
    with pytest.raises(LinkFault) as raised:
        await link.run(*(command or ("PING",)))
    return raised.value.kind


def test_commands_and_scripts(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url(db=3)) as link:
            await link.run("SET", "a", b"\xff")
            assert await link.run("GET", "a") == b"\xff"
            script = Script("return {ARGV[1], KEYS[1], false, 7}")
            for _ in range(2):
                assert await link.evaluate(script, ["k"], "v") == [b"v", b"k", None, 7]
            server.command("SCRIPT", "FLUSH")
            assert await link.evaluate(script, ["k"], "v") == [b"v", b"k", None, 7]
            assert await kind_of(link, "HGET", "a", "b") == "WRONGTYPE"

    asyncio.run(body())
    assert server.command("INFO", "keyspace") == {"db3": {"keys": 1, "expires": 0, "avg_ttl": 0}}


def test_nothing_is_said_but_what_was_asked() -> None:
    """No HELLO, CLIENT or PING, which an ACL would have to allow and a slow server would have to answer."""
    said = bytearray()

    async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            said.extend(data)
            writer.write(b"+OK\r\n")

    async def body() -> None:
        async with serving(agree) as port, linked(f"redis://:pw@{HOST}:{port}/1") as link:
            assert await link.run("GET", "a") == b"OK"

    asyncio.run(body())
    words = [word for word in said.decode().split("\r\n") if word and word[0] not in "*$"]
    assert words == ["AUTH", "pw", "SELECT", "1", "GET", "a"]


def test_a_frozen_server_fails_in_the_time_given(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url(), timeout=0.3) as link:
            await link.run("PING")
            server.freeze()
            try:
                for _ in range(2):  # an open connection, a new one
                    started = time.monotonic()
                    assert await kind_of(link) == "TIMEOUT"
                    assert 0.29 < time.monotonic() - started < PATIENCE
            finally:
                server.thaw()
            assert await link.run("PING") is True

    asyncio.run(body())


def test_an_address_that_does_not_answer_at_all_fails_in_time() -> None:
    async def body() -> None:
        with FullQueue() as port:
            async with linked(f"redis://{HOST}:{port}/0", timeout=0.1) as link:
                started = time.monotonic()
                assert await kind_of(link) == "TIMEOUT"
                assert time.monotonic() - started < PATIENCE

    asyncio.run(body())


class FullQueue:
    """A port whose queue of connections is full: the handshake of the next one is never finished."""

    def __enter__(self) -> int:
        self._listener = socket.socket()
        self._listener.bind((HOST, 0))
        self._listener.listen(0)
        port: int = self._listener.getsockname()[1]
        self._waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect((HOST, port))
            self._waiting.append(one)
        return port

    def __exit__(self, *_: object) -> None:
        for one in (*self._waiting, self._listener):
            one.close()


def test_calls_wait_their_turn_for_a_connection(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url(), connections=3, timeout=2.0) as link:
            await asyncio.gather(*(link.run("INCR", "n") for _ in range(50)))
            assert await link.run("GET", "n") == b"50"
            assert server.command("INFO", "clients")["connected_clients"] <= 4

    asyncio.run(body())


def test_a_cancelled_call_gives_its_turn_back_and_spoils_no_answer(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url(), connections=1, timeout=1.0) as link:
            for _ in range(20):
                task = asyncio.create_task(link.run("ECHO", "old"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert await link.run("ECHO", "new") == b"new"

    asyncio.run(body())


def test_messages_are_heard_several_as_one(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url()) as link, aclosing(link.listen("c")) as heard:
            await asyncio.wait_for(anext(heard), 5.0)
            server.command("EVAL", "for i = 1, 100 do redis.call('PUBLISH', 'c', '') end", 0)
            await asyncio.wait_for(anext(heard), 5.0)
            count = 1
            with suppress(TimeoutError):
                while True:
                    await asyncio.wait_for(anext(heard), 0.05)
                    count += 1
            assert count < 20

    asyncio.run(body())


def test_close_is_idempotent_and_ends_calls_and_listening(server: RedisServer) -> None:
    async def body() -> None:
        async with linked(server.url()) as link:
            heard = link.listen("c")
            await asyncio.wait_for(anext(heard), 5.0)
            waiting = asyncio.ensure_future(anext(heard))
            await asyncio.sleep(0)
            await link.close()
            await link.close()
            with pytest.raises(LinkFault):
                await asyncio.wait_for(waiting, 5.0)
            assert await kind_of(link) == "CLOSED"
            with pytest.raises(LinkFault, match="closed"):
                await anext(link.listen("c"))

    asyncio.run(body())
    assert server.command("INFO", "clients")["connected_clients"] == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (raised_by.ResponseError("WRONGTYPE Operation against a key"), "WRONGTYPE"),
        (raised_by.ResponseError("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS"),
        (raised_by.ResponseError("ERR the word OOMPH or NOT-LOADING is none of ours"), "PROTOCOL"),
        (raised_by.ResponseError("ERR unknown command 'EVALSHA'"), "PROTOCOL"),
        (raised_by.InvalidResponse("Protocol Error: b'HTTP/1.1'"), "PROTOCOL"),
        (raised_by.OutOfMemoryError("command not allowed", status_code="OOM"), "OOM"),
        (raised_by.NoScriptError("No matching script.", status_code="NOSCRIPT"), "NOSCRIPT"),
        (raised_by.NoPermissionError("this user has no permissions", status_code="NOPERM"), "NOPERM"),
        (raised_by.AuthenticationError("Authentication required.", status_code="NOAUTH"), "NOAUTH"),
        (raised_by.AuthenticationError("invalid username-password pair", status_code="WRONGPASS"), "WRONGPASS"),
        (raised_by.AuthenticationError("AUTH <password> called without any password configured"), "WRONGPASS"),
        (raised_by.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (raised_by.ConnectionError("The previous master is now a slave"), "READONLY"),
        (raised_by.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
        (raised_by.MovedError("3999 10.0.0.9:6381"), "MOVED"),
        (raised_by.AskError("3999 10.0.0.9:6381"), "ASK"),
        (raised_by.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
        (MasterNotFoundError("No master found for 'm'"), "SENTINEL"),
        (raised_by.TimeoutError("Timeout reading from h:1"), "TIMEOUT"),
        (raised_by.ConnectionError("Error 111 connecting to h:1. Connection refused."), "REFUSED"),
        (raised_by.ConnectionError("Error -2 connecting to h:1. Name or service not known."), "REFUSED"),
        (raised_by.ConnectionError("Connection closed by server."), "BROKEN"),
        (ConnectionResetError(104, "Connection reset by peer"), "BROKEN"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "TLS"),
        (TimeoutError(), "TIMEOUT"),
    ],
)
def test_what_a_failure_means(error: Exception, kind: str) -> None:
    fault = fault_of(error)
    assert fault.kind == kind
    assert str(fault) == fault.reason
    assert fault.uncertain == (kind in {"BROKEN", "TIMEOUT"})
    assert "h:1" not in fault.reason
    assert "10.0.0.9" not in fault.reason


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA (ca.pem) and a certificate for loopback (cert.pem, key.pem)."""
    folder = tmp_path_factory.mktemp("tls")
    ca_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test CA")])
    own_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis")])

    def signed(name: x509.Name, key: Any, extension: x509.ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(ca_name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(extension, critical=True)
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
    (folder / "ca.pem").write_bytes(signed(ca_name, ca_key, x509.BasicConstraints(ca=True, path_length=None)))
    (folder / "cert.pem").write_bytes(signed(own_name, own_key, names))
    (folder / "key.pem").write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder


@pytest.fixture(scope="module")
def tls_port(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that speaks TLS there."""
    with RedisServer(tmp_path_factory.mktemp("redis-tls"), "--tls-auth-clients", "no") as server:
        for name, file in (("tls-ca-cert-file", "ca"), ("tls-cert-file", "cert"), ("tls-key-file", "key")):
            server.command("CONFIG", "SET", name, str(certificate / f"{file}.pem"))
        with held_port() as held:
            server.command("CONFIG", "SET", "tls-port", port_of(held))
            yield port_of(held)


def test_tls_with_the_ca_named(certificate: Path, tls_port: int) -> None:
    async def body() -> None:
        url = f"rediss://{HOST}:{tls_port}/0?ca={certificate / 'ca.pem'}"
        async with linked(url, timeout=2.0) as link, aclosing(link.listen("c")) as heard:
            assert await link.run("PING") is True
            await asyncio.wait_for(anext(heard), 5.0)

    asyncio.run(body())


@pytest.mark.parametrize("case", ["unknown CA", "another name"])
def test_tls_that_cannot_be_trusted(certificate: Path, tls_port: int, case: str) -> None:
    urls = {
        "unknown CA": f"rediss://{HOST}:{tls_port}/0",
        "another name": f"rediss://localhost:{tls_port}/0?ca={certificate / 'ca.pem'}",
    }

    async def body() -> str:
        async with linked(urls[case], timeout=2.0) as link:
            return await kind_of(link)

    assert asyncio.run(body()) == "TLS"


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Callable[[RedisServer], str]]:
    """Starts a sentinel that watches a server as ``mymaster``; gives its state URL."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(RedisSentinel(tmp_path / "sentinel", server)).url


async def answers(link: RedisLink, *command: str, patience: float = 15.0) -> Any:
    async with asyncio.timeout(patience):
        while True:
            with suppress(LinkFault):
                return await link.run(*command)
            await asyncio.sleep(0.05)


def test_a_sentinel_knows_where_the_primary_is(server: RedisServer, sentinel: Callable[[RedisServer], str]) -> None:
    async def body() -> None:
        url = sentinel(server)
        async with linked(url) as link, aclosing(link.listen("c")) as heard:
            await answers(link, "SET", "a", "1")
            assert server.command("GET", "a") == b"1"
            await asyncio.wait_for(anext(heard), 5.0)
        async with linked(url.replace("mymaster", "another")) as link:
            assert await kind_of(link) == "SENTINEL"

    asyncio.run(body())


def test_no_sentinel_answers() -> None:
    async def body() -> None:
        with held_port() as one, held_port() as other:
            async with linked(f"redis+sentinel://{HOST}:{port_of(one)},{HOST}:{port_of(other)}/m") as link:
                assert await kind_of(link) == "SENTINEL"

    asyncio.run(body())
