"""Replicas and orders about engines as ``gateway fleet`` prints them, and what has to be said about them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.admin.fleetviews import FleetList, OrderView, ReplicaView
from gateway.cli.output import moment
from gateway.fleet.life import ROUTABLE

# Columns are only ever added at the end: scripts cut them by number.
COLUMNS = ("ID", "STATE", "SINCE", "MODELS", "IN FLIGHT", "RUNNING", "WAITING", "KV", "WHY / NEXT")

ORDERED = "ordered"
"""What stands for the state of an engine that is not among the replicas."""

_SHOWN = 3
_STALE = 15.0


def replica_cells(one: ReplicaView) -> tuple[str, ...]:
    """A replica as it stands in the table."""
    return (
        one.id,
        one.state,
        moment(one.since),
        few(one.models) or "-",
        str(one.in_flight),
        _count(one, "running"),
        _count(one, "waiting"),
        _share(one, "kv_use"),
        f"{why(one) or '-'}; next: {outlook(one)}",
    )


def order_cells(one: OrderView) -> tuple[str, ...]:
    """An order about an engine that is not among the replicas, as it stands in the table."""
    nothing = ("-",) * 5
    return (one.id, ORDERED, moment(one.at), *nothing, order_words(one))


def replica_fields(one: ReplicaView) -> list[tuple[str, str]]:
    """All that is known of a replica, a line each."""
    drained = "-" if one.drain is None else _by(one.drain.author, one.drain.at, one.drain.note)
    fields = [
        *zip((column.lower() for column in COLUMNS[:5]), replica_cells(one)[:5], strict=True),
        ("why", one.reason or "-"),
        ("last seen", one.remark or "-"),
        ("next", outlook(one)),
        ("url", one.url if one.server_name is None else f"{one.url} (certificate of {one.server_name})"),
        ("listed in", f"{one.origin}, no more" if one.removed else one.origin),
        ("labels", ", ".join(f"{name}={value}" for name, value in one.labels.items()) or "-"),
        ("engine", one.engine if one.version is None else f"{one.engine} {one.version}"),
        ("context", "-" if one.max_model_len is None else f"{one.max_model_len} tokens"),
        ("warmup", one.warmth or "-"),
        ("share", f"{one.share:.0%}"),
        ("room", "no bound" if one.room is None else str(one.room)),
        ("ejections", str(one.ejections)),
        ("drain", drained),
    ]
    fields += [(f"signal {name}", _signal(name, value)) for name, value in one.signals.items()]
    if one.signals_age is not None:
        fields.append(("signals seen", f"{one.signals_age:.0f} s ago"))
    return fields


def _signal(name: str, value: float) -> str:
    """A signal as a person reads it: a time, a count in full, or a figure of six digits."""
    if name == "started_at":
        return moment(value)
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def why(one: ReplicaView) -> str:
    """Why a replica is in its state, with what was last seen that did not change it."""
    if one.remark in ("", one.reason):
        return one.reason
    return f"{one.reason} (last seen: {one.remark})" if one.reason else one.remark


def outlook(one: ReplicaView) -> str:
    """What would change a replica's state."""
    if one.removed:
        return "it is forgotten once its last request has ended: it is listed no more"
    if one.back_in is None:
        return one.prospect
    return f"{one.prospect} (in {one.back_in:.0f} s)" if one.back_in else f"{one.prospect} (its time is over)"


def order_words(one: OrderView) -> str:
    """What is ordered, by whom, and whether that is used."""
    what = " and ".join(word for word, held in (("added", one.added), ("drained", one.draining)) if held)
    said = f"{what} {_by(one.author, one.at, one.note)}"
    return f"{said}; not used here: {one.fault}" if one.fault else said


def few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def warnings(one: ReplicaView) -> list[str]:
    """What an operator has to do something about, the worst first."""
    lines = []
    if one.exposed:
        lines.append(
            f"WARNING: the engine of {one.id} also answers at {', '.join(one.exposed)}, around the gateway: without "
            "keys, limits and records. Have it listen on loopback only (vLLM: --host 127.0.0.1)."
        )
    if one.verdict:
        lines.append(f"{one.id}: {one.verdict}.")
    if one.missing:
        lines.append(
            f"{one.id}: its {one.engine} engine does not give {', '.join(one.missing)}: balancing guesses instead. "
            "Another version may name them differently."
        )
    if one.state in ROUTABLE and one.signals_age is not None and one.signals_age > _STALE:
        lines.append(f"{one.id}: its signals are {one.signals_age:.0f} s old.")
    return lines


def remarks(fleet: FleetList) -> list[str]:
    """What is to be said of the whole fleet: exposed engines first."""
    lines = [line for one in fleet.replicas for line in warnings(one)]
    lines.sort(key=lambda line: not line.startswith("WARNING"))
    lines += _readiness(fleet)
    lines += [f"Engines from {one.kind}: {one.trouble}." for one in fleet.sources if one.trouble]
    if fleet.watched and fleet.generation is None:
        lines.append("The state store cannot be read now: orders are not shown. Those that are known stand.")
    return lines


def _readiness(fleet: FleetList) -> Iterable[str]:
    if not fleet.watched:
        yield (
            "No gateway was asked: these are the orders that each one on this state follows. How engines do, a running "
            "one knows: 'gateway status' lists them, --admin-url names one, 'gateway serve' starts one."
        )
    elif not fleet.replicas:
        yield "No engines are known: 'gateway fleet add URL' adds one, so does 'engines' in gateway.yaml."
    elif not any(one.state in ROUTABLE for one in fleet.replicas):
        yield "No replica is ready: every request is refused with 503 until one is."


def _by(author: str, at: float, note: str) -> str:
    return f"by {author} at {moment(at)}" + (f": {note}" if note else "")


def _count(one: ReplicaView, signal: str) -> str:
    value = one.signals.get(signal)
    return "-" if value is None else f"{value:.0f}"


def _share(one: ReplicaView, signal: str) -> str:
    value = one.signals.get(signal)
    return "-" if value is None else f"{value:.0%}"
