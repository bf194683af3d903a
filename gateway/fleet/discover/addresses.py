"""From the addresses that a name led to, to engines. Pure.

Who answers for a name can be somebody else: DNS is neither signed nor encrypted here, and a cluster's API believes
whoever may write to it. So what is found is only where to knock. An engine elsewhere is always reached by TLS and has
to show a certificate for the name that ops have listed in ``remote_engines``: an attacker who steers the answers can
make engines unreachable, or favour some that may hold prompts anyway, and no more. What TLS does not cover is refused
here: addresses that mean this host, where a forged answer would have us knock at local services that trust whoever
comes from loopback; and with them those that no engine has (link-local ones, where clouds keep their metadata services,
multicast, none at all).

``localhost`` is the one name that leads to this host, by definition (RFC 6761, section 6.3), so engines there need no
TLS: wherever else that name should lead to is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address

from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.model import EngineSpec

LOCAL = "localhost"


def engines_at(addresses: Iterable[str], port: int, name: str) -> tuple[EngineSpec, ...]:
    """The engines at a port of the addresses that ``name`` led to, sorted. Raises ``DiscoveryFault``.

    One address that cannot be right spoils the whole answer: whoever mixed it in may have made the others too.
    """
    found = sorted({_judged(address, name) for address in addresses}, key=lambda address: (address.version, address))
    if len(found) > MAX_ENGINES:
        raise DiscoveryFault(f"leads to more than {MAX_ENGINES} addresses")
    if name == LOCAL:
        return tuple(EngineSpec(f"http://{_host(address)}:{port}") for address in found)
    return tuple(EngineSpec(f"https://{_host(address)}:{port}", server_name=name) for address in found)


def _judged(text: str, name: str) -> IPv4Address | IPv6Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise DiscoveryFault("leads to something that is no address") from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise DiscoveryFault("leads to a link-local address, where no engine is")
        address = address.ipv4_mapped or address
    if address.is_loopback:
        if name != LOCAL:
            raise DiscoveryFault("leads to this host's own loopback address, as a forged answer would")
    elif name == LOCAL:
        raise DiscoveryFault("leads away from this host, which that name never may")
    elif address.is_link_local or address.is_unspecified or address.is_multicast:
        raise DiscoveryFault("leads to a link-local, multicast or empty address, where no engine is")
    return address


def _host(address: IPv4Address | IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)
