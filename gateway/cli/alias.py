"""``gateway alias``: which model the names that applications use stand for."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.schemas import AliasOrder, AliasView, alias_name
from gateway.cli.output import moment, note, print_fields, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, checked, where

app = typer.Typer(no_args_is_help=True, help="Set, list and show aliases: the model names that applications use.")

_COLUMNS = ("NAME", "REVISION", "MODEL", "AUTHOR", "SET", "NOTE")


def alias_argument(text: str) -> str:
    """An alias as a command is given it. Raises ``typer.BadParameter``."""
    try:
        return alias_name(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


_Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="1 to 64 of A-Z a-z 0-9 . _ : / -, case-sensitive.", callback=alias_argument),
]


@app.command("set", epilog="Example:  gateway alias set internal-general --model qwen3-32b --note 'faster'")
def set_alias(
    name: _Name,
    *,
    model: Annotated[
        str, typer.Option("--model", metavar="M", help="The served model that it stands for from now on.")
    ],
    text: Annotated[str, typer.Option("--note", help="Why, for those who read the history.")] = "",
    expect_revision: Annotated[
        int | None,
        typer.Option(
            "--expect-revision", min=0, metavar="N", help="Only if N is current now (0: if it does not exist)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also to a model that no replica serves now.")] = False,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Point an alias at a model, in one step for all requests that start later."""
    order = checked(AliasOrder, model=model, note=text, expect_revision=expect_revision, source="cli", force=force)
    view = act(where(state, admin_url, admin_token), lambda backend: backend.set_alias(name, order))
    note(f"{view.name} is {_models(view)} since revision {view.revision}.")
    if as_json:
        print_json(view)


@app.command("list", epilog="Example:  gateway alias list --json")
def list_aliases(
    as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """List all aliases with their current revisions."""
    views = act(where(state, admin_url, admin_token), lambda backend: backend.list_aliases())
    if as_json:
        print_json(views)
        return
    print_table("Aliases", _COLUMNS, [_row(view) for view in views])


@app.command(epilog="Example:  gateway alias show internal-general")
def show(
    name: _Name, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """Show the current revision of an alias."""
    view = act(where(state, admin_url, admin_token), lambda backend: backend.show_alias(name))
    if as_json:
        print_json(view)
        return
    print_fields(list(zip((column.lower() for column in _COLUMNS), _row(view), strict=True)))


def _models(view: AliasView) -> str:
    if len(view.targets) == 1:
        return view.targets[0].model
    return ", ".join(f"{target.model} ({target.weight})" for target in view.targets)


def _row(view: AliasView) -> tuple[str, ...]:
    return view.name, str(view.revision), _models(view), view.author, moment(view.created_at), view.note or "-"
