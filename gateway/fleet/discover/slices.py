"""What EndpointSlices (discovery.k8s.io/v1) say about who is behind a Service. Pure.

Rules from the API's own documentation: of an endpoint's addresses only the first counts; a condition that is not given
means "ready", "serving" and "not terminating"; an endpoint may appear in several slices. A Service that publishes
endpoints that are not ready calls all of them ready, and says the truth in ``serving``; so both have to hold. An
endpoint that terminates leaves, whatever else is said of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from gateway.fleet.discover.addresses import engines_at
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.model import EngineSpec

Place: TypeAlias = tuple[str, int]
"""An address and a port."""

MAX_SLICES = 1_024
STRANGE = "does not answer as the Kubernetes API does"
_FAMILIES = frozenset({"IPv4", "IPv6"})


def read_slice(item: Any, port: int | str) -> tuple[str, frozenset[Place]]:
    """The name of a slice and where its ready endpoints are. Raises ``DiscoveryFault``.

    ``port`` is a number, or the name of a port that the slice gives the number of: none if it does not.
    """
    name = _member(_member(item, "metadata", dict), "name", str)
    number = port if isinstance(port, int) else _numbers(item).get(port)
    if item.get("addressType") not in _FAMILIES or number is None:
        return name, frozenset()
    return name, frozenset((_address(endpoint), number) for endpoint in _list(item, "endpoints") if _is_ready(endpoint))


def engines_of(slices: Iterable[frozenset[Place]], name: str) -> tuple[EngineSpec, ...]:
    """The engines in all slices, sorted; their certificates have to have ``name``. Raises ``DiscoveryFault``."""
    places = frozenset[Place]().union(*slices)
    if len(places) > MAX_ENGINES:
        raise DiscoveryFault(f"names more than {MAX_ENGINES} endpoints")
    ports = sorted({port for _, port in places})
    return tuple(
        spec for port in ports for spec in engines_at((address for address, at in places if at == port), port, name)
    )


def changed(
    slices: Mapping[str, frozenset[Place]], kind: Any, item: Any, port: int | str
) -> Mapping[str, frozenset[Place]]:
    """The slices after an event of a watch. Raises ``DiscoveryFault``."""
    name, places = read_slice(item, port)
    others = {other: held for other, held in slices.items() if other != name}
    if kind == "DELETED":
        return others
    if kind not in ("ADDED", "MODIFIED"):
        raise DiscoveryFault(STRANGE)
    if len(others) >= MAX_SLICES:
        raise DiscoveryFault(f"has more than {MAX_SLICES} slices")
    return {**others, name: places}


def version_of(item: Any) -> str:
    """The resource version of a list or an object. Raises ``DiscoveryFault``."""
    version: str = _member(_member(item, "metadata", dict), "resourceVersion", str)
    return version


def _is_ready(endpoint: Any) -> bool:
    says = _member(endpoint, "conditions", dict, {})
    return says.get("ready") is not False and says.get("serving") is not False and says.get("terminating") is not True


def _address(endpoint: Any) -> str:
    addresses = _list(endpoint, "addresses")
    if not addresses or not isinstance(addresses[0], str):
        raise DiscoveryFault(STRANGE)
    return addresses[0]


def _numbers(item: Any) -> Mapping[str, int]:
    """The numbers of a slice's ports by name."""
    ports = [port for port in _list(item, "ports") if isinstance(port, dict)]
    return {
        port["name"]: port["port"]
        for port in ports
        if isinstance(port.get("name"), str) and type(port.get("port")) is int and 0 < port["port"] <= 65_535
    }


def _list(item: Any, name: str) -> list[Any]:
    found: list[Any] = _member(item, name, list, [])
    return found


def _member(item: Any, name: str, kind: type, missing: Any = None) -> Any:
    """A member of a JSON object; ``missing`` if it is not there or null. Raises ``DiscoveryFault`` for another type."""
    found = item.get(name) if isinstance(item, dict) else None
    found = missing if found is None else found
    if not isinstance(item, dict) or not isinstance(found, kind):
        raise DiscoveryFault(STRANGE)
    return found
