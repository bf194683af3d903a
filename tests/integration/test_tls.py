"""Listeners that speak TLS: the same gateway, whose clients see who it is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.wire.tls import client_tls
from tests.authority import Authority
from tests.conftest import wait_until

HOST = "127.0.0.1"
ASK = {"model": "sim-model", "messages": [{"role": "user", "content": "hello world"}]}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def guarded(site: Any, authority: Authority, engines: list[Any], **options: Any) -> Any:
    pem = authority.pem(HOST)
    return site.gateway(engines, tls_certificate=pem, tls_key=pem, **options)


def client_of(gateway: Any, authority: Authority) -> openai.OpenAI:
    http = httpx.Client(verify=client_tls(authority.ca), trust_env=False)
    return openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key(), max_retries=0, http_client=http)


def test_the_openai_client_streams_over_it(site: Any, authority: Authority) -> None:
    gateway = guarded(site, authority, [site.engine()])
    assert gateway.url.startswith("https://")
    with client_of(gateway, authority) as client:
        whole = client.chat.completions.create(**ASK, max_tokens=5)
        pieces = list(client.chat.completions.create(**ASK, max_tokens=5, stream=True))
    assert whole.usage.completion_tokens == 5
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == whole.choices[0].message.content
    assert gateway.records.last(stream=True)["status"] == 200


def test_a_client_that_does_not_know_the_authority_sends_nothing(site: Any, authority: Authority) -> None:
    gateway = guarded(site, authority, [site.engine()])
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(gateway.url + "/healthz", trust_env=False)


def test_a_large_body_goes_through_and_a_large_answer_comes_back(site: Any, authority: Authority) -> None:
    gateway = guarded(site, authority, [site.engine(max_model_len=100_000)])
    text = "word " * 60_000
    with client_of(gateway, authority) as client:
        answer = client.completions.create(
            model="sim-model", prompt=text, max_tokens=4_000, extra_body={"ignore_eos": True}
        )
    assert answer.usage.completion_tokens == 4_000


def test_plain_http_gets_no_answer(site: Any, authority: Authority) -> None:
    gateway = guarded(site, authority, [site.engine()])
    with pytest.raises(httpx.TransportError):
        httpx.get(gateway.url.replace("https", "http") + "/healthz", trust_env=False)
    gateway.site.run(asyncio.sleep(0))
    assert "gateway_handshake_failures_total 1.0" in httpx.get(gateway.admin_url + "/metrics", trust_env=False).text


@pytest.mark.parametrize("phase", ["whole", "stream"])
def test_a_client_that_leaves_frees_the_engine(site: Any, authority: Authority, phase: str) -> None:
    engine = site.engine(step_time=0.05)
    gateway = guarded(site, authority, [engine])
    host, _, port = gateway.url.removeprefix("https://").rpartition(":")
    key = gateway.key()

    async def leave() -> float:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=client_tls(authority.ca))
        stream = b"true" if phase == "stream" else b"false"
        body = (
            b'{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":2000,"stream":%b}' % stream
        )
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n".encode()
        writer.write(head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        async with asyncio.timeout(5):
            while engine.running != 1:
                await asyncio.sleep(0.001)
            if phase == "stream":
                await reader.readuntil(b"data: ")
            writer.transport.abort()
            left = time.monotonic()
            while engine.running:
                await asyncio.sleep(0.001)
        return time.monotonic() - left

    assert site.run(leave()) < 1.0
    assert gateway.records.last(status=499)


def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(
    site: Any, authority: Authority, tmp_path: Path
) -> None:
    shown = tmp_path / "shown.pem"
    shutil.copy(authority.pem(HOST), shown)
    gateway = site.gateway([site.engine()], tls_certificate=shown, tls_key=shown)
    host, _, port = gateway.url.removeprefix("https://").rpartition(":")
    trusting = client_tls(authority.ca)

    def serial() -> str:
        with (
            socket.create_connection((host, int(port))) as plain,
            trusting.wrap_socket(plain, server_hostname=HOST) as met,
        ):
            told: Any = met.getpeercert()
            return str(told["serialNumber"])

    with client_of(gateway, authority) as client:
        client.models.list()
        before = serial()
        fresh = authority.pem(HOST)
        fresh.replace(shown)
        wait_until(lambda: serial() != before, "the new certificate", 30)
        client.models.list()  # on its old connection
    assert any("was read again" in line for line in gateway.reports)


def test_the_admin_listener_speaks_it_unless_on_loopback(site: Any, authority: Authority) -> None:
    near = guarded(site, authority, [site.engine()])
    assert near.admin_url.startswith("http://127.0.0.1:")
    far = guarded(site, authority, [site.engine()], admin="0.0.0.0:0")
    assert far.admin_url.startswith("https://0.0.0.0:")
    url = f"https://{HOST}:{far.admin_url.rpartition(':')[2]}"
    token = far.gateway.core.held.admin_token.reveal()
    env = {
        "GATEWAY_ADMIN_URL": url,
        "GATEWAY_ADMIN_TOKEN": token,
        "GATEWAY_ADMIN_CA": str(authority.ca),
        "COLUMNS": "200",
    }
    listed = CliRunner().invoke(app, ["keys", "list", "--json"], env=env)
    assert listed.exit_code == 0, listed.output
    stranger = CliRunner().invoke(app, ["keys", "list"], env={**env, "GATEWAY_ADMIN_CA": ""})
    assert stranger.exit_code == 1
    assert "has no certificate for that name that is trusted here" in " ".join(stranger.stderr.split())
    wrong = CliRunner().invoke(app, ["keys", "list"], env={**env, "GATEWAY_ADMIN_CA": "/none"})
    assert (wrong.exit_code, "GATEWAY_ADMIN_CA" in wrong.stderr) == (1, True)


def test_draining_ends_its_connections_in_order(site: Any, authority: Authority) -> None:
    gateway = guarded(site, authority, [site.engine()])
    host, _, port = gateway.url.removeprefix("https://").rpartition(":")

    async def watch() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=client_tls(authority.ca))
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await gateway.gateway.drain()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                return await asyncio.wait_for(reader.read(), 5)
            return b"broken"
        finally:
            writer.transport.abort()

    assert b"broken" not in site.run(watch())
    with pytest.raises(httpx.ConnectError):
        httpx.get(gateway.url + "/healthz", verify=client_tls(authority.ca), trust_env=False)
