"""``routing.yaml``: how requests are spread and replicas looked after. A folder may do without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.policy.admission import Admission, read_admission
from gateway.policy.balancing import Balancing, read_balancing
from gateway.policy.document import Document, Option, flag, read_options
from gateway.policy.fleet import FLEET_SECTIONS, FleetPolicy, read_fleet
from gateway.policy.reading import number

_CANARY: Mapping[str, Option] = MappingProxyType(
    {"abort": flag(False), "error_rate": number(0, 1, 0.02), "ttft_p95": number(1, 100, 1.5)}
)


@dataclass(frozen=True, slots=True)
class Canary:
    """When a trial is rolled back by itself: ``abort`` says whether at all, the rest how much worse is too much.

    ``error_rate`` is a difference of shares from 0 to 1, ``ttft_p95`` a factor on the 95th percentile.
    """

    abort: bool = False
    error_rate: float = 0.02
    ttft_p95: float = 1.5


@dataclass(frozen=True, slots=True)
class Routing:
    """All of ``routing.yaml``."""

    canary: Canary = Canary()
    fleet: FleetPolicy = field(default_factory=FleetPolicy)
    balancing: Balancing = field(default_factory=Balancing)
    admission: Admission = field(default_factory=Admission)


def parse_routing(text: str, source: str) -> Routing:
    """The routing policy that ``text`` says. Raises ``PolicyFault`` with every fault; ``source`` names the file."""
    document = Document(text, source)
    top = document.mapping(document.tree, "", ("canary", "balancing", "admission", *FLEET_SECTIONS))
    canary = read_options(document, top.get("canary", {}), "canary", _CANARY)
    fleet = read_fleet(document, top)
    balancing = read_balancing(document, top.get("balancing", {}))
    admission = read_admission(document, top.get("admission", {}))
    document.finish()
    return Routing(Canary(**canary), fleet, balancing, admission)
