"""Step 1: the request line and the header block, before anything else is believed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Refusal
from gateway.model import BodyKind, Route
from gateway.wire.exchange import Exchange
from gateway.wire.headers import MAX_HEADERS, has_body, judge_head, plain_target, without_port

_PARAMETER = "{alias}"


@dataclass(frozen=True, slots=True)
class Door:
    """What may pass: exact routes, routes whose last part is an alias, host names (empty: any well-formed one).

    A host that is listed without a port passes with any.
    """

    exact: Mapping[tuple[str, str], Route]
    prefixed: tuple[tuple[str, Route], ...]
    paths: frozenset[str]
    hosts: frozenset[bytes] = frozenset()
    header_count: int = MAX_HEADERS


class Entry(NamedTuple):
    """A request that was let in: its route, and the alias in its path, if the route has one."""

    route: Route
    alias: str | None = None


def open_door(
    routes: Mapping[tuple[str, str], Route], hosts: frozenset[str] = frozenset(), header_count: int = MAX_HEADERS
) -> Door:
    """A door for a route table; ``header_count`` is how many headers a request may have."""
    exact = {key: route for key, route in routes.items() if _PARAMETER not in route.path}
    prefixed = tuple(
        (route.path.removesuffix(_PARAMETER), route) for route in routes.values() if route.path.endswith(_PARAMETER)
    )
    paths, names = frozenset(path for _, path in exact), frozenset(host.lower().encode() for host in hosts)
    return Door(exact, prefixed, paths, names, header_count)


def guard(exchange: Exchange, door: Door) -> Entry:
    """The route of a sound request. Raises ``Refusal``; one about the bytes themselves also closes the connection."""
    fault = judge_head(exchange.version, exchange.headers, exchange.head, door.header_count)
    if fault is not None:
        raise Refusal("invalid_request", fault, close=True)
    if door.hosts and not _is_ours(exchange.head[b"host"].lower(), door.hosts):
        raise Refusal("invalid_request", "The Host header names another host.", close=True)
    target, mark, query = exchange.target.partition(b"?")
    path = plain_target(target)
    if path is None:
        raise Refusal("not_found", close=True)
    route = door.exact.get((exchange.method, path))
    if mark and (route is None or query not in route.queries):
        raise Refusal("not_found", close=True)
    entry = Entry(route) if route is not None else _by_prefix(exchange.method, path, door)
    if entry.route.body is BodyKind.NONE and has_body(exchange.head):
        raise Refusal("invalid_request", "This path takes no request body.", close=True)
    return entry


def _is_ours(host: bytes, hosts: frozenset[bytes]) -> bool:
    return host in hosts or without_port(host) in hosts


def _by_prefix(method: str, path: str, door: Door) -> Entry:
    for prefix, route in door.prefixed:
        if path.startswith(prefix) and len(path) > len(prefix):
            if method != route.method:
                raise Refusal("method_not_allowed")
            return Entry(route, path[len(prefix) :])
    raise Refusal("method_not_allowed" if path in door.paths else "not_found")
