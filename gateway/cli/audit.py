"""``gateway audit``: read who changed what, and prove that nobody changed that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.admin.schemas import PAGE
from gateway.admin.trail import WORDS, AuditView, VerdictView, audit_entry, point, verify
from gateway.cli.backend import Backend
from gateway.cli.output import fail, moment, note, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, where
from gateway.stores.interfaces import AuditEntry

app = typer.Typer(no_args_is_help=True, help="Read the audit trail of all changes, and prove it whole.")

_COLUMNS = ("NUMBER", "TIME", "AUTHOR", "VERB", "SUBJECT", "DETAIL")


def _point(text: str | None) -> str | None:
    try:
        if text is not None:
            point(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None
    return text


@app.command(
    "list", epilog="Example:  gateway audit list --limit 20    or page by page:  gateway audit list --after 1000"
)
def list_lines(
    *,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="N", help="The lines behind number N; the newest otherwise.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, metavar="N", help="At most so many.")] = 50,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """List lines of the audit trail, oldest first: when, who, what, to what."""
    lines = act(where(state, admin_url, admin_token), lambda backend: _lines(backend, after, limit))
    if as_json:
        print_json(lines)
        return
    print_table("Audit trail", _COLUMNS, [_row(line) for line in lines])


@app.command(
    "verify",
    epilog="Example:  gateway audit verify > last-seen    and later:  gateway audit verify --expect $(cat last-seen)",
)
def verify_trail(
    *,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="N:HASH", help="What this command printed before, kept elsewhere.", callback=_point
        ),
    ] = None,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Check that no line was changed, removed, added or cut off. Prints the newest number and hash; 1 if not whole.

    Each line's hash covers the line before. Whoever can write the store could write a whole new trail: keep what this
    prints where they cannot reach it, and give it back as --expect to find that too.
    """
    known = None if expect is None else point(expect)
    verdict = act(where(state, admin_url, admin_token), lambda backend: verify(_Pages(backend), known))
    if as_json:
        print_json(verdict)
    if not verdict.whole:
        fail(_broken(verdict))
    if not as_json:
        note(f"The audit trail is whole: {verdict.lines} lines. Keep this elsewhere for --expect:")
        typer.echo(f"{verdict.lines}:{verdict.head}")


class _Pages:
    """The trail behind a backend: the hashes are computed here, whoever gives the lines."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def audit(self, *, after: int = 0, limit: int = PAGE) -> Sequence[AuditEntry]:
        """Lines with a number above ``after``."""
        return [audit_entry(line) for line in (await self._backend.audit_page(after, limit)).lines]

    async def audit_head(self) -> tuple[int, bytes]:
        """Number and hash of the newest line."""
        head = (await self._backend.audit_page(0, 1)).head
        return head.number, bytes.fromhex(head.hash)


async def _lines(backend: Backend, after: int | None, limit: int) -> list[AuditView]:
    if after is None:
        after = max(0, (await backend.audit_page(0, 1)).head.number - limit)
    lines: list[AuditView] = []
    while len(lines) < limit:
        page = (await backend.audit_page(after, min(PAGE, limit - len(lines)))).lines
        if not page:
            break
        lines += page
        after = page[-1].number
    return lines


def _broken(verdict: VerdictView) -> str:
    words = WORDS[verdict.fault] if verdict.fault else ""
    return (
        f"the audit trail is broken at line {verdict.broken_at}: {words}. The {verdict.lines} lines before are whole. "
        "Keep a copy of the store as it is, compare with a backup, and trust no key made or changed since then."
    )


def _row(line: AuditView) -> tuple[str, ...]:
    return str(line.number), moment(line.at), line.author, line.verb, line.subject, line.detail
