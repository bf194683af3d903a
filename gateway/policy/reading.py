"""Readers that the policy files of names share: lists whose every item is judged, and sections keyed by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.policy.document import Document, Option

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Item(NamedTuple):
    """What one item of a list must be: a judge, and in words what it takes."""

    accepts: Callable[[Any], bool]
    expected: str


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


NAME = Item(_is_name, "a name, 1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first")
"""What may name a role, a tenant or an issuer: the rule that the admin API has for a key's."""


def optional(option: Option) -> Option:
    """The option, left out when it is not written."""
    return replace(option, default=None, required=False)


def number(low: float, high: float, default: float) -> Option:
    """A number within bounds; neither an infinity nor "not a number" is."""

    def read(value: Any) -> float | None:
        return float(value) if type(value) in (int, float) and low <= value <= high else None

    return Option(read, f"a number between {low:g} and {high:g}", default)


def items(document: Document, value: Any, where: str, item: Item, most: int) -> tuple[Any, ...]:
    """The items of a list that are as they must be; each other one is a fault of its own."""
    if not isinstance(value, list) or len(value) > most:
        document.fault(where, f"expected a list of at most {most} items, each {item.expected}")
        return ()
    for index, held in enumerate(value):
        if not item.accepts(held):
            document.fault(f"{where}[{index}]", f"expected {item.expected}")
    return tuple(held for held in value if item.accepts(held))


def named(document: Document, value: Any, where: str, most: int) -> Iterator[tuple[str, Any, str]]:
    """The entries of a section that are keyed by a name: name, value and path."""
    held: Mapping[str, Any] = document.mapping(value, where)
    if len(held) > most:
        document.fault(where, f"expected at most {most} entries")
    for name, entry in held.items():
        if NAME.accepts(name):
            yield name, entry, f"{where}.{name}"
        else:
            document.fault(f"{where}.{name}", f"expected {NAME.expected}")


def one_of(known: Mapping[str, Any], what: str) -> Item:
    """A name that is in ``known``."""
    listed = ", ".join(known) or "there are none"
    return Item(lambda value: isinstance(value, str) and value in known, f"one of the {what}: {listed}")
