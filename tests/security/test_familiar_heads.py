"""A connection's second request is judged as its first: what was learned from a head serves only the very same head."""

from __future__ import annotations

import time

import orjson
import pytest

from loadtests.rawclient import RawAnswer, RawClient

CHAT = orjson.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
LONGER = orjson.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "hello you"}], "max_tokens": 2})


def head(
    key: str, body: bytes = CHAT, *more: bytes, target: bytes = b"/v1/chat/completions", **changed: bytes
) -> bytes:
    lines = {
        b"host": b"gw.test",
        b"content-type": b"application/json",
        b"authorization": b"Bearer " + key.encode(),
        b"content-length": b"%d" % len(body),
        **{name.replace("_", "-").encode(): value for name, value in changed.items()},
    }
    shown = [b"%b: %b" % line for line in lines.items() if line[1]]
    return b"\r\n".join([b"POST %b HTTP/1.1" % target, *shown, *more]) + b"\r\n\r\n"


def good(key: str, body: bytes = CHAT) -> bytes:
    return head(key, body) + body


SECOND = {
    "the same": good,
    "a longer body": lambda key: good(key, LONGER),
    "an unknown key": lambda key: good(key[:-1] + ("a" if key[-1] != "a" else "b")),
    "no key": lambda key: head(key, authorization=b"") + CHAT,
    "a second key": lambda key: head(key, CHAT, b"x-api-key: " + key.encode()) + CHAT,
    "a repeated header": lambda key: head(key, CHAT, b"authorization: Bearer " + key.encode()) + CHAT,
    "the same line twice": lambda key: head(key, CHAT, b"content-type: application/json") + CHAT,
    "another host, malformed": lambda key: head(key, host=b"gw.test/x") + CHAT,
    "an engine-owned header": lambda key: head(key, CHAT, b"x-vllm-priority: 1") + CHAT,
    "an odd value": lambda key: head(key, CHAT, b"x-odd: caf\xe9") + CHAT,
    "another path": lambda key: head(key, target=b"/v1/completions") + CHAT,
    "a path that is none": lambda key: head(key, target=b"/v1/chat//completions") + CHAT,
    "a compressed body": lambda key: head(key, CHAT, b"content-encoding: gzip") + CHAT,
    "another content type": lambda key: head(key, content_type=b"text/plain") + CHAT,
    "no length": lambda key: head(key, content_length=b"") + b"",
    "chunked instead": lambda key: (
        head(key, CHAT, b"transfer-encoding: chunked", content_length=b"")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT)
    ),
    "both framings": lambda key: head(key, CHAT, b"transfer-encoding: chunked") + CHAT,
    "a length with a sign": lambda key: head(key, content_length=b"+%d" % len(CHAT)) + CHAT,
    "an empty body": lambda key: head(key, b""),
}


@pytest.fixture(scope="module")
def open_gateway(shared_site):
    gateway = shared_site.gateway([shared_site.engine()])
    return gateway, gateway.key()


@pytest.mark.parametrize("name", SECOND)
def test_the_verdict_is_that_of_a_fresh_connection(open_gateway, name):
    gateway, key = open_gateway
    second = SECOND[name](key)
    with RawClient(gateway.address) as fresh:
        fresh.send(second)
        wanted = _said(fresh.answer())
    with RawClient(gateway.address) as warm:
        for _ in range(2):
            warm.send(good(key))
            assert warm.answer().status == 200
        warm.send(second)
        assert _said(warm.answer()) == wanted


def _said(answer: RawAnswer) -> tuple[int, bool, object]:
    """What the answer comes to, without what differs from request to request."""
    return answer.status, answer.closes, orjson.loads(answer.body).get("error")


def test_a_key_revoked_between_two_requests_of_a_connection_is_refused(site):
    gateway = site.gateway([site.engine()])
    core = gateway.gateway.core
    key = gateway.key("leaving")
    with RawClient(gateway.address) as client:
        assert _statuses(client, key, 2) == [200, 200]
        site.run(core.store.revoke_key("leaving", at=time.time(), author="test"))
        site.run(core.keys.refresh())
        assert _statuses(client, key, 1) == [401]


def test_a_key_that_expires_between_two_requests_of_a_connection_is_refused(site, wait_until):
    gateway = site.gateway([site.engine()])
    ends = time.time() + 2.0
    key = gateway.key("brief", expires_at=ends)
    with RawClient(gateway.address) as client:
        assert _statuses(client, key, 2) == [200, 200]
        wait_until(lambda: time.time() > ends, "the key's end")
        assert _statuses(client, key, 1) == [401]


def _statuses(client: RawClient, key: str, count: int) -> list[int]:
    statuses = []
    for _ in range(count):
        client.send(good(key))
        statuses.append(client.answer().status)
    return statuses
