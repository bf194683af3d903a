"""Engines that SRV records lead to. Needs the extra ``dns`` (dnspython): the system's resolver cannot ask for them.

A record names a host and a port, and that host's certificate is what counts: so a target has to be a name that ops have
listed in ``remote_engines``, itself or by a suffix. An attacker who steers the answers can then choose among engines
that may hold prompts anyway, and their ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from dns.asyncbackend import get_backend
from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.name import Name
from dns.resolver import NXDOMAIN, NoAnswer, NoResolverConfiguration

from gateway.configvalues import is_listed, is_name
from gateway.fleet.discover.addresses import LOCAL, engines_at
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault, Origin
from gateway.model import EngineSpec

_AT_ONCE = 8
_UDP_PAYLOAD = 1_232  # the size that is not fragmented (DNS Flag Day 2020)


class Target(NamedTuple):
    """Where a record leads: a host's absolute name in lower case, without the dot at its end, and a port."""

    host: str
    port: int


def new_resolver() -> Resolver:
    """A resolver that asks the system's name servers, with the system's search list. Raises ``DiscoveryFault``."""
    try:
        resolver = Resolver()
    except NoResolverConfiguration:
        raise DiscoveryFault("cannot be looked up: this system names no name servers") from None
    resolver.use_edns(0, 0, _UDP_PAYLOAD)
    return resolver


class SrvSource:
    """The engines that the SRV records of a name lead to; ``remote`` is ``remote_engines``.

    Of several priorities only the first counts (RFC 2782: the others are for when it fails); weights are not read,
    since the gateway balances by load. ``patience`` is seconds for one question.
    """

    name = Origin.DNS
    believes_empty = False

    def __init__(
        self, place: str, remote: Collection[str], resolver: Resolver | None = None, patience: float = 2.0
    ) -> None:
        self.place = place
        self._remote = remote
        self._resolver = resolver
        self._patience = patience
        self._backend = get_backend("asyncio")

    async def look(self) -> Sequence[EngineSpec]:
        """The engines that the records lead to now. Raises ``DiscoveryFault``."""
        resolver = self._resolver or new_resolver()
        turns = asyncio.Semaphore(_AT_ONCE)

        async def engines_of(target: Target) -> Sequence[EngineSpec]:
            async with turns:
                rows = [row for kind in ("A", "AAAA") for row in await self._ask(resolver, f"{target.host}.", kind)]
                return engines_at([row.address for row in rows], target.port, target.host)

        targets = targets_of(await self._ask(resolver, self.place, "SRV"), self._remote)
        try:
            async with asyncio.TaskGroup() as group:
                found = [group.create_task(engines_of(target)) for target in targets]
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        # One address behind two names is one engine, under the name that sorts first.
        engines = {spec.url: spec for each in reversed(found) for spec in each.result()}
        if len(engines) > MAX_ENGINES:
            raise DiscoveryFault(f"leads to more than {MAX_ENGINES} addresses")
        return sorted(engines.values(), key=lambda spec: spec.url)

    async def _ask(self, resolver: Resolver, name: str, kind: str) -> Collection[Any]:
        """The records; none when the name has none or is not there. Raises ``DiscoveryFault``."""
        try:
            answer = await resolver.resolve(name, kind, lifetime=self._patience, search=True, backend=self._backend)
        except (NXDOMAIN, NoAnswer):
            return ()
        except (DNSException, OSError):
            raise DiscoveryFault("cannot be looked up: name servers are silent or fail") from None
        return tuple(answer)

    async def close(self) -> None:
        """It holds nothing between two looks."""


def targets_of(records: Collection[Any], remote: Collection[str]) -> Sequence[Target]:
    """Where the records of the first priority lead, each target once, sorted. Raises ``DiscoveryFault``."""
    rows = [row for row in records if row.target.to_text() != "."]  # a lone dot: there is no such service
    if len(rows) > MAX_ENGINES:
        raise DiscoveryFault(f"has more than {MAX_ENGINES} SRV records")
    first = min((row.priority for row in rows), default=0)
    return sorted({_target(row.target, row.port, remote) for row in rows if row.priority == first})


def _target(name: Name, port: int, remote: Collection[str]) -> Target:
    host = name.to_text(omit_final_dot=True).lower()
    if not is_name(host) or host == LOCAL or not port:
        raise DiscoveryFault("leads to something that is no host and port")
    if not is_listed(host, remote):
        raise DiscoveryFault("leads to a host that is not listed in remote_engines")
    return Target(host, port)
