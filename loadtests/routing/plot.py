"""Shares of requests by time to first token: one picture for each scenario, one line for each target.

What is left of the upright line is goodput.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtests.fleet.plot import NoPlotter
from loadtests.routing.figures import Run
from loadtests.routing.place import Kind
from loadtests.routing.runner import Measured

__all__ = ["NoPlotter", "curve", "plot"]

_STYLES = {Kind.OURS: "solid", Kind.PEER: "dashed", Kind.ORACLE: "dotted"}


def curve(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Times to first token in milliseconds, sorted, and the share of requests that had none longer."""
    answered = [each for run in runs for each in run.answered]
    known = sorted(each.ttft * 1000 for each in answered if each.ttft is not None and not each.error)
    return known, [(rank + 1) / len(known) for rank in range(len(known))]


def plot(measured: Sequence[Measured], path: Path) -> None:
    """Write a picture, its format by the suffix. Raises `NoPlotter`, OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise NoPlotter("a plot needs matplotlib: pip install 'gateway[loadtests]'") from None
    scenarios = list(dict.fromkeys(each.scenario for each in measured))
    figure = Figure(figsize=(6.5 * len(scenarios), 5), layout="constrained")
    FigureCanvasAgg(figure)
    for place, scenario in enumerate(scenarios):
        axes = figure.add_subplot(1, len(scenarios), place + 1)
        for each in measured:
            if each.scenario == scenario:
                axes.plot(
                    *curve(each.runs),
                    label=each.target.name,
                    drawstyle="steps-post",
                    linestyle=_STYLES[each.target.kind],
                )
        axes.set(title=scenario.name, xlabel="time to first token, ms", ylabel="share of requests", xscale="log")
        axes.axvline(scenario.limit * 1000, color="0.7", linewidth=0.8)
        axes.axhline(0.9, color="0.7", linewidth=0.8)
        axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path)
