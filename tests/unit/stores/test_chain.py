"""The chain: what is whole, and where what was touched stops being so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.stores.chain import GENESIS, entry_hash, first_break, sealed
from gateway.stores.interfaces import AuditEntry

Lines = list[AuditEntry]


def trail(count: int = 5) -> Lines:
    lines: Lines = []
    for number in range(1, count + 1):
        previous = lines[-1].hash if lines else GENESIS
        lines.append(sealed(previous, number, float(number), "ann", "key.create", f"K{number}", {"name": f"n{number}"}))
    return lines


def test_the_hash_is_as_documented() -> None:
    line = b'[1,2.5,"ann","key.create","K\xc3\xa9","{\\"a\\":1}"]'
    expected = hashlib.sha256(bytes(32) + line).digest()
    assert entry_hash(GENESIS, 1, 2.5, "ann", "key.create", "Ké", '{"a":1}') == expected
    entry = sealed(GENESIS, 1, 2.5, "ann", "key.create", "Ké", {"a": 1})
    assert entry == AuditEntry(1, 2.5, "ann", "key.create", "Ké", '{"a":1}', GENESIS, expected)


def test_a_whole_second_has_one_hash() -> None:
    assert entry_hash(GENESIS, 1, 2, "a", "v", "s", "{}") == entry_hash(GENESIS, 1, 2.0, "a", "v", "s", "{}")


def test_text_cannot_move_from_one_field_to_the_next() -> None:
    fields = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ('a","b', "c", "d")]
    assert len({entry_hash(GENESIS, 1, 1.0, *three, "{}") for three in fields}) == len(fields)


def test_a_trail_is_whole_from_its_start_from_any_line_and_when_empty() -> None:
    lines = trail()
    assert first_break(lines) is None
    assert first_break(lines[2:], 2, lines[1].hash) is None
    assert first_break([]) is None


SPOILED: dict[str, tuple[Callable[[Lines], Lines], int]] = {
    "author": (lambda lines: [*lines[:2], replace(lines[2], author="bob"), *lines[3:]], 3),
    "time": (lambda lines: [*lines[:2], replace(lines[2], at=3.5), *lines[3:]], 3),
    "detail": (lambda lines: [*lines[:2], replace(lines[2], detail="{}"), *lines[3:]], 3),
    "number": (lambda lines: [*lines[:2], replace(lines[2], number=9), *lines[3:]], 3),
    "previous": (lambda lines: [*lines[:2], replace(lines[2], previous=bytes(32)), *lines[3:]], 3),
    "hash": (lambda lines: [*lines[:2], replace(lines[2], hash=bytes(32)), *lines[3:]], 3),
    "removed": (lambda lines: [*lines[:2], *lines[3:]], 3),
    "first removed": (lambda lines: lines[1:], 1),
    "twice": (lambda lines: [*lines[:3], *lines[2:]], 4),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "resealed": (
        lambda lines: [*lines[:2], sealed(lines[1].hash, 3, 3.0, "bob", "key.create", "K3", {}), *lines[3:]],
        4,
    ),
}


@pytest.mark.parametrize(("spoil", "place"), SPOILED.values(), ids=SPOILED)
def test_what_was_touched_is_found_where_it_was(spoil: Callable[[Lines], Lines], place: int) -> None:
    assert first_break(spoil(trail())) == place


def test_another_start_breaks_at_once() -> None:
    lines = trail()
    assert first_break(lines[2:], 2, GENESIS) == 3
    assert first_break(lines[2:], 1, lines[1].hash) == 2
