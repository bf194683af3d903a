"""Entry point of the fleet's load tests: ``python -m loadtests.fleet``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.__main__ import stop, write
from loadtests.bench.procs import StartFailed, layout
from loadtests.fleet import coldstart as cold
from loadtests.fleet import report
from loadtests.fleet import scale as large
from loadtests.fleet.plot import NoPlotter, plot
from loadtests.fleet.report import Verdict
from loadtests.fleet.stand import AdminFailed

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="What users notice of cold replicas; what looking after many replicas costs. Exit code 1: a bound is broken.",
)

Json = Annotated[str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def finish(lines: Sequence[str], document: dict[str, object], verdicts: Sequence[Verdict], path: str) -> None:
    """Show and write the result. Raises `typer.Exit`."""
    print("\n".join(lines), file=sys.stderr if path == "-" else sys.stdout, flush=True)
    if path:
        write(path, document)
    raise typer.Exit(0 if all(verdict.met for verdict in verdicts) else 1)


@app.command()
def coldstart(
    *,
    seconds: Annotated[float, typer.Option(min=5, help="Length of one run.")] = 60.0,
    every: Annotated[float, typer.Option(min=1, help="Seconds between two additions.")] = 10.0,
    rate: Annotated[float, typer.Option(min=0.5, max=100, help="Streams that are begun in a second.")] = 10.0,
    repeat: Annotated[int, typer.Option(min=1, max=20, help="Runs of each kind, in turns.")] = 1,
    no_warmup: Annotated[
        bool, typer.Option("--no-warmup", help="For contrast: a policy that warms nothing up.")
    ] = False,
    json: Json = "",
    picture: Annotated[str, typer.Option("--plot", metavar="FILE", help="Draw the last run of each kind.")] = "",
) -> None:
    """Add replicas that start cold, under load, beside a run in which all are warm from the start."""
    signal.signal(signal.SIGTERM, stop)
    wish = cold.Wish(seconds=seconds, every=every, rate=rate, warmup=not no_warmup)
    cores = layout(os.sched_getaffinity(0))
    sides: dict[bool, list[cold.Side]] = {False: [], True: []}
    try:
        for _ in range(repeat):
            for add in (False, True):
                sides[add].append(cold.run(wish, cores, tell, add=add))
        if picture:
            plot(sides[True][-1], sides[False][-1], Path(picture))
    except (StartFailed, AdminFailed, NoPlotter) as failed:
        tell(f"the test itself does not work: {failed}")
        raise typer.Exit(1) from failed
    result = report.ColdStart(wish, sides[True], sides[False])
    finish(report.coldstart_lines(result), report.coldstart_document(result), result.verdicts(), json)


@app.command()
def scale(
    *,
    replicas: Annotated[int, typer.Option(min=1, max=1000, help="Of the fleet that is judged.")] = 256,
    seconds: Annotated[float, typer.Option(min=1, help="Measured time; a canary comes to each idle one in 30.")] = 30.0,
    busy: Annotated[float, typer.Option(min=0, max=1, help="Share of the engines that have work of others.")] = 0.5,
    json: Json = "",
) -> None:
    """Look after many replicas while no user asks for anything; first the same with three."""
    signal.signal(signal.SIGTERM, stop)
    cores = layout(os.sched_getaffinity(0))
    try:
        runs = [large.measure(count, busy, seconds, cores, tell) for count in large.fleets(replicas)]
    except StartFailed as failed:
        tell(f"the test itself does not work: {failed}")
        raise typer.Exit(1) from failed
    finish(report.scale_lines(runs), report.scale_document(runs), report.scale_verdicts(runs[-1]), json)


if __name__ == "__main__":
    app()
