"""``gateway serve``: run a gateway."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.faults import faults_reported
from gateway.cli.output import note
from gateway.policy.live import load_policy
from gateway.settings import load_settings, open_to_readers


def serve(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="gateway.yaml. Also GATEWAY_CONFIG.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="URL", help="An engine, such as http://127.0.0.1:8000. Repeatable."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="For applications; 127.0.0.1:8080 by default.")
    ] = None,
    admin: Annotated[
        str | None, typer.Option("--admin", metavar="HOST:PORT", help="For operators; 127.0.0.1:9090 by default.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="URL",
            help="sqlite:///PATH or redis://HOST:6379/0; a file in your state folder by default.",
        ),
    ] = None,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="DIR", help="Folder of policy files; those shipped by default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the configuration is valid.")] = False,
) -> None:
    """Run a gateway in front of engines that listen on this host. Flags override GATEWAY_* variables and the file."""
    flags = {
        "engines": engine or None,
        "listen": listen,
        "admin": admin,
        "state": state,
        "policies": policies,
    }
    with faults_reported():
        settings = load_settings(flags, os.environ, config)
        if not check:
            from gateway.runner import serve as run_gateway  # noqa: PLC0415 - a check needs no server

            raise typer.Exit(run_gateway(settings, os.environ, note))
        load_policy(settings.policies)
    for warning in open_to_readers(settings):
        note(warning)
    note("The configuration is valid.")
