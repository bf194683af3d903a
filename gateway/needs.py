"""What the request path needs of the parts around it, as it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.errors import EngineFailure
from gateway.model import AliasTable, InferenceRequest, Revision
from gateway.policy.live import Policy
from gateway.steps.forward import Lane
from gateway.telemetry.trace import Trace


class ReplicaLane(Protocol):
    """A replica: a candidate to pick."""

    @property
    def id(self) -> str:
        """Its name in records and metrics."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it has just said that its queue is full."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of this instance that it is serving."""
        ...

    @property
    def proven(self) -> bool:
        """Whether it is ready, and not on its way back."""
        ...

    @property
    def models(self) -> Sequence[str]:
        """What it serves."""
        ...

    def note_success(self) -> None:
        """An attempt there was answered to its end."""
        ...

    def note_failure(self, error: EngineFailure) -> None:
        """An attempt there failed."""
        ...


class Choice(Protocol):
    """Where one request goes, at each of its attempts."""

    def among(self, candidates: Sequence[Any], /) -> Any:
        """One of the candidates that has room, or ``None``."""
        ...

    def lane(self, replica: Any, /) -> Lane:
        """The replica as what the request is sent along."""
        ...

    def learn(self, trace: Trace) -> None:
        """The request was answered to its end."""
        ...


class Balancer(Protocol):
    """How replicas are chosen."""

    def consider(
        self,
        request: InferenceRequest,
        alias: str,
        model: str,
        salt: str | None,
        *,
        request_id: str,
        tenant: str,
        session: bytes | None,
    ) -> Choice:
        """The choice for a request. ``salt`` is what keeps its tenant's prefixes apart, if anything does; ``session``
        what the client says its requests belong to, one of its tenant's."""
        ...


class Fleet(Protocol):
    """Who can serve what, now."""

    def ready(self, model: str) -> Sequence[ReplicaLane]:
        """Replicas that may get requests for the model."""
        ...

    def back_in(self, model: str) -> int:
        """In how many seconds a request that nobody can serve now is worth another try."""
        ...

    def max_model_len(self, model: str) -> int | None:
        """The longest context that every one of them has; ``None``: not known."""
        ...

    def any_ready(self) -> bool:
        """Whether anything can be served at all."""
        ...


class Aliases(Protocol):
    """The alias table as this instance knows it."""

    @property
    def table(self) -> AliasTable:
        """A snapshot; a request reads it once."""
        ...

    async def revision(self, alias: str, number: int) -> Revision | None:
        """A revision that is not current; ``None``: there is none of that number. Raises ``Unavailable``."""
        ...


class Policies(Protocol):
    """The policy in force. ``epoch`` moves when it changes."""

    @property
    def policy(self) -> Policy:
        """A snapshot; a request reads it once."""
        ...

    @property
    def epoch(self) -> int: ...


class Schemas(Protocol):
    """Which schemas each tenant has used lately."""

    def admit(self, tenant: str, digest: bytes) -> None:
        """Count a use of one. Raises ``Refusal``: one too many."""
        ...
