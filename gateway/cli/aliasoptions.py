"""What the commands about aliases share: how a name is given, the options of a change, and aliases in words."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.aliasviews import AliasView, alias_reference, revision_of
from gateway.admin.schemas import alias_name
from gateway.aliasing.plan import describe_targets
from gateway.cli.run import Timeout, waiting_time

__all__ = [
    "WAIT",
    "Expect",
    "Force",
    "Name",
    "Note",
    "Reference",
    "Timeout",
    "Wait",
    "alias_argument",
    "models",
    "no_alias",
    "patience",
    "reference_argument",
]

WAIT = "10s"
_RULE = "1 to 64 of A-Z a-z 0-9 . _ : / -, case-sensitive"


def alias_argument(text: str) -> str:
    """An alias as a command is given it. Raises ``typer.BadParameter``."""
    try:
        return alias_name(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


def reference_argument(text: str) -> str:
    """An alias or ``NAME@N`` as a command is given it. Raises ``typer.BadParameter``."""
    try:
        return alias_reference(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


Name = Annotated[str, typer.Argument(metavar="NAME", help=f"{_RULE}.", callback=alias_argument)]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@N]", help=f"{_RULE}; with @N that revision, else the current one.", callback=reference_argument
    ),
]
Note = Annotated[str, typer.Option("--note", help="Why, for those who read the history.")]
Expect = Annotated[
    int | None,
    typer.Option("--expect-revision", min=0, metavar="N", help="Only if N is current now (0: if it does not exist)."),
]
Force = Annotated[bool, typer.Option("--force", help="Also to a model that no replica serves now.")]
Wait = Annotated[bool, typer.Option("--wait", help="Until every live gateway serves by it; exit code 1 if one lags.")]


def patience(wait: bool, timeout: str) -> int | None:
    """For how many seconds to wait; ``None``: not at all."""
    return waiting_time(timeout) if wait else None


def no_alias(name: str) -> str:
    """Where to look when there is no such alias, or no such revision of it."""
    return f"'gateway alias list' lists all aliases, 'gateway alias history {name}' the revisions of one."


def models(view: AliasView) -> str:
    """What an alias stands for."""
    words = describe_targets(revision_of(view).targets)
    return words if view.canary_of is None else f"{words} (a canary of revision {view.canary_of})"
