"""``gateway fleet``: which engines there are, how each does, and orders about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from gateway.admin.fleetviews import (
    AddOrder,
    DrainOrder,
    EngineChange,
    FleetList,
    FleetOrder,
    RemoveOrder,
    UndrainOrder,
    WarmOrder,
    engine_reference,
)
from gateway.cli.backend import Backend
from gateway.cli.choose import Where
from gateway.cli.fleetexplain import explain
from gateway.cli.fleetrows import COLUMNS, order_cells, remarks, replica_cells, replica_fields, warnings
from gateway.cli.fleetwait import wait_until_gone, wait_until_ready
from gateway.cli.output import note, plain, print_fields, print_json, print_table
from gateway.cli.run import AdminToken, AdminUrl, Json, State, Timeout, act, checked, waiting_time, where
from gateway.fleet.discover.sources import Origin
from gateway.fleet.life import State as ReplicaState

app = typer.Typer(no_args_is_help=True, help="See which engines there are and how each does; add, drain, remove them.")

Waiting = Callable[[Backend, str, float], Awaitable[None]]


def _reference(text: str) -> str:
    try:
        return engine_reference(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


Engine = Annotated[
    str,
    typer.Argument(metavar="ID", help="HOST:PORT as 'gateway fleet list' shows it, or the URL.", callback=_reference),
]
Note = Annotated[str, typer.Option("--note", help="Why, for those who read the list and the audit trail.")]
UntilReady = Annotated[bool, typer.Option("--wait", help="Until it is ready; exit code 1 if it is not in time.")]
_LONG = "10m"


@app.command("list", epilog="Example:  gateway fleet list --model qwen3-32b --in-state ready")
def list_fleet(
    *,
    model: Annotated[str | None, typer.Option("--model", metavar="M", help="Only engines that serve it.")] = None,
    in_state: Annotated[
        ReplicaState | None, typer.Option("--in-state", help="Only replicas that are in it.", show_choices=True)
    ] = None,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """List all replicas: the state of each, since when, why, and what would change it.

    A replica gets requests when it is ready, and one at a time in probation. Figures are those of the gateway that is
    asked (IN FLIGHT) and of the engine (RUNNING, WAITING, KV). An engine that is ordered and not among the replicas
    stands below them. Below the table: what needs a hand, engines that can be reached around the gateway first.
    """
    fleet = act(where(state, admin_url, admin_token), lambda backend: backend.list_fleet())
    shown = _narrowed(fleet, model, in_state)
    if as_json:
        print_json(shown)
    else:
        rows = [*map(replica_cells, shown.replicas), *map(order_cells, shown.orders)]
        print_table("Engines", COLUMNS, rows)
    if fleet.replicas and not shown.replicas:
        note(f"None of the {len(fleet.replicas)} replicas is as --model and --in-state say.")
    for line in remarks(fleet):
        note(plain(line))


@app.command(epilog="Example:  gateway fleet show 127.0.0.1:8001")
def show(
    engine: Engine,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Show one replica: its state and why, what its engine is and serves, and all its signals with their age."""
    one = act(where(state, admin_url, admin_token), lambda backend: backend.show_replica(engine))
    if as_json:
        print_json(one)
    else:
        print_fields(replica_fields(one))
    for line in warnings(one):
        note(plain(line))


@app.command(epilog="Example:  gateway fleet add http://127.0.0.1:8003 --label gpu=a100 --note 'third card' --wait")
def add(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="http on loopback, or https to a host listed in remote_engines.")
    ],
    *,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="What ops say about it. Repeatable.")
    ] = None,
    text: Note = "",
    wait: UntilReady = False,
    timeout: Timeout = _LONG,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Make an engine part of the fleet, on every gateway of this state, until it is removed.

    It gets requests once it is warm. It needs no restart and no change of gateway.yaml; the URL obeys the same rules.
    """
    order = checked(AddOrder, url=url, labels=_labels(label or []), note=text)

    def added(made: EngineChange) -> str:
        follows = "it gets requests once it is warm" if made.watched else "a gateway looks at it once one runs here"
        drained = made.order is not None and made.order.draining
        return f"{made.id} is added; " + (
            f"it stays drained: 'gateway fleet undrain {made.id}' lets it in." if drained else f"{follows}."
        )

    place, patience = where(state, admin_url, admin_token), waiting_time(timeout) if wait else None
    _carry_out(place, lambda backend: backend.add_engine(order), added, seconds=patience, as_json=as_json)


@app.command(epilog="Example:  gateway fleet drain 127.0.0.1:8003 --wait && gateway fleet remove 127.0.0.1:8003")
def remove(
    engine: Engine,
    *,
    text: Note = "",
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Take back that an engine was added. It gets no new requests; those that it has finish.

    Only for what 'gateway fleet add' added: an engine of gateway.yaml, a file or DNS is taken out there, or drained.
    """

    def removed(made: EngineChange) -> str:
        left = made.replica
        if left is None:
            return f"{made.id} is removed."
        if not left.removed and left.origin != Origin.ORDERS:
            return f"{made.id} is removed from the orders, and stays: it is listed in {left.origin} as well."
        if left.in_flight == 0:
            return f"{made.id} is removed: nothing of this gateway is left there."
        return (
            f"{made.id} is removed; it is gone when what it has of this gateway has ended ({left.in_flight} in flight)."
        )

    order = checked(RemoveOrder, note=text)
    _carry_out(where(state, admin_url, admin_token), _to(engine, order), removed, as_json=as_json)


@app.command(epilog="Example:  gateway fleet drain 127.0.0.1:8001 --note 'new driver' --wait --timeout 10m")
def drain(
    engine: Engine,
    *,
    text: Note = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Until the gateway that is asked has nothing left there; else exit code 1.")
    ] = False,
    timeout: Timeout = _LONG,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Give an engine no new requests, on every gateway: streams finish, then it is gone. Nothing is ever cut.

    It holds over restarts of the engine and of gateways, until 'gateway fleet undrain'. When --timeout passes, the
    drain goes on. To stop the engine safely, wait on each gateway that shares the state ('gateway status').
    """

    def drained(made: EngineChange) -> str:
        was = "" if made.changed else " already"
        follows = "" if made.watched else "; every gateway of this state follows, also one that starts later"
        return f"{made.id} is being drained{was}: no new requests, streams finish{follows}."

    place, patience = where(state, admin_url, admin_token), waiting_time(timeout) if wait else None
    order = checked(DrainOrder, note=text)
    _carry_out(place, _to(engine, order), drained, waiting=wait_until_gone, seconds=patience, as_json=as_json)


@app.command(epilog="Example:  gateway fleet undrain 127.0.0.1:8001 --wait")
def undrain(
    engine: Engine,
    *,
    text: Note = "",
    wait: UntilReady = False,
    timeout: Timeout = _LONG,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Let a drained engine in again. It is looked at and warmed up as a new one, then gets requests."""

    def undrained(made: EngineChange) -> str:
        return f"{made.id} is let in again." if made.changed else f"{made.id} was not drained: nothing changed."

    place, patience = where(state, admin_url, admin_token), waiting_time(timeout) if wait else None
    order = checked(UndrainOrder, note=text)
    _carry_out(place, _to(engine, order), undrained, seconds=patience, as_json=as_json)


@app.command(epilog="Example:  gateway fleet warm 127.0.0.1:8001 --wait")
def warm(
    engine: Engine,
    *,
    text: Note = "",
    wait: UntilReady = False,
    timeout: Timeout = _LONG,
    as_json: Json = False,
    state: State = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Warm an engine up again, as if it had been restarted: on the gateway that is asked, and on no other.

    It gets no new requests until it is warm; if no other serves its models, they are refused meanwhile.
    """

    def warming(made: EngineChange) -> str:
        return f"{made.id} is being warmed up again; it gets no new requests until it is warm."

    place, patience = where(state, admin_url, admin_token), waiting_time(timeout) if wait else None
    order = checked(WarmOrder, note=text)
    _carry_out(place, _to(engine, order), warming, seconds=patience, as_json=as_json)


app.command("explain", epilog="Example:  gateway fleet explain --request-id req_0123456789abcdef01234567")(explain)


def _to(engine: str, order: FleetOrder) -> Callable[[Backend], Awaitable[EngineChange]]:
    return lambda backend: backend.change_engine(engine, order)


def _carry_out(
    place: Where,
    give: Callable[[Backend], Awaitable[EngineChange]],
    words: Callable[[EngineChange], str],
    *,
    waiting: Waiting = wait_until_ready,
    seconds: int | None = None,
    as_json: bool,
) -> None:
    """Give an order and tell; with ``seconds``, wait for what it leads to. Ends with exit code 1 as ``act`` does."""

    async def work(backend: Backend) -> None:
        made = await give(backend)
        note(plain(words(made)))
        if as_json:
            print_json(made)
        if seconds is None:
            return
        if made.watched:
            await waiting(backend, made.url, seconds)
        else:
            note("No gateway was asked: there is nothing to wait for here.")

    act(place, work)


def _narrowed(fleet: FleetList, model: str | None, state: ReplicaState | None) -> FleetList:
    """What is asked for of the fleet; an order has neither models nor a state."""
    if model is None and state is None:
        return fleet
    kept = [
        one
        for one in fleet.replicas
        if (model is None or model in one.models) and (state is None or one.state == state)
    ]
    return fleet.model_copy(update={"replicas": kept, "orders": []})


def _labels(given: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as labels. Raises ``typer.BadParameter``."""
    pairs = [text.partition("=") for text in given]
    names = [name for name, equals, _ in pairs if equals]
    if len(set(names)) != len(given):
        raise typer.BadParameter("expected NAME=VALUE, each name once", param_hint="'--label'")
    return {name: value for name, _, value in pairs}
