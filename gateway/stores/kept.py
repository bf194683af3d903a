"""What was last known of the store, on disk: what an instance serves by when it starts while its store is gone.

That is the alias table, and what operators ordered about engines: a drain must hold through such a start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from gateway.model import AliasTable, EngineOrder, EngineOrders, Revision, Target

FILE = "aliases.json"
ORDERS_FILE = "engines.json"
_FORMAT = 1
_MAX_BYTES = 64 << 20
_ORDER = tuple(EngineOrder.__dataclass_fields__)
T = TypeVar("T")


def keep_table(folder: Path, table: AliasTable) -> None:
    """Write the table whole or not at all, mode 0600. It blocks. Raises ``OSError``."""
    rows = [_row(revision) for revision in table.current.values()]
    _keep(folder, FILE, {"format": _FORMAT, "generation": table.generation, "aliases": rows})


def kept_table(folder: Path) -> AliasTable | None:
    """The table that was kept last; ``None``: none was, or what is there is no whole table. It blocks."""
    return _kept(folder, FILE, _table)


def keep_orders(folder: Path, orders: EngineOrders) -> None:
    """Write the orders whole or not at all, mode 0600. It blocks. Raises ``OSError``."""
    rows = [{**_fields(order), "labels": dict(order.labels)} for order in orders.engines.values()]
    _keep(folder, ORDERS_FILE, {"format": _FORMAT, "generation": orders.generation, "engines": rows})


def kept_orders(folder: Path) -> EngineOrders | None:
    """The orders that were kept last; ``None``: none were, or what is there is not whole. It blocks."""
    return _kept(folder, ORDERS_FILE, _orders)


def _keep(folder: Path, name: str, held: Mapping[str, object]) -> None:
    data = orjson.dumps(held)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{name}.{os.getpid()}"
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)


def _kept(folder: Path, name: str, read: Callable[[Mapping[str, Any]], T | None]) -> T | None:
    try:
        with (folder / name).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return read(orjson.loads(data)) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fields(order: EngineOrder) -> dict[str, object]:
    return {name: getattr(order, name) for name in _ORDER}


def _orders(held: Mapping[str, Any]) -> EngineOrders | None:
    if held["format"] != _FORMAT:
        return None
    orders = [EngineOrder(**{**row, "labels": MappingProxyType(dict(row["labels"]))}) for row in held["engines"]]
    if not all(isinstance(order.url, str) and type(order.draining) is bool for order in orders):
        return None
    return EngineOrders(int(held["generation"]), MappingProxyType({order.url: order for order in orders}))


def _row(revision: Revision) -> dict[str, object]:
    return {
        "alias": revision.alias,
        "number": revision.number,
        "targets": [[target.model, target.weight] for target in revision.targets],
        "author": revision.author,
        "created_at": revision.created_at,
        "note": revision.note,
        "source": revision.source,
        "canary_of": revision.canary_of,
    }


def _table(held: Mapping[str, Any]) -> AliasTable | None:
    if held["format"] != _FORMAT:
        return None
    revisions = [
        Revision(**{**row, "targets": tuple(Target(str(model), int(weight)) for model, weight in row["targets"])})
        for row in held["aliases"]
    ]
    if not all(revision.targets and isinstance(revision.alias, str) for revision in revisions):
        return None
    current = {revision.alias: revision for revision in revisions}
    return AliasTable(int(held["generation"]), MappingProxyType(current))
