"""What the comparison is for: the estimate beside the best peer and the oracle, and whether that is enough. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.stats import ratio
from loadtests.routing.figures import figures
from loadtests.routing.place import Kind
from loadtests.routing.runner import Measured
from loadtests.routing.targets import OURS

NEAR_ORACLE: Mapping[str, float] = {"retrieval": 1.25, "chat": 1.25, "mixed": 1.25}
"""By scenario: how many times the oracle's p90 of the time to first token ours may be."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Our p90 of the time to first token over another's. ``most`` is what it may be, ``None`` without a goal."""

    scenario: str
    other: str
    ratio: float
    most: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met; ``None`` without one. A peer has to be beaten, the oracle may be as good."""
        return None if self.most is None else self.ratio < self.most


def beside(measured: Sequence[Measured]) -> list[Beside]:
    """For each scenario the best peer and the oracle, as far as they and ours have figures that can be trusted."""
    found = []
    for scenario in dict.fromkeys(each.scenario.name for each in measured):
        mine = [each for each in measured if each.scenario.name == scenario]
        ours = _p90(each for each in mine if each.target.name == OURS)
        for kind, most in ((Kind.PEER, 1.0), (Kind.ORACLE, NEAR_ORACLE.get(scenario))):
            others = _p90(each for each in mine if each.target.kind is kind)
            if not (ours and others):
                continue
            best = min(others, key=others.__getitem__)
            if (times := ratio(ours[OURS], others[best])) is not None:
                found.append(Beside(scenario, best, times, most))
    return found


def _p90(measured: Iterable[Measured]) -> dict[str, float]:
    """By target; of those that failed, or that the host disturbed, there is none."""
    rows = {each.target.name: figures(each.runs) for each in measured if not each.failed}
    return {name: row.ttft.p90 for name, row in rows.items() if row.trusted and row.ttft.p90 is not None}


_WORD = {None: "", True: ", as it should be", False: ", MISSED"}


def lines(found: Sequence[Beside]) -> list[str]:
    """One line for each comparison."""
    return [
        f"{each.scenario}: {OURS} has {each.ratio:.2f} times the p90 TTFT of {each.other}"
        + ("" if each.most is None else f" (to be below {each.most:g}{_WORD[each.holds]})")
        for each in found
    ]
