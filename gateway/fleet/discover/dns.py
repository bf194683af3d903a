"""Engines at the addresses of a name, as a headless Service has them: looked up as every program on this host does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from gateway.configvalues import Address
from gateway.fleet.discover.addresses import engines_at
from gateway.fleet.discover.sources import DiscoveryFault, Origin
from gateway.model import EngineSpec

Lookup: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name; empty when it has none or is not there. Raises ``OSError`` when that cannot be told."""

_NONE = frozenset(getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name))


async def system_lookup(name: str) -> Sequence[str]:
    """The addresses of a name by ``getaddrinfo``: hosts file, search list and name servers of the system."""
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NONE:
            return ()
        raise
    return [str(row[4][0]) for row in rows]


class DnsSource:
    """Engines at the A and AAAA addresses of a name, all at one port.

    ``getaddrinfo`` works in a thread that nothing can stop, for longer than a look may take when name servers are
    silent. So a look that was given up leaves its question behind, and the next one waits for the same answer: there is
    never more than one thread at work for a name.
    """

    name = Origin.DNS
    believes_empty = False

    def __init__(self, at: Address, lookup: Lookup = system_lookup) -> None:
        self.place = str(at)
        self._at = at
        self._lookup = lookup
        self._asked: asyncio.Task[Sequence[str] | DiscoveryFault] | None = None

    async def look(self) -> Sequence[EngineSpec]:
        """The engines there now. Raises ``DiscoveryFault``."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._ask(), name="dns-lookup")
        await asyncio.wait({self._asked})
        addresses, self._asked = self._asked.result(), None
        if isinstance(addresses, DiscoveryFault):
            raise addresses
        return engines_at(addresses, self._at.port, self._at.host.rstrip("."))

    async def _ask(self) -> Sequence[str] | DiscoveryFault:
        try:
            return await self._lookup(self._at.host)
        except OSError:
            return DiscoveryFault("cannot be looked up: name servers are silent or fail")

    async def close(self) -> None:
        """Wait for no answer any longer."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()
            await asyncio.wait({asked})
