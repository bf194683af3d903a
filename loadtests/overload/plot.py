"""Goodput and times to first token over time: a pair of pictures for each scenario, a column for each target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests.fleet.plot import NoPlotter
from loadtests.overload.figures import over_time, refused, served
from loadtests.overload.result import Run
from loadtests.overload.runner import Measured
from loadtests.overload.scenarios import TARGET

__all__ = ["NoPlotter", "plot"]

_COLOURS = ("tab:blue", "tab:orange")
_HEIGHT, _WIDTH = 6.0, 7.0


def plot(measured: Sequence[Measured], path: Path) -> None:
    """Write a picture of the first run of each, its format by the suffix. Raises `NoPlotter`, OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise NoPlotter("a plot needs matplotlib: pip install 'gateway[loadtests]'") from None
    scenarios = list(dict.fromkeys(each.scenario.name for each in measured))
    targets = list(dict.fromkeys(each.target.name for each in measured))
    figure = Figure(figsize=(_WIDTH * len(targets), _HEIGHT * len(scenarios)), layout="constrained")
    FigureCanvasAgg(figure)
    for each in measured:
        if each.runs:
            above = 2 * scenarios.index(each.scenario.name)
            places = [(above + more) * len(targets) + targets.index(each.target.name) + 1 for more in (0, 1)]
            upper, lower = (figure.add_subplot(2 * len(scenarios), len(targets), place) for place in places)
            upper.set_title(f"{each.scenario.name}, {each.target.name}")
            _rates(upper, each.runs[0])
            _waits(lower, each.runs[0])
    figure.savefig(path)


def _rates(axes: Any, run: Run) -> None:
    """Answers that came and those in time, against capacity."""
    moments, rates, good = over_time(run.attempts, run.spans[-1].end)
    axes.plot(moments, rates, color="0.6", label="answers")
    axes.plot(moments, good, color="tab:blue", label="goodput")
    axes.axhline(run.capacity.tokens, color="0.3", linewidth=0.8, label="capacity")
    _marks(axes, run)
    axes.set(ylabel="tokens/s", ylim=(0, None))
    axes.legend(loc="lower right", fontsize="small")


def _waits(axes: Any, run: Run) -> None:
    """Each answer at the moment when it was asked for, and below them what was refused."""
    for caller, colour in zip(run.scenario.callers, _COLOURS, strict=False):
        mine = [each for each in run.attempts if each.request.caller == caller]
        known = [(each.at, each.heard.ttft) for each in mine if served(each)]
        axes.scatter([at for at, _ in known], [ttft for _, ttft in known], s=5, color=colour, label=caller)
        lost = [each.at for each in mine if refused(each)]
        if lost:
            axes.scatter(lost, [0.01] * len(lost), s=5, marker="|", color=colour, label=f"{caller}, refused")
    axes.axhline(TARGET, color="0.3", linewidth=0.8, label="in time")
    _marks(axes, run)
    axes.set(xlabel="seconds", ylabel="time to first token, s", yscale="log")
    axes.legend(loc="upper right", fontsize="small")


def _marks(axes: Any, run: Run) -> None:
    for span in run.spans:
        axes.axvline(span.begin, color="0.8", linestyle=":")
