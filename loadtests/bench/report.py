"""The figures as tables for people and as JSON for programs."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bench.figures import Book, Row, Verdict, ratios, verdicts
from loadtests.bench.runner import Bench, Plan
from loadtests.bench.scenarios import SCENARIOS, Scenario
from loadtests.bench.targets import BASELINE, TARGETS

PLAIN_WIDTH = 200
"""Columns when the output is a file or a pipe: wide enough that no cell is cut."""

BUSY_LOAD = 0.5
"""Load average above which others' work on the host shows in the figures."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure in the tables."""

    title: str
    name: str
    form: str
    only: frozenset[str] = frozenset()
    """Scenarios that show it; empty for all."""
    scale: float = 1.0


STREAM = frozenset({"stream"})
COLUMNS: tuple[Column, ...] = (
    Column("requests/s", "rate", "{:,.0f}"),
    Column("CPU us/request", "cpu_us", "{:,.1f}"),
    Column("CPU us/chunk", "chunk_us", "{:,.1f}", STREAM),
    Column("raw us/chunk", "chunk_raw_us", "{:,.1f}", STREAM),
    Column("p50 ms", "p50_ms", "{:,.2f}"),
    Column("p99 ms", "p99_ms", "{:,.2f}"),
    Column("TTFT p50 ms", "ttft_p50_ms", "{:,.2f}", STREAM),
    Column("TTFT p99 ms", "ttft_p99_ms", "{:,.2f}", STREAM),
    Column("added ms", "added_ms", "{:+,.2f}", frozenset({"chat-1"})),
    Column("RSS MB", "rss_mb", "{:,.0f}"),
    Column("core %", "busy", "{:,.0f}", scale=100.0),
)


def cell(figure: float | None, column: Column) -> str:
    return "-" if figure is None else column.form.format(figure * column.scale)


def spread_cell(row: Row) -> str:
    """How far the repeats disagree on CPU: the figure that decides."""
    apart = row.spread.chunk_us if row.median.chunk_us is not None else row.spread.cpu_us
    return "-" if apart is None else f"{apart * 100:.0f} %"


def columns_of(scenario: str) -> list[Column]:
    return [column for column in COLUMNS if not column.only or scenario in column.only]


def scenario_table(scenario: Scenario, rows: Book, unavailable: Mapping[str, str], style: box.Box) -> Table:
    """All targets on one scenario, medians of the repeats."""
    table = Table(title=f"{scenario.name}: {scenario.summary}", box=style, title_justify="left")
    columns = columns_of(scenario.name)
    table.add_column("target", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right")
    table.add_column("CPU spread", justify="right")
    table.add_column("errors", justify="right")
    for target in TARGETS:
        if (row := rows.get((scenario.name, target.name))) is not None:
            figures = [cell(getattr(row.median, column.name), column) for column in columns]
            table.add_row(target.name, *figures, spread_cell(row), f"{row.errors}")
        elif target.name in unavailable and scenario.suits(target.name):
            table.add_row(target.name, "not run", *([""] * (len(columns) + 1)))
    return table


def ratio_table(shares: Mapping[str, Mapping[str, float]], style: box.Box) -> Table:
    """The gateway's figures divided by the baseline's: below 1 is better, except for requests/s."""
    title = f"gateway / {BASELINE} (below 1 is better, except requests/s)"
    table = Table(title=title, box=style, title_justify="left")
    shown = [column for column in COLUMNS if any(column.name in each for each in shares.values())]
    table.add_column("scenario", no_wrap=True)
    for column in shown:
        table.add_column(column.title.removesuffix(" ms").removesuffix(" MB"), justify="right")
    for scenario, each in shares.items():
        visible = {column.name for column in columns_of(scenario)}
        cells = [f"{each[c.name]:.2f}" if c.name in each and c.name in visible else "-" for c in shown]
        table.add_row(scenario, *cells)
    return table


def goal_table(judged: Sequence[Verdict], style: box.Box) -> Table:
    table = Table(title="goals", box=style, title_justify="left")
    for title in ("goal", "at most", "measured", ""):
        table.add_column(title, justify="left" if title == "goal" else "right")
    for verdict in judged:
        measured = f"{verdict.measured:.2f}"
        table.add_row(verdict.what, f"{verdict.limit:g}", measured, "met" if verdict.met else "MISSED")
    return table


def wide(*, stderr: bool = False) -> Console:
    """A console for the tables."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PLAIN_WIDTH)


def render(bench: Bench, rows: Book, console: Console) -> None:
    """Prints everything; as plain Markdown tables when the console is no terminal."""
    style = box.SIMPLE_HEAD if console.is_terminal else box.MARKDOWN
    tables = [
        scenario_table(scenario, rows, bench.unavailable, style)
        for scenario in SCENARIOS
        if any(key[0] == scenario.name for key in rows)
    ]
    if shares := ratios(rows):
        tables.append(ratio_table(shares, style))
    if judged := verdicts(rows):
        tables.append(goal_table(judged, style))
    for table in tables:
        console.print(table)
        console.print()
    for text in remarks(bench, rows):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def remarks(bench: Bench, rows: Book) -> list[str]:
    """What the tables cannot say: notes on the machine, targets left out, errors."""
    notes = [bench.cores.note] if bench.cores.note else []
    if bench.load_before > BUSY_LOAD:
        notes.append(f"the host was busy before the start (load average {bench.load_before:.2f}): trust ratios only")
    notes += [f"{name} was not run: {why}" for name, why in bench.unavailable.items()]
    return notes + [f"ERROR {row.scenario}, {row.target}: {why}" for row in rows.values() for why in row.first_errors]


def document(bench: Bench, rows: Book, plan: Plan) -> dict[str, object]:
    """The whole result as JSON values. Figures are named as in `figures.Figures`, times in their names' units."""
    return {
        "host": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "pinning": {name: sorted(getattr(bench.cores, name)) for name in ("target", "engine", "load")},
            "note": bench.cores.note,
            "load_before": bench.load_before,
        },
        "plan": asdict(plan),
        "versions": {target.name: target.version for target in TARGETS if target.version},
        "results": [asdict(row) for row in rows.values()],
        "ratios": {f"gateway/{BASELINE}": ratios(rows)},
        "goals": [asdict(verdict) for verdict in verdicts(rows)],
        "unavailable": bench.unavailable,
        "errors": sum(row.errors for row in rows.values()),
    }
