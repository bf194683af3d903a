"""The ``gateway`` command: its groups in the order in which a newcomer needs them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from gateway.cli import alias, audit, keys, policy
from gateway.cli.demo import demo
from gateway.cli.serve import serve
from gateway.cli.status import status

app = typer.Typer(
    name="gateway",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables
    help="""An authenticated inference gateway in front of vLLM replicas that listen on localhost only.

    First steps:  gateway serve --engine http://127.0.0.1:8000, then in another shell  KEY=$(gateway keys create app1)
    and point an OpenAI client's base_url at http://127.0.0.1:8080/v1 with that key.

    Commands act on the gateway that runs on this host, or on its state when none runs; --admin-url and --state choose.
    Exit code 0: done, 1: refused or failed, 2: wrong usage.""",
)
app.command(epilog="Example:  gateway serve --engine http://127.0.0.1:8001 --engine http://127.0.0.1:8002")(serve)
app.command(epilog="Example:  gateway demo --once && echo it works")(demo)
app.command(epilog="Example:  gateway status --json")(status)
app.add_typer(keys.app, name="keys")
app.add_typer(alias.app, name="alias")
app.add_typer(policy.app, name="policy")
app.add_typer(audit.app, name="audit")


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
