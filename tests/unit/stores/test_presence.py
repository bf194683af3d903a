"""Which instances are remembered, and in which order."""

from __future__ import annotations

from gateway.model import Instance
from gateway.stores.presence import remembered


def instance(name: str, started: float, seen: float) -> Instance:
    return Instance(name, name, "1", "", started, seen, 1)


def test_none_is_none() -> None:
    assert remembered([]) == ()


def test_the_oldest_start_comes_first_and_the_silent_are_left_out() -> None:
    new, old, twin = instance("n", 9.0, 9_000.0), instance("o", 2.0, 5_400.0), instance("p", 2.0, 9_000.5)
    assert remembered(iter([new, twin, old, instance("s", 1.0, 5_000.0)])) == (twin, new)
    assert remembered([twin, old]) == (twin,)
    assert remembered([new, old]) == (old, new)
