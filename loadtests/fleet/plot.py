"""Time to first token over time, with the moments when replicas were added and became ready."""

from __future__ import annotations

from pathlib import Path

from loadtests.fleet.coldstart import Side
from loadtests.fleet.report import RATIO_LIMIT, times


class NoPlotter(Exception):
    """matplotlib is not installed."""


def plot(with_additions: Side, without: Side, path: Path) -> None:
    """Write a picture, its format by the suffix. Raises `NoPlotter`, OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise NoPlotter("a plot needs matplotlib: pip install 'gateway[loadtests]'") from None
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, side, colour in (("without additions", without, "0.6"), ("with additions", with_additions, "tab:blue")):
        known = [(sample.at, sample.ttft * 1000) for sample in side.samples if sample.ttft is not None]
        p99 = times(side.samples).p99
        legend = name if p99 is None else f"{name}: p99 {p99 * 1000:.0f} ms"
        axes.scatter([at for at, _ in known], [ttft for _, ttft in known], s=8, color=colour, label=legend)
    for number, added in enumerate(with_additions.added):
        label = None if number else "replica added"
        axes.axvline(added.started, color="tab:red", linestyle=":", label=label)
        if added.ready is not None:
            axes.axvline(added.ready, color="tab:green", linestyle="--", label=None if number else "became ready")
    if (p99 := times(without.samples).p99) is not None:
        axes.axhline(
            p99 * 1000 * RATIO_LIMIT, color="0.3", linewidth=0.8, label=f"bound for p99: {RATIO_LIMIT:g} times"
        )
    axes.set(xlabel="seconds", ylabel="time to first token, ms", yscale="log")
    axes.set_title(f"{with_additions.cold} users' requests met a cold replica")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path)
