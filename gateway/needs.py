"""What the request path needs of the parts around it, as it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import EngineFailure
from gateway.model import AliasTable, Revision
from gateway.policy.live import Policy
from gateway.steps.forward import Lane
from gateway.steps.pick import Candidate


class ReplicaLane(Lane, Candidate, Protocol):
    """A replica: a lane to forward on and a candidate to pick."""

    @property
    def id(self) -> str:
        """Its name in records and metrics."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it has just said that its queue is full."""
        ...

    def note_success(self) -> None:
        """An attempt there was answered to its end."""
        ...

    def note_failure(self, error: EngineFailure) -> None:
        """An attempt there failed."""
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
