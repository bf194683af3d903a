"""The front guard: which requests find a route, and which end the connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.routes import ROUTES
from gateway.steps.guard import Door, guard, open_door

DOOR = open_door(ROUTES)


@dataclass
class Request:
    method: str = "GET"
    target: bytes = b"/v1/models"
    version: str = "1.1"
    extra: list[tuple[bytes, bytes]] = field(default_factory=list)
    host: bytes = b"gw:8080"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"host", self.host), *self.extra]

    @property
    def head(self) -> dict[bytes, bytes]:
        return dict(self.headers)


def refused(request: Any, door: Door = DOOR) -> tuple[str, bool]:
    """Code, and whether the connection ends."""
    with pytest.raises(Refusal) as caught:
        guard(request, door)
    return caught.value.spec.code, caught.value.close


@pytest.mark.parametrize("key", sorted(key for key in ROUTES if "{" not in key[1]))
def test_every_route_of_the_table_opens(key: tuple[str, str]) -> None:
    request: Any = Request(key[0], key[1].encode())
    entry = guard(request, DOOR)
    assert (entry.route, entry.alias) == (ROUTES[key], None)


@pytest.mark.parametrize("alias", ["internal-general", "name@3", "org/model", "llama-3.1:8b"])
def test_an_alias_in_the_path(alias: str) -> None:
    request: Any = Request(target=b"/v1/models/" + alias.encode())
    assert guard(request, DOOR).alias == alias


def test_a_path_that_ends_before_the_alias_is_none() -> None:
    assert refused(Request(target=b"/v1/models/")) == ("not_found", False)


@pytest.mark.parametrize("key", sorted(key for key in ROUTES if "{" not in key[1]))
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "TRACE", "CONNECT", "DELETE"])
def test_a_path_takes_no_other_method(key: tuple[str, str], method: str) -> None:
    if (method, key[1]) not in ROUTES:
        assert refused(Request(method, key[1].encode())) == ("method_not_allowed", False)


def test_a_listed_model_takes_no_other_method() -> None:
    assert refused(Request("DELETE", b"/v1/models/a")) == ("method_not_allowed", False)


@pytest.mark.parametrize("target", [b"/metrics", b"/v1/chat", b"/V1/models", b"/", b"/v1/chat/completions/"])
def test_other_paths_are_not_found(target: bytes) -> None:
    assert refused(Request("POST", target)) == ("not_found", False)


@pytest.mark.parametrize("target", [b"/v1/models?a=b", b"//v1/models", b"/v1/%6dodels", b"http://gw/v1/models", b"*"])
def test_odd_targets_end_the_connection(target: bytes) -> None:
    assert refused(Request(target=target)) == ("not_found", True)


def test_a_bad_head_ends_the_connection() -> None:
    assert refused(Request(version="1.0")) == ("invalid_request", True)
    assert refused(Request(extra=[(b"x_a", b"1")])) == ("invalid_request", True)


@pytest.mark.parametrize("framing", [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")])
@pytest.mark.parametrize("target", [b"/v1/models", b"/v1/models/a", b"/healthz", b"/readyz"])
def test_where_no_body_is_read_none_may_come(target: bytes, framing: tuple[bytes, bytes]) -> None:
    assert refused(Request(target=target, extra=[framing])) == ("invalid_request", True)
    request: Any = Request(target=target, extra=[(b"content-length", b"0")])
    assert guard(request, DOOR).route.method == "GET"


@pytest.mark.parametrize(
    ("hosts", "host", "passes"),
    [
        ({"gw"}, b"gw", True),
        ({"gw"}, b"GW", True),
        ({"gw"}, b"gw:8080", True),
        ({"gw:8080"}, b"gw:8080", True),
        ({"gw:8080"}, b"gw:9090", False),
        ({"gw:8080"}, b"gw", False),
        ({"gw"}, b"evil", False),
        ({"gw"}, b"evil.gw", False),
        ({"gw", "other"}, b"other:1", True),
        ({"[::1]"}, b"[::1]:8080", True),
    ],
)
def test_hosts(hosts: set[str], host: bytes, passes: bool) -> None:
    door = open_door(ROUTES, frozenset(hosts))
    request: Any = Request(host=host)
    if passes:
        assert guard(request, door).route.path == "/v1/models"
    else:
        assert refused(request, door) == ("invalid_request", True)


def test_a_query_that_the_route_knows_is_dropped() -> None:
    request: Any = Request("POST", b"/v1/messages?beta=true")
    assert guard(request, DOOR) == guard(Request("POST", b"/v1/messages"), DOOR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/messages?",
        b"/v1/messages?beta=false",
        b"/v1/messages?beta=true&x=1",
        b"/v1/messages?beta=true?beta=true",
        b"/v1/chat/completions?beta=true",
        b"/v1/messages/?beta=true",
        b"?beta=true",
    ],
)
def test_any_other_query_is_another_path(target: bytes) -> None:
    assert refused(Request("POST", target)) == ("not_found", True)


def test_the_policy_says_how_many_headers_a_request_may_have() -> None:
    door = open_door(ROUTES, header_count=3)
    few: Any = Request(extra=[(b"x-a", b"1"), (b"x-b", b"1")])
    guard(few, door)
    assert refused(Request(extra=[(b"x-a", b"1"), (b"x-b", b"1"), (b"x-c", b"1")]), door) == ("invalid_request", True)
