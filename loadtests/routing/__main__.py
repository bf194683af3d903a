"""Entry point of the routing scenarios: ``python -m loadtests.routing``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.__main__ import listing, stop, write
from loadtests.bench.procs import layout
from loadtests.routing import report, runner, scenarios, targets
from loadtests.routing.plot import NoPlotter, plot

HELP = f"""Compares where requests are sent: the same arrivals through each target to four simulated engines.

Requests come whatever became of those before (an open loop). Every run has new engines with empty caches, and its first
{runner.LEAD:.0f} s of load do not count. Exit code 1: an answer was wrong, or the test itself does not work.

\b
Scenarios:
{listing({each.name: each.summary for each in scenarios.SCENARIOS})}

\b
Targets:
{listing({each.name: each.summary for each in targets.TARGETS})}

\b
Without --peers, targets of other routers are only measured where they are named.

\b
Examples:
  python -m loadtests.routing
      our strategies and the oracle once: about 20 minutes
  python -m loadtests.routing --peers --target estimate --target oracle --again 2
      the estimate beside all others: about 45 minutes, and first a minute for their installation
  python -m loadtests.routing --scenario retrieval --target estimate --target round-robin
      one comparison: about a minute
  python -m loadtests.routing --repeat 3 --json result.json --plot result.png
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@app.command(help=HELP)
def main(
    *,
    scenario: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this one (repeatable).")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this one (repeatable).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Time of one run that counts.")] = 20.0,
    peers: Annotated[bool, typer.Option("--peers", help="Other routers too, each of their policies.")] = False,
    repeat: Annotated[int, typer.Option(min=1, max=20, help="Runs of each kind, each with arrivals of its own.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 6,
    again: Annotated[int, typer.Option(min=0, max=9, help="Repeats of a run that the host disturbed, at most.")] = 0,
    json: Annotated[str, typer.Option(metavar="FILE", help="Write the result as JSON; - for stdout.")] = "",
    picture: Annotated[str, typer.Option("--plot", metavar="FILE", help="Draw times to first token.")] = "",
) -> None:
    signal.signal(signal.SIGTERM, stop)
    try:
        chosen, compared = scenarios.select(scenario or []), targets.select(target or [], others=peers)
    except (scenarios.UnknownScenario, targets.UnknownTarget) as error:
        raise typer.BadParameter(str(error)) from error
    wish = runner.Wish(seconds, repeat, seed, again)
    try:
        measured = runner.run_all(chosen, compared, wish, layout(os.sched_getaffinity(0)), tell)
        print("\n".join(report.lines(measured)), file=sys.stderr if json == "-" else sys.stdout, flush=True)
        if json:
            write(json, report.document(measured, wish))
        if picture:
            plot(measured, Path(picture))
    except NoPlotter as failed:
        tell(f"the test itself does not work: {failed}")
        raise typer.Exit(1) from failed
    raise typer.Exit(0 if report.sound(measured) else 1)


if __name__ == "__main__":
    app()
