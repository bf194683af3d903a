"""The figures as text for people and as JSON values for programs. Pure, but for what it says of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from loadtests.bench.stats import percentile
from loadtests.fleet.report import LATE, host
from loadtests.overload.figures import Row
from loadtests.overload.goals import Goal, goals
from loadtests.overload.result import Run
from loadtests.overload.runner import CAPACITY, LEAD, Measured, Wish
from loadtests.routing.figures import STALL, STARVED
from loadtests.routing.report import milliseconds

_ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table."""

    title: str
    cell: Callable[[Row], str]


def percent(part: float, whole: float) -> str:
    return f"{part / whole * 100:.0f}" if whole else "-"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def refusals(refused: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(refused.items())) or "-"


COLUMNS: tuple[Column, ...] = (
    Column("sent", lambda row: f"{row.sent}"),
    Column("again", lambda row: f"{row.again}"),
    Column("served %", lambda row: percent(row.served, row.sent + row.again)),
    Column("in time %", lambda row: percent(row.in_time, row.sent + row.again)),
    Column("left", lambda row: f"{row.gave_up}"),
    Column("wrong", lambda row: f"{row.wrong}"),
    Column("TTFT p50", lambda row: milliseconds(row.ttft.p50)),
    Column("p90", lambda row: milliseconds(row.ttft.p90)),
    Column("p99 ms", lambda row: milliseconds(row.ttft.p99)),
    Column("queue p50", lambda row: milliseconds(row.queued.p50)),
    Column("p99 ms", lambda row: milliseconds(row.queued.p99)),
    Column("goodput", lambda row: f"{row.goodput:,.0f}"),
    Column("answers", lambda row: f"{row.rate:,.0f}"),
    Column("served tokens", lambda row: f"{row.cost:,.0f}"),
    Column("Retry-After p50", lambda row: seconds(row.retry_after.p50)),
    Column("p99 s", lambda row: seconds(row.retry_after.p99)),
    Column("refused", lambda row: refusals(row.refused)),
)


def table(rows: Sequence[Row]) -> list[str]:
    """One line for each row under a line of titles, all in columns."""
    cells = [["", "", *(column.title for column in COLUMNS)]]
    cells += [[row.phase, row.caller, *(column.cell(row) for column in COLUMNS)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if place in (0, 1, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def figure(value: float | None, unit: str) -> str:
    return "not measured" if value is None else f"{value:.2f}{' ' if unit else ''}{unit}"


def verdict(goal: Goal) -> str:
    """A goal, its figure, and whether that is good enough."""
    limit = figure(goal.limit, goal.unit)
    return (
        f"  {'met   ' if goal.met else 'MISSED'}  {goal.text}: {figure(goal.value, goal.unit)} {goal.relation} {limit}"
    )


def lines(measured: Sequence[Measured]) -> list[str]:
    """For each scenario and target tables and goals of its runs, then what casts doubt on the figures."""
    text: list[str] = []
    for scenario in dict.fromkeys(each.scenario.name for each in measured):
        mine = [each for each in measured if each.scenario.name == scenario]
        text += [f"{scenario}: {mine[0].scenario.summary}", ""]
        for each in mine:
            for number, run in enumerate(each.runs):
                text += [*_of_run(each, number, run), ""]
    return text + doubts(measured)


def _of_run(measured: Measured, number: int, run: Run) -> list[str]:
    which = f", run {number + 1}" if len(measured.runs) > 1 else ""
    known = f"capacity {run.capacity.requests:.1f} requests/s, {run.capacity.tokens:,.0f} tokens/s"
    rows = [*run.rows, *([run.reference] if run.reference else [])]
    return [f"{measured.target.name}{which}: {known}", *table(rows), *map(verdict, goals(run))]


def doubts(measured: Sequence[Measured]) -> list[str]:
    """Targets that failed, wrong answers, and runs in which the host was too busy."""
    text = []
    for each in measured:
        what = f"{each.scenario.name}, {each.target.name}"
        if each.failed:
            text.append(f"FAILED: {what}: {each.failed}")
        for run in each.runs:
            text += [f"{what}: {doubt}: the host was too busy for these figures" for doubt in _busy(run)]
            wrong = dict.fromkeys(attempt.heard.error for attempt in run.attempts if attempt.heard.error)
            text += [f"ERROR: {what}: {error}" for error in list(wrong)[:_ERRORS_SHOWN]]
    return text


def _busy(run: Run) -> list[str]:
    late = percentile(sorted(attempt.late for attempt in run.attempts), 0.99) or 0.0
    found = (
        (late > LATE, f"sent {late * 1000:.0f} ms late (p99)"),
        ((run.host.starved or 0.0) > STARVED, f"waited {run.host.starved or 0.0:.0%} of a run for a core"),
        (run.host.stall > STALL, f"the engines stood still for {run.host.stall * 1000:.0f} ms"),
    )
    return [text for doubtful, text in found if doubtful]


def document(measured: Sequence[Measured], wish: Wish) -> dict[str, object]:
    """The whole result, every attempt included: see the keys of ``attempts``. Times in seconds."""
    return {
        "host": dict(host()),
        "wish": asdict(wish) | {"capacity": CAPACITY, "lead": LEAD},
        "results": [
            {
                "scenario": each.scenario.name,
                "target": each.target.name,
                "failed": each.failed,
                "runs": [_document(run) for run in each.runs],
            }
            for each in measured
        ],
    }


def _document(run: Run) -> dict[str, object]:
    return {
        "capacity": asdict(run.capacity),
        "host": asdict(run.host),
        "phases": [{"phase": span.phase.name, "begin": span.begin, "end": span.end} for span in run.spans],
        "rows": [asdict(row) for row in run.rows],
        "reference": run.reference and asdict(run.reference),
        "goals": [asdict(goal) | {"met": goal.met} for goal in goals(run)],
        "attempts": [
            {
                "phase": each.request.phase,
                "caller": each.request.caller,
                "number": each.number,
                "at": round(each.at, 3),
                "total": round(each.total, 4),
                **asdict(each.heard),
            }
            for each in run.attempts
        ],
    }


def sound(measured: Sequence[Measured]) -> bool:
    """Whether no target failed, and no answer was wrong. A goal that is missed is a figure, not a fault of the test."""
    runs = [run for each in measured for run in each.runs]
    failed = any(each.failed or not each.runs for each in measured)
    return bool(measured) and not failed and not any(row.wrong for run in runs for row in run.rows)
