"""The ``gateway`` command: its groups in the order in which a newcomer needs them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli.later import Later, bare_flags


class _Commands(TyperGroup):
    """The commands, each imported when it is called. Their help stands here for the list of them all."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in (
            Later(
                "serve",
                "gateway.cli.serve:serve",
                "Run a gateway in front of engines that listen on this host. Flags override GATEWAY_* variables and "
                "the file.",
                epilog="Example:  gateway serve --engine http://127.0.0.1:8001 --engine http://127.0.0.1:8002",
            ),
            Later(
                "demo",
                "gateway.cli.demo:demo",
                "Try it out: three simulated engines, a gateway, a key, a streamed answer; then a live table until "
                "Ctrl-C.",
                epilog="Example:  gateway demo --once && echo it works",
            ),
            Later(
                "status",
                "gateway.cli.status:status",
                "List every live gateway with the generation of the alias table that it serves by, and mark those that "
                "lag.",
                epilog="Example:  gateway status --json",
            ),
            Later("keys", "gateway.cli.keys:app", "Make, list, show, rotate and revoke API keys."),
            Later(
                "alias",
                "gateway.cli.alias:app",
                "Assign aliases, the model names that applications use, and go back.",
            ),
            Later(
                "fleet",
                "gateway.cli.fleet:app",
                "See which engines there are and how each does; add, drain, remove them.",
            ),
            Later(
                "policy",
                "gateway.cli.policy:app",
                "Check policy files, and tell why a key may call an alias or not.",
            ),
            Later("audit", "gateway.cli.audit:app", "Read the audit trail of all changes, and prove it whole."),
        ):
            self.add_command(command)
        bare_flags(self)


app = typer.Typer(
    name="gateway",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables
    help="""An authenticated inference gateway in front of vLLM replicas that listen on localhost only.

    First steps:  gateway serve --engine http://127.0.0.1:8000, then in another shell  KEY=$(gateway keys create app1)
    and point an OpenAI client's base_url at http://127.0.0.1:8080/v1 with that key.

    Commands act on the gateway that runs on this host, or on its state when none runs; --admin-url and --state choose.
    Exit code 0: done, 1: refused or failed, 2: wrong usage.""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gateway {version('gateway')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before any command."""
