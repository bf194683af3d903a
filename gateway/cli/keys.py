"""``gateway keys``: make, list, show, rotate and revoke API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.schemas import KeyOrder, KeyView, LimitsView, NewKeyView, RotateOrder, key_reference
from gateway.cli.output import moment, note, print_fields, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, checked, duration, time_option, where

app = typer.Typer(no_args_is_help=True, help="Make, list, show, rotate and revoke API keys.")

# Columns are only ever added at the end: scripts cut them by number.
_COLUMNS = ("ID", "NAME", "TENANT", "ROLES", "ALIASES", "CREATED", "EXPIRES", "STATE", "LIMITS", "SECRETS END")
NO_KEY = "'gateway keys list' lists all keys."
_UNITS = (
    ("requests_per_minute", "rpm"),
    ("tokens_per_minute", "tpm"),
    ("tokens_per_day", "tpd"),
    ("concurrency", "at once"),
)


def key_argument(text: str) -> str:
    """A key as a command is given it. Raises ``typer.BadParameter``."""
    try:
        return key_reference(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Id or name of the key (never its text).", callback=key_argument)
]


def _figure(flag: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar="N", min=1, help=what)
    return option


@app.command(
    epilog="Example:  KEY=$(gateway keys create app1 --tenant search --alias 'chat-*' --rpm 600 --expires 90d)"
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for; unique among live keys.")],
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Who it belongs to: tenants share no cache.")] = "default",
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="A role of the access policy: what it may call and do. Repeatable."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", metavar="GLOB", help="Narrows it to these of the aliases that its roles give. Repeatable."
        ),
    ] = None,
    rpm: Annotated[int | None, _figure("--rpm", "Requests a minute. Its roles decide by default.")] = None,
    tpm: Annotated[int | None, _figure("--tpm", "Tokens a minute, prompt and answer together.")] = None,
    tpd: Annotated[int | None, _figure("--tpd", "Tokens a day.")] = None,
    concurrency: Annotated[int | None, _figure("--concurrency", "Requests at the same time.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="When it ends: 90d, 12h, 30m. Never by default.", callback=time_option
        ),
    ] = None,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Make a key. Its text alone goes to stdout, once: it is stored nowhere."""
    limits = checked(
        LimitsView, requests_per_minute=rpm, tokens_per_minute=tpm, tokens_per_day=tpd, concurrency=concurrency
    )
    order = checked(
        KeyOrder,
        name=name,
        tenant=tenant,
        roles=role or [],
        aliases=alias or ["*"],
        limits=limits,
        expires_in=None if expires is None else duration(expires),
    )
    made = act(where(state, admin_url, admin_token), lambda backend: backend.create_key(order))
    ends = "never expires" if made.expires_at is None else f"expires {moment(made.expires_at)}"
    _give(made, f"Key {made.name} (id {made.id}) of tenant {made.tenant}, {ends}. Shown this once:", as_json)


@app.command(epilog="Example:  KEY=$(gateway keys rotate app1 --overlap 24h)")
def rotate(
    key: Key,
    *,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="TIME",
            help="How long the former text works on; 0s ends it at once.",
            callback=time_option,
        ),
    ] = "24h",
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Give a key another text, with an overlap in which both work. Id, name and rights stay.

    The new text alone goes to stdout, once. While two texts work no third is given.
    """
    order = checked(RotateOrder, overlap=duration(overlap))
    made = act(where(state, admin_url, admin_token), lambda backend: backend.rotate_key(key, order), missing=NO_KEY)
    former = made.secrets[1].expires_at if len(made.secrets) > 1 else None
    _give(made, f"Key {made.name} (id {made.id}): its former text works until {moment(former)}. New text:", as_json)


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
    key: Key, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """Show one key, by id or by name (the newest of that name): its rights, its own limits, its secrets' ends."""
    view = act(where(state, admin_url, admin_token), lambda backend: backend.show_key(key), missing=NO_KEY)
    if as_json:
        print_json(view)
        return
    print_fields(list(zip((column.lower() for column in _COLUMNS), _row(view), strict=True)))


@app.command(epilog="Example:  gateway keys revoke app1")
def revoke(
    key: Key, as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """End a key, by id or by name. Gateways stop accepting it within a second; it cannot be undone."""
    view = act(where(state, admin_url, admin_token), lambda backend: backend.revoke_key(key), missing=NO_KEY)
    note(f"Key {view.name} (id {view.id}) is revoked since {moment(view.revoked_at)}.")
    if as_json:
        print_json(view)


def _give(made: NewKeyView, words: str, as_json: bool) -> None:
    """A text that is given once: alone on stdout, unless the whole object is asked for."""
    if as_json:
        print_json(made)
        return
    note(words)
    typer.echo(made.key)


def _row(view: KeyView) -> tuple[str, ...]:
    return (
        view.id,
        view.name,
        view.tenant,
        ",".join(view.roles) or "-",
        ",".join(view.aliases),
        moment(view.created_at),
        moment(view.expires_at),
        view.state,
        _limits(view.limits),
        ", ".join(moment(secret.expires_at) for secret in view.secrets if secret.live) or "ended",
    )


def _limits(limits: LimitsView) -> str:
    figures = limits.model_dump()
    return ", ".join(f"{figures[name]} {unit}" for name, unit in _UNITS if figures[name] is not None) or "-"
