"""Whether an engine that should listen on loopback only can also be reached at this host's other addresses.

vLLM has no authorisation worth the name: whoever reaches its port passes around the gateway, its keys, its limits and
its records. An engine started without ``--host 127.0.0.1`` listens everywhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from gateway.configvalues import is_loopback
from gateway.errors import EngineFailure
from gateway.fleet.look import Seen, read_models
from gateway.model import EngineSpec

_MOST = 16
_PATIENCE = 1.0
_TABLES = (Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6"))
_LEAF = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")

Ask = Callable[[EngineSpec], "Asked"]


class Asked(Protocol):
    """A link to where an engine may answer as well."""

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        """Status and body of a GET within ``patience`` seconds. Raises ``EngineFailure``."""
        ...

    def close(self) -> None:
        """Cut the connection. Idempotent."""
        ...


def other_addresses(fib_trie: str, if_inet6: str) -> tuple[str, ...]:
    """This host's addresses but loopback and link-local ones, by Linux's ``/proc/net`` tables; 16 at most."""
    found = [ipaddress.ip_address(text) for text in dict.fromkeys(_LEAF.findall(fib_trie))]
    for line in if_inet6.splitlines():
        digits = line.partition(" ")[0]
        if len(digits) == 32 and all(digit in "0123456789abcdef" for digit in digits):
            found.append(ipaddress.ip_address(bytes.fromhex(digits)))
    outer = [each for each in found if not (each.is_loopback or each.is_link_local or each.is_unspecified)]
    return tuple(f"[{each}]" if each.version == 6 else str(each) for each in outer[:_MOST])


def host_addresses() -> tuple[str, ...]:
    """``other_addresses`` of this host; none where its tables cannot be read."""
    try:
        fib_trie, if_inet6 = (path.read_text() if path.exists() else "" for path in _TABLES)
    except OSError:
        return ()
    return other_addresses(fib_trie, if_inet6)


class Exposure:
    """``look`` tells where else an engine answers."""

    def __init__(self, ask: Ask, addresses: Callable[[], Sequence[str]] = host_addresses) -> None:
        self._ask = ask
        self._addresses = addresses

    async def look(self, spec: EngineSpec, seen: Seen) -> tuple[str, ...]:
        """The ``host:port`` pairs at which the engine of a loopback URL answers besides it."""
        if not is_loopback(spec):
            return ()
        port = urlsplit(spec.url).port
        places = [f"{address}:{port}" for address in self._addresses()]
        answers = await asyncio.gather(*(self._answers(place, seen) for place in places))
        return tuple(place for place, answered in zip(places, answers, strict=True) if answered)

    async def _answers(self, place: str, seen: Seen) -> bool:
        """Whether the same engine answers there, by the models that it lists: the port may be another server's."""
        link = self._ask(EngineSpec(f"http://{place}"))
        try:
            status, body = await link.get("/v1/models", _PATIENCE)
        except EngineFailure:
            return False
        finally:
            link.close()
        other = read_models(body) if status == 200 else None
        return other is not None and bool(set(other.models) & set(seen.models))
