"""Entry point of the scenarios of overload and fairness: ``python -m loadtests.overload``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.__main__ import listing, stop, write
from loadtests.bench.procs import layout
from loadtests.overload import report, runner, scenarios, targets
from loadtests.overload.plot import NoPlotter, plot
from loadtests.routing.__main__ import tell

HELP = f"""Sends more than there is capacity for, and measures what is served in time, and whom it is served to.

Requests come whatever became of those before (an open loop), to four simulated engines with 8 slots each. Every run has
new engines and measures their capacity first: {runner.CAPACITY:.0f} s of a closed loop. In time is a first token within
{scenarios.TARGET:g} s; a client without one leaves after {scenarios.PATIENCE:g} s. Exit code 1: an answer was wrong, or
the test itself does not work; a goal that is missed is said and is no error.

\b
Scenarios:
{listing({each.name: each.summary for each in scenarios.SCENARIOS})}

\b
Targets:
{listing({each.name: each.summary for each in targets.TARGETS})}

\b
Examples:
  python -m loadtests.overload
      everything once: about 15 minutes
  python -m loadtests.overload --scenario overload --target gateway --obey
      clients that come again when they were told to: a minute and a half
  python -m loadtests.overload --repeat 3 --json result.json --plot result.png
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.command(help=HELP)
def main(
    *,
    scenario: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this one (repeatable).")] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this one (repeatable).")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also vllm-router, installed if it is missing.")] = False,
    obey: Annotated[
        bool, typer.Option("--obey", help="Clients come again after the time that a refusal told them.")
    ] = False,
    admission: Annotated[
        bool, typer.Option(help="Write the options of admission; without: for a gateway that has none.")
    ] = True,
    repeat: Annotated[int, typer.Option(min=1, max=20, help="Runs of each kind, each with arrivals of its own.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 6,
    json: Annotated[str, typer.Option(metavar="FILE", help="Write the result as JSON; - for stdout.")] = "",
    picture: Annotated[str, typer.Option("--plot", metavar="FILE", help="Draw goodput and times over time.")] = "",
) -> None:
    signal.signal(signal.SIGTERM, stop)
    try:
        chosen = scenarios.select(scenario or [])
        compared = targets.select(target or [], others=peers, admission=admission)
    except (scenarios.UnknownScenario, targets.UnknownTarget) as error:
        raise typer.BadParameter(str(error)) from error
    wish = runner.Wish(repeat, seed, obey)
    measured = runner.run_all(chosen, compared, wish, layout(os.sched_getaffinity(0)), tell)
    print("\n".join(report.lines(measured)), file=sys.stderr if json == "-" else sys.stdout, flush=True)
    if json:
        write(json, report.document(measured, wish))
    if picture:
        try:
            plot(measured, Path(picture))
        except NoPlotter as failed:
            tell(f"the test itself does not work: {failed}")
            raise typer.Exit(1) from failed
    raise typer.Exit(0 if report.sound(measured) else 1)


if __name__ == "__main__":
    app()
