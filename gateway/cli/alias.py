"""``gateway alias``: which models the names that applications use stand for."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.aliasorders import AliasOrder, DeleteOrder
from gateway.admin.aliasviews import AliasView, split_reference
from gateway.cli.aliasfile import apply, export
from gateway.cli.aliasoptions import (
    WAIT,
    Expect,
    Force,
    Name,
    Note,
    Reference,
    Timeout,
    Wait,
    models,
    no_alias,
    patience,
)
from gateway.cli.output import moment, print_fields, print_json, print_table
from gateway.cli.revisions import diff, history
from gateway.cli.rollout import abort, canary, compare, promote, rollback
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, checked, where
from gateway.cli.settle import change

app = typer.Typer(no_args_is_help=True, help="Assign aliases, the model names that applications use, and go back.")

_COLUMNS = ("NAME", "REVISION", "MODEL", "AUTHOR", "SET", "NOTE")


@app.command(
    "set",
    epilog="Example:  gateway alias set internal-general --model qwen3-32b --note 'faster' --wait && "
    "gateway alias set internal-code --model coder-a --weight 90 --model coder-b --weight 10",
)
def set_alias(
    name: Name,
    *,
    model: Annotated[
        list[str], typer.Option("--model", metavar="M", help="The served model that it stands for; several share.")
    ],
    weight: Annotated[
        list[int] | None, typer.Option("--weight", min=1, max=100, metavar="W", help="Its share; one for each --model.")
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
    """Point an alias at a model, or at several that share, in one step for all requests that start later."""
    order = checked(
        AliasOrder,
        **_aims(model, weight or []),
        note=text,
        expect_revision=expect_revision,
        source="cli",
        force=force,
    )
    place = where(state, admin_url, admin_token)
    change(place, name, order, _now, seconds=patience(wait, timeout), as_json=as_json)


@app.command("list", epilog="Example:  gateway alias list --json")
def list_aliases(
    as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """List all aliases with their current revisions."""
    views = act(where(state, admin_url, admin_token), lambda backend: backend.list_aliases()).aliases
    if as_json:
        print_json(views)
        return
    print_table("Aliases", _COLUMNS, [_row(view) for view in views])


@app.command(epilog="Example:  gateway alias show internal-general@3")
def show(
    name: Reference,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Show a revision of an alias: the current one, or NAME@N."""
    alias, number = split_reference(name)
    view = act(
        where(state, admin_url, admin_token), lambda backend: backend.show_alias(alias, number), missing=no_alias(alias)
    )
    if as_json:
        print_json(view)
        return
    fields = list(zip((column.lower() for column in _COLUMNS), _row(view), strict=True))
    print_fields([*fields, ("source", view.source)])


@app.command(epilog="Example:  gateway alias delete internal-old --note 'nobody calls it'")
def delete(
    name: Name,
    *,
    text: Note = "",
    expect_revision: Expect = None,
    force: Annotated[bool, typer.Option("--force", help="Also if it served a request within the last hour.")] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Delete an alias: whoever calls it is told that there is no such model. Its history stays; rollback revives it."""
    order = checked(DeleteOrder, note=text, expect_revision=expect_revision, force=force)
    place = where(state, admin_url, admin_token)
    change(place, name, order, _gone, seconds=patience(wait, timeout), as_json=as_json)


app.command(epilog="Example:  gateway alias rollback internal-general --wait")(rollback)
app.command(epilog="Example:  gateway alias canary internal-general --model qwen3-next --weight 5")(canary)
app.command(epilog="Example:  gateway alias compare internal-general && gateway alias promote internal-general")(
    promote
)
app.command(epilog="Example:  gateway alias abort internal-general --note 'answers in the wrong language'")(abort)
app.command(epilog="Example:  gateway alias compare internal-general")(compare)
app.command(epilog="Example:  gateway alias history internal-general")(history)
app.command(epilog="Example:  gateway alias diff internal-general 3 5")(diff)
app.command(epilog="Example:  gateway alias export aliases.yaml && git add aliases.yaml")(export)
app.command(epilog="Example:  gateway alias apply aliases.yaml --dry-run")(apply)


def _aims(names: list[str], weights: list[int]) -> dict[str, object]:
    if not weights and len(names) == 1:
        return {"model": names[0]}
    if weights and len(weights) != len(names):
        raise typer.BadParameter("expected one --weight for each --model, in the same order, or none")
    shares = weights or [1] * len(names)
    return {"targets": [{"model": name, "weight": share} for name, share in zip(names, shares, strict=True)]}


def _now(view: AliasView) -> str:
    return f"{view.name} is {models(view)} since revision {view.revision}."


def _gone(view: AliasView) -> str:
    return (
        f"{view.name} is deleted; it was {models(view)}. "
        f"'gateway alias rollback {view.name} --to {view.revision}' brings it back."
    )


def _row(view: AliasView) -> tuple[str, ...]:
    return view.name, str(view.revision), models(view), view.author, moment(view.created_at), view.note or "-"
