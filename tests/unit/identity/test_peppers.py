"""Whether the peppers at hand are those that the store's keys were made under."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from gateway.errors import Unavailable
from gateway.identity.keys import digest
from gateway.identity.peppers import check_peppers, pepper_mark
from gateway.identity.secrets import SecretFault
from gateway.secret import Secret

ONE, TWO, THREE = (Secret(letter * 43) for letter in "abc")


@dataclass
class Marks:
    """What a store keeps of peppers."""

    kept: dict[int, bytes] = field(default_factory=dict)
    fault: Exception | None = None

    async def pepper_mark(self, version: int, mark: bytes) -> bytes:
        if self.fault:
            raise self.fault
        return self.kept.setdefault(version, mark)


def check(marks: Marks, peppers: dict[int, Secret]) -> None:
    asyncio.run(check_peppers(marks, peppers))


def test_a_mark_is_a_keyed_hash_that_tells_peppers_apart() -> None:
    assert pepper_mark(ONE) == pepper_mark(Secret("a" * 43)) != pepper_mark(TWO)
    assert len(pepper_mark(ONE)) == 32
    assert pepper_mark(ONE) == digest(b"a" * 43, "gateway pepper mark")


def test_the_first_peppers_are_kept_and_found_again() -> None:
    marks = Marks()
    check(marks, {1: ONE})
    check(marks, {1: ONE, 2: TWO})
    check(marks, {2: TWO})
    assert marks.kept == {1: pepper_mark(ONE), 2: pepper_mark(TWO)}


@pytest.mark.parametrize(
    ("peppers", "version", "places"),
    [
        ({1: TWO}, 1, "GATEWAY_PEPPER, GATEWAY_PEPPER_FILE or the file pepper "),
        ({1: ONE, 2: THREE}, 2, "GATEWAY_PEPPER_2, GATEWAY_PEPPER_2_FILE or the file pepper-2 "),
    ],
)
def test_another_pepper_is_named_with_what_to_do_and_never_shown(
    peppers: dict[int, Secret], version: int, places: str
) -> None:
    marks = Marks()
    check(marks, {1: ONE, 2: TWO})
    before = dict(marks.kept)
    with pytest.raises(SecretFault) as raised:
        check(marks, peppers)
    message = str(raised.value)
    assert f"another pepper of version {version}" in message
    assert places in message
    assert not [letter for letter in "abc" if letter * 43 in message]
    assert marks.kept == before


def test_a_wrong_pepper_keeps_newer_ones_from_being_taken() -> None:
    marks = Marks({1: pepper_mark(ONE)})
    with pytest.raises(SecretFault):
        check(marks, {2: TWO, 1: THREE})
    assert marks.kept == {1: pepper_mark(ONE)}


def test_a_store_that_cannot_be_asked_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        check(Marks(fault=Unavailable("store_unavailable")), {1: ONE})
