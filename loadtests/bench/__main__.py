"""Entry point of the benchmark: ``python -m loadtests.bench``."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated

import orjson
import typer
from rich.console import Console

from loadtests.bench import figures, report, scenarios, targets
from loadtests.bench.procs import StartFailed
from loadtests.bench.runner import Bench, Plan, bench


def listing(entries: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<15} {summary}" for name, summary in entries.items())


HELP = f"""Measures what the gateway costs, next to a direct run and, with --peers, next to other routers.

A canned engine that computes nothing stands behind every target, so what is measured is the target. The target runs
alone on the first core; engine and load generator share the others. CPU is user and system time of its whole process
tree, from /proc. Every answer is checked: one wrong answer fails the run (exit code 1).

Targets take turns (A B C, A B C), so a noisy minute hits all alike. Figures are medians over the repeats; "CPU spread"
is (largest - smallest) / median: distrust differences that are smaller. "core %" near 100 says that the target was the
limit; below that the load generator was, and requests/s says nothing about the target.

\b
Scenarios:
{listing({each.name: each.summary for each in scenarios.SCENARIOS})}

\b
Targets:
{listing({each.name: each.summary for each in targets.TARGETS})}

\b
Examples:
  python -m loadtests.bench
      direct and gateway, all scenarios: about 2 minutes
  python -m loadtests.bench --peers --json result.json
      all targets: about 10 minutes, once the peers are installed
  python -m loadtests.bench --scenario chat --repeat 9
      one scenario, more certainty
  python -m loadtests.bench --target direct --target nginx
      calibrates the bench without the gateway

Peers are installed once, under $XDG_CACHE_HOME/gateway-loadtests (default ~/.cache).
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def stop(number: int, frame: FrameType | None) -> None:
    """Turns a termination signal into an exit that ends the children."""
    raise SystemExit(128 + number)


def write(path: str, content: dict[str, object]) -> None:
    text = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if path == "-":
        sys.stdout.buffer.write(text)
    else:
        Path(path).write_bytes(text)


def sound(result: Bench, rows: figures.Book) -> bool:
    """No wrong answer, and nothing missing but peers."""
    peers = {target.name for target in targets.TARGETS if target.peer}
    return bool(rows) and not any(row.errors for row in rows.values()) and set(result.unavailable) <= peers


@app.command(help=HELP)
def main(
    *,
    peers: Annotated[bool, typer.Option("--peers", help="Also measure the peers; installs what is missing.")] = False,
    scenario: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this one (repeatable).")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this one (repeatable).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of one run.")] = 3.0,
    requests: Annotated[int, typer.Option(min=0, help="Most requests in one run; 0 leaves it to --seconds.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each scenario on each target.")] = 3,
    json: Annotated[str, typer.Option(metavar="FILE", help="Write the result as JSON; - for stdout.")] = "",
) -> None:
    signal.signal(signal.SIGTERM, stop)
    progress = Console(stderr=True, highlight=False)
    plan = Plan(seconds=seconds, requests=requests, repeat=repeat)
    try:
        chosen = scenarios.select(scenario or [])
        measured = targets.select(target or [], peers=peers)
    except (scenarios.UnknownScenario, targets.UnknownTarget) as error:
        raise typer.BadParameter(str(error)) from error
    available = frozenset(os.sched_getaffinity(0))
    try:
        result = bench(
            chosen, measured, plan, available, lambda text: progress.print(text, markup=False, soft_wrap=True)
        )
    except StartFailed as error:
        progress.print(f"the bench itself does not work: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    rows = figures.book(result.samples)
    report.render(result, rows, report.wide(stderr=json == "-"))
    if json:
        write(json, report.document(result, rows, plan))
    raise typer.Exit(0 if sound(result, rows) else 1)


if __name__ == "__main__":
    app()
