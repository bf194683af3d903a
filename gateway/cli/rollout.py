"""``gateway alias rollback``, ``canary``, ``promote``, ``abort`` and ``compare``: trying a model, and going back."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.aliasorders import AbortOrder, CanaryOrder, PromoteOrder, RollbackOrder
from gateway.admin.aliasviews import AliasView
from gateway.admin.comparison import ComparisonView, EstimateView, RowView
from gateway.cli.aliasoptions import WAIT, Expect, Force, Name, Note, Timeout, Wait, models, no_alias, patience
from gateway.cli.output import note, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, checked, where
from gateway.cli.settle import change

_COLUMNS = ("MEASURE", "STABLE", "SAMPLES", "CANARY", "SAMPLES", "DIFFERENCE", "INTERVAL", "VERDICT")


def rollback(
    name: Name,
    *,
    to: Annotated[
        int | None, typer.Option("--to", min=1, metavar="N", help="The revision to go back to; 'history' lists them.")
    ] = None,
    text: Note = "",
    expect_revision: Expect = None,
    force: Force = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Go back to the last other revision that has served, or to a given one. It ends a canary, and revives an alias."""
    order = checked(RollbackOrder, to=to, note=text, expect_revision=expect_revision, force=force)
    place = where(state, admin_url, admin_token)
    change(place, name, order, _back, seconds=patience(wait, timeout), as_json=as_json)


def canary(
    name: Name,
    *,
    model: Annotated[str, typer.Option("--model", metavar="M", help="The served model to try.")],
    weight: Annotated[
        int, typer.Option("--weight", min=1, max=99, metavar="PERCENT", help="Its part of the alias's traffic.")
    ] = 5,
    text: Note = "",
    expect_revision: Expect = None,
    force: Force = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Send a part of an alias's traffic to another model; again with another weight while it runs, to change that."""
    order = checked(CanaryOrder, model=model, weight=weight, note=text, expect_revision=expect_revision, force=force)
    place = where(state, admin_url, admin_token)
    change(place, name, order, _tried, seconds=patience(wait, timeout), as_json=as_json)


def promote(
    name: Name,
    *,
    text: Note = "",
    expect_revision: Expect = None,
    force: Force = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """End a canary for the new model: it takes all traffic."""
    order = checked(PromoteOrder, note=text, expect_revision=expect_revision, force=force)
    place = where(state, admin_url, admin_token)
    change(place, name, order, _won, seconds=patience(wait, timeout), as_json=as_json)


def abort(
    name: Name,
    *,
    text: Note = "",
    expect_revision: Expect = None,
    force: Force = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """End a canary for what was there before: that takes all traffic again."""
    order = checked(AbortOrder, note=text, expect_revision=expect_revision, force=force)
    place = where(state, admin_url, admin_token)
    change(place, name, order, _back, seconds=patience(wait, timeout), as_json=as_json)


def compare(
    name: Name, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """Tell whether a canary does better or worse, by what one gateway has counted since it began."""
    view = act(
        where(state, admin_url, admin_token), lambda backend: backend.compare_alias(name), missing=no_alias(name)
    )
    if as_json:
        print_json(view)
        return
    title = f"{view.alias.name}@{view.alias.revision}: {models(view.alias)}"
    print_table(title, _COLUMNS, [row_cells(row) for row in view.rows])
    for line in remarks(view):
        note(line)


def row_cells(row: RowView) -> tuple[str, ...]:
    """A measure as it stands in the table."""
    interval = "-"
    if row.difference is not None:
        interval = f"{_figure(row.low, row.unit, sign=True)} to {_figure(row.high, row.unit, sign=True)}"
    return (
        row.measure,
        _figure(row.stable.value, row.unit),
        str(row.stable.samples),
        _figure(row.canary.value, row.unit),
        str(row.canary.samples),
        _figure(row.difference, row.unit, sign=True),
        interval,
        row.verdict,
    )


def remarks(view: ComparisonView) -> list[str]:
    """What has to be known to read the table."""
    lines = [f"The figures are this gateway's alone. Each interval holds with {view.confidence:.0%} confidence."]
    lines += [
        f"Not enough data for {row.measure}: {row.minimum} samples of each track are needed; {_short(row)}."
        for row in view.rows
        if row.verdict == "not enough data"
    ]
    return lines


def _short(row: RowView) -> str:
    tracks: dict[str, EstimateView] = {"stable": row.stable, "canary": row.canary}
    return ", ".join(f"{track} has {held.samples}" for track, held in tracks.items() if held.samples < row.minimum)


def _figure(value: float | None, unit: str, *, sign: bool = False) -> str:
    """A rate in percent, or seconds; an open end or nothing at all is ``-``."""
    if value is None:
        return "-"
    plus = "+" if sign else ""
    return f"{value:{plus}.3f} {unit}" if unit else f"{100 * value:{plus}.2f} %"


def _back(view: AliasView) -> str:
    return f"{view.name} is {models(view)} again, since revision {view.revision}."


def _tried(view: AliasView) -> str:
    return (
        f"{view.name} is {models(view)} since revision {view.revision}. 'gateway alias compare {view.name}' tells how "
        "it does; promote or abort ends it."
    )


def _won(view: AliasView) -> str:
    return f"{view.name} is {models(view)} alone since revision {view.revision}."
