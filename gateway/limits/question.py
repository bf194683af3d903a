"""What one admission asks of a shared store, and what the store's answer means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.limits import gcra
from gateway.limits.scripts import key_of
from gateway.model import Budget

PLACES = "places"


class Heads(NamedTuple):
    """How far ahead of now each TAT of a budget is, and its leases: ``verdict.Used`` at the time 0."""

    requests: float = 0.0
    tokens: float = 0.0
    day: float = 0.0
    in_flight: int = 0


class Figure(NamedTuple):
    """One limit that a request asks of: which budget's, its kind (a field of ``Heads``, or places) and key."""

    budget: int
    kind: str
    key: str
    units: int
    spacing: float
    period: float


def figures_of(budgets: Sequence[Budget], tokens: int) -> list[Figure]:
    """Every limit of the budgets that a request of ``tokens`` asks of."""
    found = []
    for index, (holder, limits) in enumerate(budgets):
        rates = (
            ("requests", limits.requests_per_minute, 1, gcra.MINUTE),
            ("tokens", limits.tokens_per_minute, tokens, gcra.MINUTE),
            ("day", limits.tokens_per_day, tokens, gcra.DAY),
        )
        for kind, figure, units, period in rates:
            if figure is not None:
                key = key_of(kind, holder)
                found.append(Figure(index, kind, key, units, gcra.spacing(figure, period), period))
        if limits.concurrency is not None:
            found.append(Figure(index, PLACES, key_of(PLACES, holder), limits.concurrency, 0.0, 0.0))
    return found


def read_answer(answer: Any, budgets: int, figures: Sequence[Figure]) -> tuple[bool, list[Heads]]:
    """Whether the request was admitted, and the counts of each budget.

    Raises ``ValueError`` or ``TypeError`` for an answer that does not fit the question.
    """
    if not isinstance(answer, list) or len(answer) != len(figures) + 1 or int(answer[0]) not in {0, 1}:
        raise ValueError("not an answer to this question")
    rows: list[dict[str, Any]] = [{} for _ in range(budgets)]
    for figure, number in zip(figures, answer[1:], strict=True):
        if figure.kind == PLACES:
            rows[figure.budget]["in_flight"] = int(number)
        else:
            rows[figure.budget][figure.kind] = float(number)
    return bool(int(answer[0])), [Heads(**row) for row in rows]


def reservable(budgets: Sequence[Budget], parts: Sequence[Budget], tokens: int) -> int:
    """What to reserve of the parts for a request of ``tokens`` that the whole figures would let pass.

    A request larger than the part must not be told that it never passes: it takes the whole part, and what it uses
    beyond puts the part in debt when it is settled, so that the rate holds.
    """
    if any(tokens > figure for figure in _token_figures(budgets)):
        return tokens
    return min([tokens, *_token_figures(parts)])


def _token_figures(budgets: Sequence[Budget]) -> list[int]:
    figures = [f for _, limits in budgets for f in (limits.tokens_per_minute, limits.tokens_per_day)]
    return [figure for figure in figures if figure is not None]
