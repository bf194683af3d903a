"""What one instance is made of, below its listeners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.admission.gate import Gate
from gateway.fleet.balance.balancer import Balancer
from gateway.fleet.open import Fleet
from gateway.fleet.registry import Registry
from gateway.identity.callers import Callers
from gateway.identity.keyring import KeyRing
from gateway.identity.secrets import Secrets
from gateway.identity.tokens import TokenRing
from gateway.limits.open import SharedLimits
from gateway.limits.sources import FailureGate
from gateway.policy.live import Policies
from gateway.policy.schemacap import SchemaCap
from gateway.settings import Settings
from gateway.steps.observe import Observer
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import StateStore
from gateway.supervise import Supervisor
from gateway.telemetry.metrics import Metrics
from gateway.wire.deadline import Sweeper


class Records(Protocol):
    """Where request records go, and how many were lost."""

    dropped: int

    def write(self, record: dict[str, Any]) -> None:
        """Take one record; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class Core:
    """Every object that the planes share."""

    settings: Settings
    policies: Policies
    held: Secrets
    sweeper: Sweeper
    store: StateStore
    keys: KeyRing
    tokens: TokenRing
    callers: Callers
    failures: FailureGate
    limits: SharedLimits
    schemas: SchemaCap
    aliases: AliasView
    fleet: Fleet
    balancer: Balancer
    gate: Gate
    metrics: Metrics
    records: Records
    observer: Observer
    supervisor: Supervisor

    @property
    def registry(self) -> Registry:
        """The replicas."""
        return self.fleet.registry
