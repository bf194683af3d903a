"""What may be ordered of an alias: one closed schema for each verb, the same for the admin API and the command line."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.admin.schemas import Closed
from gateway.aliasing.plan import MAX_TARGETS, MAX_WEIGHT
from gateway.model import Target
from gateway.policy.names import EXPECTED_MODEL, EXPECTED_NOTE, is_model, is_note

MAX_NUMBER = 2**53


def _model(text: str) -> str:
    if not is_model(text):
        raise ValueError(f"expected {EXPECTED_MODEL}")
    return text


def _note(text: str) -> str:
    if not is_note(text):
        raise ValueError(f"expected {EXPECTED_NOTE}")
    return text


Model = Annotated[str, AfterValidator(_model)]
Note = Annotated[str, AfterValidator(_note)]


class ChangeOrder(Closed):
    """What every change of an alias may say.

    ``expect_revision`` makes it a compare-and-set (0: the alias must not exist). ``force`` allows a model that no
    replica serves now, and the end of an alias that is in use.
    """

    note: Note = ""
    expect_revision: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    force: bool = False


class TargetOrder(Closed):
    """A served model and its share of the alias's traffic, relative to the others'."""

    model: Model
    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1


class AliasOrder(ChangeOrder):
    """An assignment to be made: of one ``model``, or of ``targets`` that share the traffic."""

    model: Model | None = None
    targets: Annotated[list[TargetOrder], Field(min_length=1, max_length=MAX_TARGETS)] | None = None
    source: Literal["api", "cli", "file"] = "api"

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.model is None) == (self.targets is None):
            raise ValueError("expected either model or targets")
        models = [target.model for target in self.targets or ()]
        if len(models) != len(set(models)):
            raise ValueError("targets: expected each model once")
        return self

    def aims(self) -> tuple[Target, ...]:
        """The targets as the rest of the gateway knows them."""
        if self.model is not None:
            return (Target(self.model),)
        return tuple(Target(target.model, target.weight) for target in self.targets or ())


class RollbackOrder(ChangeOrder):
    """A new revision that copies revision ``to``; ``None``: the last other one that has served."""

    to: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None


class CanaryOrder(ChangeOrder):
    """A trial: ``weight`` percent of the alias's traffic go to ``model``, the rest stays where it is."""

    model: Model
    weight: Annotated[int, Field(ge=1, le=99)] = 5


class PromoteOrder(ChangeOrder):
    """The end of a trial: all traffic goes to the model that was tried."""


class AbortOrder(ChangeOrder):
    """The end of a trial: all traffic goes back to what was there before."""


class DeleteOrder(ChangeOrder):
    """The end of an alias. Its revisions stay, and a rollback brings it back."""
