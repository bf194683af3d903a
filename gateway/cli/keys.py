"""``gateway keys``: make, list, show and revoke API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.schemas import KeyOrder, KeyView, key_reference
from gateway.cli.output import moment, note, print_fields, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, checked, duration, where

app = typer.Typer(no_args_is_help=True, help="Make, list, show and revoke API keys.")

_COLUMNS = ("ID", "NAME", "TENANT", "ROLES", "ALIASES", "CREATED", "EXPIRES", "STATE")


def _reference(text: str) -> str:
    try:
        return key_reference(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


_Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Id or name of the key (never its text).", callback=_reference)
]


@app.command(epilog="Example:  KEY=$(gateway keys create app1 --tenant search --alias 'chat-*' --expires 90d)")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for; unique among live keys.")],
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Who it belongs to: tenants share no cache.")] = "default",
    role: Annotated[list[str] | None, typer.Option("--role", help="A role it has. Repeatable.")] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option("--alias", metavar="GLOB", help="Aliases it may call; all by default. Repeatable."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="When it ends: 90d, 12h, 30m. Never by default.")
    ] = None,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Make a key. Its text alone goes to stdout, once: it is stored nowhere."""
    order = checked(
        KeyOrder,
        name=name,
        tenant=tenant,
        roles=role or [],
        aliases=alias or ["*"],
        expires_in=None if expires is None else duration(expires),
    )
    made = act(where(state, admin_url, admin_token), lambda backend: backend.create_key(order))
    if as_json:
        print_json(made)
        return
    ends = "never expires" if made.expires_at is None else f"expires {moment(made.expires_at)}"
    note(f"Key {made.name} (id {made.id}) of tenant {made.tenant}, {ends}. Shown this once:")
    typer.echo(made.key)


@app.command("list", epilog="Example:  gateway keys list --json | jq '.[] | select(.state == \"live\") | .name'")
def list_keys(
    as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """List all keys, oldest first. The text of a key is not known to anybody but its holder."""
    views = act(where(state, admin_url, admin_token), lambda backend: backend.list_keys())
    if as_json:
        print_json(views)
        return
    print_table("API keys", _COLUMNS, [_row(view) for view in views])


@app.command(epilog="Example:  gateway keys show app1")
def show(
    key: _Key, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """Show one key, by id or by name (the newest of that name)."""
    _print(act(where(state, admin_url, admin_token), lambda backend: backend.show_key(key)), as_json)


@app.command(epilog="Example:  gateway keys revoke app1")
def revoke(
    key: _Key, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """End a key, by id or by name. Gateways stop accepting it within a second; it cannot be undone."""
    view = act(where(state, admin_url, admin_token), lambda backend: backend.revoke_key(key))
    note(f"Key {view.name} (id {view.id}) is revoked since {moment(view.revoked_at)}.")
    if as_json:
        print_json(view)


def _row(view: KeyView) -> tuple[str, ...]:
    roles, aliases = ",".join(view.roles) or "-", ",".join(view.aliases)
    return view.id, view.name, view.tenant, roles, aliases, moment(view.created_at), moment(view.expires_at), view.state


def _print(view: KeyView, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    print_fields(list(zip((column.lower() for column in _COLUMNS), _row(view), strict=True)))
