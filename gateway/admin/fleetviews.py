"""Engines, replicas and what may be ordered of them, as the admin API, ``--json`` and the command line have them.

What an engine's URL may look like is the configuration's rule: ``configvalues`` judges it here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway import configvalues
from gateway.admin.aliasorders import Note
from gateway.admin.schemas import Closed, Query
from gateway.configfile import Given
from gateway.model import EngineOrder, EngineSpec

PAGE = 100
"""How many replicas a page has at most: making one must not keep requests waiting."""

_MAX_LABELS = 16
_MAX_LABEL = 128
_MAX_CURSOR = 300
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


def engine_spec(url: str, labels: Mapping[str, str] = _NO_LABELS) -> EngineSpec:
    """An engine by the rules of the configuration, its URL in the form that all instances share. Raises ``ValueError``
    with what was expected."""
    faults: list[str] = []
    told = Given({name: Given(value, "") for name, value in labels.items()}, "")
    found = configvalues.engines(
        Given([Given({"url": Given(url, ""), "labels": told}, "")], ""), lambda _, expected: faults.append(expected)
    )
    if faults:
        raise ValueError(f"expected {faults[0]}")
    return found[0][1]


def engine_id(text: str) -> str:
    """The id of an engine as given, in the form that lists show. Raises ``ValueError``."""
    faults: list[str] = []
    place = configvalues.address(Given(text, ""), lambda _, expected: faults.append(expected))
    if faults:
        raise ValueError("expected the id of an engine, HOST:PORT as 'gateway fleet list' shows it")
    return str(place).lower()


def engine_reference(text: str) -> str:
    """An engine's id or its URL, in the form that lists show. Raises ``ValueError``."""
    return engine_spec(text).url if "://" in text else engine_id(text)


def id_of(reference: str) -> str:
    """The id in a reference."""
    return EngineSpec(reference).id if "://" in reference else reference


def _url(url: str) -> str:
    return engine_spec(url).url


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > _MAX_LABELS:
        raise ValueError(f"expected at most {_MAX_LABELS} labels")
    if not all(len(value) <= _MAX_LABEL and value.isprintable() for value in labels.values()):
        raise ValueError(f"expected labels of at most {_MAX_LABEL} printable characters")
    return dict(engine_spec("http://localhost", labels).labels)


EngineId = Annotated[str, AfterValidator(engine_id)]


class FleetOrder(Closed):
    """What every order about an engine may say."""

    note: Note = ""


class AddOrder(FleetOrder):
    """An engine to be made part of the fleet."""

    url: Annotated[str, AfterValidator(_url)]
    labels: Annotated[dict[str, str], AfterValidator(_labels), Field(default_factory=dict)]

    def spec(self) -> EngineSpec:
        """The engine as the rest of the gateway knows it."""
        return engine_spec(self.url, self.labels)


class RemoveOrder(FleetOrder):
    """The end of an order that added an engine."""


class DrainOrder(FleetOrder):
    """No new requests for an engine; those that it has finish."""


class UndrainOrder(FleetOrder):
    """The end of a drain."""


class WarmOrder(FleetOrder):
    """Warm an engine up again, as if it had been restarted."""


class FleetPaging(Query):
    """Which replicas: at most ``limit``, the first one behind the URL ``after``."""

    after: Annotated[str, Field(max_length=_MAX_CURSOR)] = ""
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE


class OrderView(Closed):
    """What operators ordered about an engine, and who did so last, when (Unix seconds) and why.

    ``fault`` says why the instance that is asked does not use it, by its own configuration.
    """

    id: str
    url: str
    added: bool
    draining: bool
    labels: dict[str, str]
    author: str
    at: float
    note: str
    fault: str


class DrainView(Closed):
    """Who ordered a drain, when (Unix seconds) and why."""

    author: str
    at: float
    note: str


class ReplicaView(Closed):
    """A replica as the instance that is asked knows it.

    ``reason`` is why it is in its ``state`` since ``since`` (Unix seconds), ``remark`` what was last seen that changed
    none, ``prospect`` what would. ``in_flight`` are this instance's requests, which ``room`` bounds (``None``: nothing
    does); ``share`` below 1 is slow start. ``back_in`` is seconds until an ejected one may be tried. ``exposed`` are
    other addresses at which the engine answers, around the gateway. ``drain`` is the order that it follows, ``removed``
    says that it is listed no more. ``signals`` are ``signals_age`` seconds old, ``missing`` those that an engine of
    this kind should give.
    """

    id: str
    url: str
    server_name: str | None
    origin: str
    labels: dict[str, str]
    state: str
    since: float
    reason: str
    remark: str
    prospect: str
    engine: str
    version: str | None
    verdict: str
    warmth: str
    models: list[str]
    max_model_len: int | None
    in_flight: int
    room: int | None
    share: float
    ejections: int
    back_in: float | None
    exposed: list[str]
    drain: DrainView | None
    removed: bool
    signals: dict[str, float]
    signals_age: float | None
    missing: list[str]


class SourceView(Closed):
    """A kind of source of engines: seconds since it was last believed, how many fail, and what is wrong."""

    kind: str
    age: float
    faults: int
    trouble: str


class FleetList(Closed):
    """Replicas by URL, where they are found, and orders about engines that are not among them (all of the latter two,
    on each page).

    ``generation`` is that of the orders; ``None``: the store cannot be read now, and no order is shown. ``next`` is
    what ``after`` has to be for the replicas that follow; ``None``: there are no more. ``watched`` says whether a
    gateway was asked: nobody else knows more than the orders.
    """

    watched: bool
    generation: int | None
    replicas: list[ReplicaView]
    next: str | None
    sources: list[SourceView]
    orders: list[OrderView]


class EngineChange(Closed):
    """What an order came to: whether it ``changed`` anything, and the order that stands now (``None``: none).

    ``replica`` is how the instance that was asked has the engine now; ``watched`` as in ``FleetList``. An instance that
    knows the orders of that ``generation`` follows; ``None``: the store failed just after it had taken the order.
    """

    id: str
    url: str
    changed: bool
    watched: bool
    generation: int | None
    order: OrderView | None
    replica: ReplicaView | None


def order_view(order: EngineOrder, fault: str | None = None) -> OrderView:
    """An order as shown, with what this instance has against it."""
    return OrderView(
        id=id_of(order.url),
        url=order.url,
        added=order.added,
        draining=order.draining,
        labels=dict(order.labels),
        author=order.author,
        at=order.at,
        note=order.note,
        fault="" if fault is None else f"expected {fault}",
    )
