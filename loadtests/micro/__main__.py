"""Entry point: ``python -m loadtests.micro``."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import orjson
import typer

from loadtests.micro.steps import Step, UnknownStep, select
from loadtests.micro.timing import Cost, measure

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Row = tuple[Step, Cost]


async def rows(steps: list[Step], repeats: int) -> list[Row]:
    """Each step with its cost."""
    found = []
    for step in steps:
        async with step.ready() as (run, times):
            cost = measure(run, times, repeats)
        found.append((step, Cost(cost.least / step.per, cost.usual / step.per)))
    return found


def is_over(step: Step, cost: Cost) -> bool:
    """Whether a step costs more than it may. The fastest run counts: what disturbs others is not the step's."""
    return step.bound is not None and cost.least > step.bound


def record(step: Step, cost: Cost) -> dict[str, Any]:
    """A row as ``--json`` has it."""
    figures = {"least_us": cost.least, "median_us": cost.usual, "bound_us": step.bound}
    return {"name": step.name, "what": step.what, **figures, "over": is_over(step, cost)}


def line(step: Step, cost: Cost) -> str:
    """A row of the table."""
    bound = "-" if step.bound is None else f"{step.bound:g}"
    verdict = "" if step.bound is None else "OVER" if is_over(step, cost) else "ok"
    return f"{step.name:<20} {cost.least:>9.2f} {cost.usual:>9.2f} {bound:>6} {verdict:<5} {step.what}"


@app.command()
def main(
    *,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this step (repeatable).")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each step.")] = 25,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when a step costs more than it may.")] = False,
) -> None:
    """Measure what single steps of the gateway cost: CPU microseconds in the fastest of many runs, and the median.

    A busy host makes all of them dearer; repeat before believing that a bound is broken.
    """
    try:
        steps = list(select(only or []))
    except UnknownStep as error:
        raise typer.BadParameter(str(error)) from error
    found = asyncio.run(rows(steps, repeat))
    if json:
        sys.stdout.buffer.write(orjson.dumps([record(*row) for row in found], option=orjson.OPT_INDENT_2) + b"\n")
    else:
        typer.echo(f"{'step':<20} {'least us':>9} {'median us':>9} {'bound':>6} {'':<5} what")
        for row in found:
            typer.echo(line(*row))
    raise typer.Exit(1 if check and any(is_over(*row) for row in found) else 0)


if __name__ == "__main__":
    app()
