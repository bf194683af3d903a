"""The figures as text for people and as JSON values for programs. Pure, but for what it says of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from loadtests.fleet.report import LATE, host
from loadtests.routing.figures import STALL, STARVED, Figures, figures, first_errors
from loadtests.routing.goals import beside
from loadtests.routing.goals import lines as goal_lines
from loadtests.routing.runner import LEAD, Measured, Wish

_ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table."""

    title: str
    cell: Callable[[Figures], str]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f}"


COLUMNS: tuple[Column, ...] = (
    Column("TTFT p50", lambda row: milliseconds(row.ttft.p50)),
    Column("p90", lambda row: milliseconds(row.ttft.p90)),
    Column("p99 ms", lambda row: milliseconds(row.ttft.p99)),
    Column("end p50", lambda row: milliseconds(row.total.p50)),
    Column("p90", lambda row: milliseconds(row.total.p90)),
    Column("p99 ms", lambda row: milliseconds(row.total.p99)),
    Column("goodput/s", lambda row: "-" if row.goodput is None else f"{row.goodput:.1f}"),
    Column("hits %", lambda row: share(row.hit_rate)),
    Column("most %", lambda row: share(row.most)),
    Column("preempted", lambda row: f"{row.preemptions}"),
    Column("starved %", lambda row: share(row.starved)),
    Column("stall ms", lambda row: milliseconds(row.stall)),
    Column("requests", lambda row: f"{row.requests}"),
    Column("errors", lambda row: f"{row.errors}"),
)


def table(rows: Sequence[tuple[str, Figures]]) -> list[str]:
    """One line for each target under a line of titles, all in columns."""
    cells = [["", *(column.title for column in COLUMNS)]]
    cells += [[name, *(column.cell(row) for column in COLUMNS)] for name, row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    ]


def lines(measured: Sequence[Measured]) -> list[str]:
    """A table for each scenario, then ours beside the best of others, then what casts doubt on the figures."""
    text: list[str] = []
    for scenario in dict.fromkeys(each.scenario for each in measured):
        mine = [each for each in measured if each.scenario == scenario]
        text += [f"{scenario.name}: {scenario.summary}; goodput is within {scenario.limit:g} s"]
        text += [*table([(each.target.name, figures(each.runs, scenario.limit)) for each in mine]), ""]
    compared = goal_lines(beside(measured))
    return text + compared + ([""] if compared else []) + doubts(measured)


def doubts(measured: Sequence[Measured]) -> list[str]:
    """Targets that failed, errors, and runs in which the host was too busy."""
    text = []
    for each in measured:
        what = f"{each.scenario.name}, {each.target.name}"
        if each.failed:
            text.append(f"FAILED: {what}: {each.failed}")
        row = figures(each.runs)
        if row.late_p99 is not None and row.late_p99 > LATE:
            text.append(
                f"{what}: sent {row.late_p99 * 1000:.0f} ms late (p99): the host was too busy for these figures"
            )
        if row.starved is not None and row.starved > STARVED:
            text.append(
                f"{what}: waited {row.starved:.0%} of a run for a core: the host was too busy for these figures"
            )
        if row.stall > STALL:
            text.append(
                f"{what}: the engines stood still for {row.stall * 1000:.0f} ms: these figures are not the target's"
            )
        text += [f"ERROR: {what}: {error}" for error in first_errors(each.runs, _ERRORS_SHOWN)]
    return text


def document(measured: Sequence[Measured], wish: Wish) -> dict[str, object]:
    """The whole result, every request included: ``[at, ttft, total, error]`` in seconds."""
    return {
        "host": dict(host()),
        "wish": asdict(wish) | {"lead": LEAD},
        "beside": [asdict(each) | {"holds": each.holds} for each in beside(measured)],
        "results": [
            {
                "scenario": each.scenario.name,
                "target": each.target.name,
                "kind": each.target.kind,
                "limit": each.scenario.limit,
                "failed": each.failed,
                **asdict(row),
                "trusted": row.trusted,
                "runs": [
                    {
                        "engines": [asdict(engine) for engine in run.engines],
                        "starved": run.starved,
                        "stall": round(run.stall, 4),
                        "seconds": run.seconds,
                        "requests": [
                            [round(one.at, 3), one.ttft and round(one.ttft, 4), round(one.total, 4), one.error]
                            for one in run.answered
                        ],
                    }
                    for run in each.runs
                ],
            }
            for each in measured
            for row in [figures(each.runs, each.scenario.limit)]
        ],
    }


def sound(measured: Sequence[Measured]) -> bool:
    """Whether no target failed, and each had requests of which none failed."""
    rows = [figures(each.runs) for each in measured if not each.failed]
    return len(rows) == len(measured) and all(row.requests and not row.errors for row in rows)
