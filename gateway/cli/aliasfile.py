"""``gateway alias export`` and ``apply``: the whole alias table as a file that may be kept under version control."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from types import MappingProxyType
from typing import Annotated

import typer

from gateway.admin.aliasing import order_of
from gateway.admin.aliasviews import AliasList, revision_of
from gateway.aliasing import files
from gateway.cli.aliasoptions import WAIT, Timeout, Wait, patience
from gateway.cli.backend import Backend, CliFault
from gateway.cli.choose import Where
from gateway.cli.faults import faults_reported
from gateway.cli.output import fail, note, plain
from gateway.cli.run import AdminToken, AdminUrl, State, act, where
from gateway.cli.settle import wait_for_all
from gateway.model import AliasTable
from gateway.policy.document import PolicyFault

STREAM = "-"
_MAX_CHARACTERS = 4 << 20


def export(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Where to; - is standard output.")] = STREAM,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Write all aliases as the YAML file that 'apply' takes."""
    listing = act(where(state, admin_url, admin_token), lambda backend: backend.list_aliases())
    text = files.render(table_of(listing))
    if file == STREAM:
        typer.echo(text, nl=False)
        return
    with faults_reported():
        Path(file).write_text(text, encoding="utf-8")
    note(f"{len(listing.aliases)} aliases are in {plain(file)}.")


def apply(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="As 'export' writes it; - is standard input.")],
    *,
    prune: Annotated[bool, typer.Option("--prune", help="Also delete aliases that the file does not name.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also end canaries, use models that none serves, delete what is in use.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Make the aliases what a file says. What would be done is printed first; what is as it should be is left alone."""
    if yes and dry_run:
        raise typer.BadParameter("give one of them, not both", param_hint="'--yes' / '--dry-run'")
    place = where(state, admin_url, admin_token)
    with faults_reported():
        wanted = _wanted(file)
    listing = act(place, lambda backend: backend.list_aliases())
    with faults_reported():
        steps = files.steps(wanted, table_of(listing), prune, force=force)
    for step in steps:
        typer.echo(plain(files.describe(step)))
    if not steps:
        note("Nothing to do: the aliases are as the file says.")
    elif not dry_run:
        _confirm(file, len(steps), yes=yes)
        _take(place, steps, force=force, seconds=patience(wait, timeout))


def table_of(listing: AliasList) -> AliasTable:
    """The table that a list shows."""
    current = {view.name: revision_of(view) for view in listing.aliases}
    return AliasTable(listing.generation, MappingProxyType(current))


def _wanted(file: str) -> Mapping[str, files.Wanted]:
    """What the file says. Raises ``CliFault`` or ``OSError``."""
    try:
        return files.read(_text(file), "standard input" if file == STREAM else file)
    except PolicyFault as fault:
        raise CliFault(f"the file is not valid, nothing was changed:\n{indent(str(fault), '  ')}") from None


def _text(file: str) -> str:
    """The file's text. Raises ``CliFault`` or ``OSError``."""
    try:
        if file == STREAM:
            text = sys.stdin.read(_MAX_CHARACTERS + 1)
        else:
            with Path(file).open(encoding="utf-8") as source:
                text = source.read(_MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise CliFault("The file is not UTF-8 text. 'gateway alias export' writes one that is.") from None
    if len(text) > _MAX_CHARACTERS:
        raise CliFault(f"The file is larger than {_MAX_CHARACTERS} characters.")
    return text


def _confirm(file: str, count: int, *, yes: bool) -> None:
    if yes:
        return
    if file == STREAM or not sys.stdin.isatty():
        fail("nobody can be asked here: --yes does the above, --dry-run only prints it.")
    if not typer.confirm(f"Do this ({count} changes)?", err=True):
        fail("nothing was changed.")


def _take(place: Where, steps: Sequence[files.Step], *, force: bool, seconds: int | None) -> None:
    async def work(backend: Backend) -> None:
        done, generation = 0, None
        try:
            for step in steps:
                generation = (await backend.change_alias(step.alias, order_of(step, force=force))).generation
                done += 1
        finally:
            note(plain(_made(steps, done)))
        if seconds is not None:
            await wait_for_all(backend, generation, seconds)

    act(place, work)


def _made(steps: Sequence[files.Step], done: int) -> str:
    """How far it came, and at what it stopped."""
    if done == len(steps):
        return f"{done} of {done} changes are made."
    rest = " Those made stand; the same command does the rest." if done else ""
    return f"{done} of {len(steps)} changes are made; it stopped at '{files.describe(steps[done])}'.{rest}"
