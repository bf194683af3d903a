"""``gateway status``: the gateways that share a state, and whether each serves by the current alias table."""

from __future__ import annotations

from gateway.admin.aliasviews import InstanceList, InstanceView
from gateway.cli.output import note, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, act, where

_COLUMNS = ("NAME", "ID", "VERSION", "STATE", "GENERATION", "TABLE AGE", "SEEN", "ADMIN URL")


def status(
    as_json: Json = False, state: State = None, admin_url: AdminUrl = None, admin_token: AdminToken = None
) -> None:
    """List every live gateway with the generation of the alias table that it serves by, and mark those that lag."""
    listing = act(where(state, admin_url, admin_token), lambda backend: backend.instances())
    if as_json:
        print_json(listing)
        return
    live = [one for one in listing.instances if one.live]
    print_table("Gateways", _COLUMNS, [row_cells(one) for one in live])
    for line in remarks(listing):
        note(line)


def row_cells(one: InstanceView) -> tuple[str, ...]:
    """An instance as it stands in the table."""
    return (
        one.name,
        one.id,
        one.version,
        condition(one),
        str(one.generation),
        f"{one.table_age:.0f} s",
        f"{one.seen_ago:.0f} s ago",
        one.admin_url,
    )


def condition(one: InstanceView) -> str:
    """How an instance stands, in one or two words."""
    marks = {"degraded": one.degraded, "lags": one.lags}
    return ", ".join(word for word, held in marks.items() if held) or "ok"


def remarks(listing: InstanceList) -> list[str]:
    """What is to be said about all of them, and what to do next."""
    live = [one for one in listing.instances if one.live]
    lines = [f"The alias table is at generation {listing.generation}."]
    if not live:
        lines.append("No gateway has been heard of on this state lately: 'gateway serve' starts one.")
    late = sum(one.lags for one in live)
    if late:
        lines.append(f"{late} of {len(live)} lag: they serve by an older table. Look at their logs if it lasts.")
    if any(one.degraded for one in live):
        lines.append("A degraded one cannot read the store, and serves by the table that it kept.")
    return lines
