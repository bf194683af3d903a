"""``gateway alias history`` and ``diff``: what an alias has been."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.aliasviews import RevisionView
from gateway.cli.aliasoptions import Name, models, no_alias
from gateway.cli.backend import Backend
from gateway.cli.output import moment, note, plain, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, where

_COLUMNS = ("REVISION", "STATE", "MODEL", "AUTHOR", "SET", "LAST SERVED", "SOURCE", "NOTE")


def history(
    name: Name, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """List all revisions of an alias, newest first, with when each last served a request."""

    async def read(backend: Backend) -> list[RevisionView]:
        page = await backend.alias_history(name, None)
        found = list(page.revisions)
        while page.next is not None:
            page = await backend.alias_history(name, page.next)
            found += page.revisions
        return found

    revisions = act(where(state, admin_url, admin_token), read, missing=no_alias(name))
    if as_json:
        print_json(revisions)
        return
    print_table(f"Revisions of {name}", _COLUMNS, [_row(one) for one in revisions])


def diff(
    name: Name,
    old: Annotated[int | None, typer.Argument(min=1, metavar="N", help="Else the one before M.")] = None,
    new: Annotated[int | None, typer.Argument(min=1, metavar="M", help="Else the current one.")] = None,
    *,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Tell what changes from revision N of an alias to revision M."""
    view = act(
        where(state, admin_url, admin_token), lambda backend: backend.alias_diff(name, old, new), missing=no_alias(name)
    )
    if as_json:
        print_json(view)
        return
    if not view.differences:
        note(plain(f"Revisions {view.old.revision} and {view.new.revision} of {name} do not differ."))
        return
    columns = ("WHAT", f"REVISION {view.old.revision}", f"REVISION {view.new.revision}")
    rows = [(row.what, row.before or "-", row.after or "-") for row in view.differences]
    print_table(f"{name}, revision {view.old.revision} to {view.new.revision}", columns, rows)


def _row(view: RevisionView) -> tuple[str, ...]:
    return (
        str(view.revision),
        "current" if view.current else "-",
        models(view),
        view.author,
        moment(view.created_at),
        moment(view.used_at),
        view.source,
        view.note or "-",
    )
