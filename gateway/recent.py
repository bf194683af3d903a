"""A bounded cache is an ``OrderedDict`` that this function alone adds to."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep(cache: OrderedDict[K, V], key: K, value: V, capacity: int) -> None:
    """Put in the newest entry; the oldest goes when there are more than ``capacity``."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > capacity:
        cache.popitem(last=False)
