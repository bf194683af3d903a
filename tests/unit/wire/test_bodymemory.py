"""The count of bytes that a listener's bodies share."""

from __future__ import annotations

from gateway.wire.bodymemory import BodyMemory


def test_what_is_too_much_is_not_counted() -> None:
    memory = BodyMemory(10)
    assert memory.take(6)
    assert not memory.take(5)
    assert memory.held == 6
    assert memory.take(4)
    assert not memory.take(1)
    memory.give_back(6)
    assert memory.held == 4
    assert memory.take(6)
