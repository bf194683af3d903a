"""Orders about engines in the SQLite store. Every function runs on the store's worker thread.

Functions that write are to be called inside a transaction of ``in_transaction``.
"""

from __future__ import annotations

import sqlite3
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from gateway.model import EngineOrder, EngineOrders
from gateway.stores.audit_queries import append
from gateway.stores.engine_standing import Decide, EngineStanding
from gateway.stores.queries import count, in_transaction, move, rows, scalar

T = TypeVar("T")

_COLUMNS = "url, added, draining, labels, author, at, note"


def engine_orders(db: sqlite3.Connection) -> EngineOrders:
    """All orders and their generation, of one moment."""
    return in_transaction(db, "DEFERRED", _read_orders)


def change(db: sqlite3.Connection, url: str, decide: Decide[T]) -> T:
    """Carry out what is decided about an engine, with its line of the trail. Raises what ``decide`` does."""
    decided = decide(_standing(db, url))
    if decided.change is not None:
        _keep(db, url, decided.order)
        move(db, "fleet")
        append(db, decided.change)
    return decided.result


def _read_orders(db: sqlite3.Connection) -> EngineOrders:
    found = map(_order, rows(db, f"SELECT {_COLUMNS} FROM engine_orders ORDER BY url"))  # noqa: S608
    return EngineOrders(count(db, "fleet"), MappingProxyType({order.url: order for order in found}))


def _standing(db: sqlite3.Connection, url: str) -> EngineStanding:
    found = rows(db, f"SELECT {_COLUMNS} FROM engine_orders WHERE url = ?", url)  # noqa: S608
    orders = int(scalar(db, "SELECT count(*) FROM engine_orders"))
    return EngineStanding(url, _order(found[0]) if found else None, orders)


def _keep(db: sqlite3.Connection, url: str, order: EngineOrder | None) -> None:
    if order is None:
        db.execute("DELETE FROM engine_orders WHERE url = ?", (url,))
        return
    labels = orjson.dumps(dict(order.labels)).decode()
    db.execute(
        f"INSERT OR REPLACE INTO engine_orders ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (order.url, order.added, order.draining, labels, order.author, order.at, order.note),
    )


def _order(row: tuple[Any, ...]) -> EngineOrder:
    url, added, draining, labels, *last = row
    return EngineOrder(url, bool(added), bool(draining), MappingProxyType(orjson.loads(labels)), *last)
