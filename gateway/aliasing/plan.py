"""What to assign next: decisions about one alias, from its revisions. Pure.

Weights are relative, so that two lists of targets are the same when they give each model the same share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from gateway.model import Revision, Target
from gateway.policy.names import EXPECTED_MODEL, is_model

MAX_TARGETS = 16
MAX_WEIGHT = 100


class PlanFault(Exception):
    """What was asked for is refused. ``words`` say why and what to do next."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


class Difference(NamedTuple):
    """One row of a comparison of two revisions: of what (a model, or ``note``), before and after."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before or 'none'} -> {self.after or 'none'}"


def rollback_to(
    history: Sequence[Revision], uses: Mapping[int, float], to: int | None = None, *, deleted: bool = False
) -> Revision:
    """The revision whose targets a rollback assigns again. Raises ``PlanFault``.

    ``history`` is all revisions of the alias, oldest first; ``uses`` says when a revision last served (Unix seconds),
    for those that ever did; ``to`` names one. Without ``to`` it is the newest that differs from the current one and
    has served, or, where none has, the newest that differs. A canary is never gone back to: it was a trial of
    something else, and a rollback while one runs is its abort. Of an alias that is ``deleted`` any revision may be
    named, and the one it had last may be chosen.
    """
    last = _last(history)
    if to is not None:
        return _named(history, to, deleted=deleted)
    if last.canary_of is not None:
        return aborted(history)
    if deleted:
        return last
    shares = shares_of(last.targets)
    earlier = [one for one in reversed(history[:-1]) if one.canary_of is None and shares_of(one.targets) != shares]
    if not earlier:
        raise PlanFault(f"{last.alias} has never been assigned to anything else; set it to the model it should have")
    return next((one for one in earlier if one.number in uses), earlier[0])


def canary_targets(current: Revision, model: str, weight: int) -> tuple[Target, ...]:
    """The targets of a trial of ``model`` with ``weight`` percent (1 to 99) of the traffic. Raises ``PlanFault``."""
    if not is_model(model):
        raise PlanFault(f"expected {EXPECTED_MODEL}")
    if not 1 <= weight <= 99:
        raise PlanFault("a canary gets 1 to 99 percent; to give it all, set the alias to the model")
    if current.canary_of is not None:
        raise PlanFault(f"a canary of {current.alias} runs as revision {current.number}; promote or abort it first")
    if len(current.targets) > 1:
        raise PlanFault(f"{current.alias} has {len(current.targets)} targets; set it to one model first")
    stable = current.targets[0].model
    if model == stable:
        raise PlanFault(f"{current.alias} has that model already; name the one to try")
    return Target(stable, 100 - weight), Target(model, weight)


def promoted(current: Revision) -> tuple[Target, ...]:
    """The targets once the model that is tried has won. Raises ``PlanFault``."""
    if current.canary_of is None:
        raise PlanFault(f"no canary of {current.alias} runs; start one, or set the alias to the model")
    return (Target(current.targets[-1].model),)


def aborted(history: Sequence[Revision]) -> Revision:
    """The revision that the running canary would have replaced. Raises ``PlanFault``."""
    last = _last(history)
    if last.canary_of is None:
        raise PlanFault(f"no canary of {last.alias} runs; to go back to an earlier revision, roll back")
    return _named(history, last.canary_of)


def targets_of(pairs: Iterable[tuple[str, int]]) -> tuple[Target, ...]:
    """Targets out of models and weights, as a person names them. Raises ``PlanFault`` that says all that is wrong."""
    targets = tuple(Target(model, weight) for model, weight in pairs)
    models = [target.model for target in targets]
    wrong = {
        f"name 1 to {MAX_TARGETS} models": not 1 <= len(targets) <= MAX_TARGETS,
        f"expected {EXPECTED_MODEL}": not all(map(is_model, models)),
        f"a weight is a whole number between 1 and {MAX_WEIGHT}": not all(is_weight(one.weight) for one in targets),
        "name each model once": len(set(models)) < len(models),
    }
    if any(wrong.values()):
        raise PlanFault("; ".join(words for words, held in wrong.items() if held))
    return targets


def is_weight(value: object) -> bool:
    """Whether ``value`` may be a target's weight."""
    return type(value) is int and 1 <= value <= MAX_WEIGHT


def shares_of(targets: Iterable[Target]) -> dict[str, Fraction]:
    """The share of the traffic that each model gets. They sum to 1."""
    listed = tuple(targets)
    total = sum(target.weight for target in listed)
    return {target.model: Fraction(target.weight, total) for target in listed}


def diff(one: Revision, other: Revision) -> list[Difference]:
    """What changes from ``one`` to ``other``: each model whose share differs, what it is a trial of, and the note."""
    before, after = shares_of(one.targets), shares_of(other.targets)
    rows = [Difference(model, _percent(before.get(model)), _percent(after.get(model))) for model in before | after]
    rows.append(Difference("canary of", _number(one.canary_of), _number(other.canary_of)))
    rows.append(Difference("note", one.note, other.note))
    return [row for row in rows if row.before != row.after]


def describe_targets(targets: Iterable[Target]) -> str:
    """Targets in words: the model alone, or each with its share."""
    shares = shares_of(targets)
    return next(iter(shares)) if len(shares) == 1 else ", ".join(f"{m} {_percent(part)}" for m, part in shares.items())


def _last(history: Sequence[Revision]) -> Revision:
    if not history:
        raise PlanFault("there is no such alias; set it to a model first")
    return history[-1]


def _named(history: Sequence[Revision], number: int, *, deleted: bool = False) -> Revision:
    last = history[-1]
    found = next((one for one in history if one.number == number), None)
    if found is None:
        raise PlanFault(f"{last.alias} has no revision {number}; its newest is {last.number}, its history lists all")
    if found.number == last.number and not deleted:
        raise PlanFault(f"{last.alias} is at revision {number} already; name an earlier one")
    if found.canary_of is not None:
        raise PlanFault(
            f"revision {number} of {last.alias} was a canary of revision {found.canary_of}; "
            "go back to that one, or start a canary again"
        )
    return found


def _percent(share: Fraction | None) -> str:
    return "" if share is None else f"{float(share * 100):.4g} %"


def _number(revision: int | None) -> str:
    return "" if revision is None else f"revision {revision}"
