"""``gateway fleet explain``: why a recent request went where it went."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.admin.explainviews import CandidateView, DecisionView
from gateway.cli.aliasoptions import alias_argument
from gateway.cli.output import moment, note, plain, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, where

COLUMNS = (
    "REPLICA", "TOTAL", "QUEUE", "PREFILL", "SLOT", "DECODE", "PRESSURE", "BURDEN", "FACTOR", "HOLDS", "IN FLIGHT",
    "CHOSEN",
)  # fmt: skip


def _alias(text: str | None) -> str | None:
    return None if text is None else alias_argument(text)


def explain(
    *,
    request_id: Annotated[
        str | None,
        typer.Option("--request-id", metavar="ID", help="The request, by its x-request-id; the newest otherwise."),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option("--alias", metavar="NAME", help="The newest request to this alias.", callback=_alias),
    ] = None,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Show why a recent request went to its replica: the estimate of each candidate, and what it is made of.

    Estimates are milliseconds until the first token: the sum of the six terms, times the factor. BURDEN is what the
    request would make others wait who come for what the replica's prefix cache holds. HOLDS is how many
    bytes of the prompt a replica was believed to have in its prefix cache. A gateway knows its own last requests alone,
    2,000 where pools are small: ask the one that served it ('gateway status' lists them; --admin-url).
    """
    if request_id is not None and alias is not None:
        raise typer.BadParameter(
            "one request is meant: give one of them, not both", param_hint="'--request-id' / '--alias'"
        )
    told = act(where(state, admin_url, admin_token), lambda backend: backend.explain_choice(request_id, alias))
    if as_json:
        print_json(told)
    else:
        print_table("Candidates", COLUMNS, [cells(one) for one in told.candidates])
    for line in remarks(told):
        note(plain(line))


def cells(one: CandidateView) -> tuple[str, ...]:
    """A candidate as it stands in the table."""
    terms = one.terms
    if terms is None:
        numbers: tuple[str, ...] = ("-",) * 8
    else:
        seconds = (terms.total, terms.queue, terms.prefill, terms.slot, terms.decode, terms.pressure, terms.burden)
        numbers = (*(f"{value * 1e3:.1f}" for value in seconds), f"{terms.factor:.2f}")
    in_flight = str(one.in_flight) if one.room is None else f"{one.in_flight} of {one.room}"
    return (one.replica, *numbers, str(one.holds), in_flight, "yes" if one.chosen else "")


def remarks(told: DecisionView) -> list[str]:
    """What was decided, and about what."""
    to = "nowhere" if told.replica is None else f"to {told.replica}"
    weighed = len(told.candidates)
    among = f"{told.pool}" if told.pool == weighed else f"{told.pool}, of which {weighed} are shown"
    size = (
        f" Its prompt: {told.prompt_bytes} bytes, about {told.prompt_tokens:.0f} tokens." if told.prompt_bytes else ""
    )
    return [
        f"{told.request_id} went {to} at {moment(told.at)} (attempt {told.attempt}, {told.strategy}, among {among}).",
        f"{told.sentence}{size}",
    ]
