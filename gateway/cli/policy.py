"""``gateway policy``: judge policy files, and tell why a key may call an alias or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.admin.rules import ExplanationView
from gateway.cli.aliasoptions import alias_argument
from gateway.cli.faults import faults_reported
from gateway.cli.keys import NO_KEY, key_argument
from gateway.cli.output import fail, note, print_fields, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, where
from gateway.policy.live import load_policy
from gateway.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Check policy files, and tell why a key may call an alias or not.")


@app.command(epilog="Example:  gateway policy check --policies /etc/gateway/policies && systemctl reload gateway")
def check(
    policies: Annotated[
        Path | None,
        typer.Option("--policies", metavar="DIR", help="The folder; GATEWAY_POLICIES or the shipped one otherwise."),
    ] = None,
) -> None:
    """Check all policy files of a folder: every fault with its file, its line and what was expected."""
    with faults_reported():
        folder = policies or load_settings({}, os.environ).policies
        if not folder.is_dir():
            fail(f"{folder} is no folder. --policies names the one with access.yaml and guards.yaml.")
        load_policy(folder)
    note(f"The policies in {folder} are valid.")


@app.command(epilog="Example:  gateway policy explain --key app1 --alias internal-general")
def explain(
    *,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Id or name of a key (never its text).", callback=key_argument)
    ],
    alias: Annotated[
        str, typer.Option("--alias", metavar="NAME", help="An alias, be it there or not.", callback=alias_argument)
    ],
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Tell what the gateway would answer to a key that calls an alias: why, within which limits, and whose they are."""
    view = act(where(state, admin_url, admin_token), lambda backend: backend.explain(key, alias), missing=NO_KEY)
    if as_json:
        print_json(view)
        return
    print_fields(_fields(view))
    if view.limits:
        rows = [(one.holder, one.limit, str(one.value), one.source) for one in view.limits]
        print_table("Limits", ("BUDGET OF", "LIMIT", "FIGURE", "FROM"), rows)


def _fields(view: ExplanationView) -> list[tuple[str, str]]:
    answer = "goes through" if view.code is None else f"{view.status} {view.code}"
    return [
        ("answer", answer),
        ("why", view.reason),
        *((f"{one.rule}", f"{'yes' if one.passed else 'no'}: {one.because}") for one in view.checks),
        ("key", f"{view.name} (id {view.key}) of tenant {view.tenant}, {view.state}"),
        ("roles held", ", ".join(view.roles) or "-"),
        *([("not known", ", ".join(view.unknown_roles))] if view.unknown_roles else []),
        ("admin verbs", ", ".join(view.verbs) or "-"),
        ("priority", f"{view.priority} ({view.priority_from})"),
        ("weight", f"{view.weight:g}, its tenant's share beside others that wait"),
        ("limits", "as below" if view.limits else "none"),
    ]
