"""What the ring remembers, and that it stays bounded."""

from __future__ import annotations

from gateway.identity.keycache import KeyCache, UnknownKeys
from gateway.model import Principal


def principal(name: str) -> Principal:
    return Principal(name, "t1")


def test_the_principal_not_used_for_longest_makes_room() -> None:
    cache = KeyCache(2)
    cache.keep(b"a", principal("A"))
    cache.keep(b"b", principal("B"))
    assert cache.get(b"a") == principal("A")
    cache.keep(b"c", principal("C"))
    assert [cache.get(mark) for mark in (b"a", b"b", b"c")] == [principal("A"), None, principal("C")]
    assert len(cache) == 2


def test_keeping_a_mark_again_replaces_what_was_kept() -> None:
    cache = KeyCache(2)
    cache.keep(b"a", principal("A"))
    cache.keep(b"a", principal("B"))
    assert (cache.get(b"a"), len(cache)) == (principal("B"), 1)
    cache.forget_principal("A")
    assert cache.get(b"a") == principal("B")
    cache.forget_principal("B")
    assert cache.get(b"a") is None


def test_all_marks_of_a_principal_are_forgotten_and_no_other() -> None:
    cache = KeyCache(9)
    for mark, name in ((b"a", "A"), (b"b", "A"), (b"c", "C")):
        cache.keep(mark, principal(name))
    cache.forget_principal("A")
    cache.forget_principal("nobody")
    assert [cache.get(mark) for mark in (b"a", b"b", b"c")] == [None, None, principal("C")]


def test_one_mark_is_forgotten_and_the_other_still_belongs_to_the_principal() -> None:
    cache = KeyCache(9)
    cache.keep(b"a", principal("A"))
    cache.keep(b"b", principal("A"))
    cache.forget(b"a")
    cache.forget(b"a")
    assert [cache.get(mark) for mark in (b"a", b"b")] == [None, principal("A")]
    cache.forget_principal("A")
    assert len(cache) == 0


def test_nothing_is_left_behind_by_what_made_room() -> None:
    cache = KeyCache(3)
    for number in range(100):
        cache.keep(b"%d" % number, principal(str(number % 50)))
    assert len(cache) == len(cache._marks) == 3
    cache.clear()
    assert (len(cache), len(cache._marks)) == (0, 0)


def test_an_unknown_mark_is_held_until_its_time() -> None:
    unknown = UnknownKeys(2)
    unknown.keep(b"a", 10.0)
    assert [unknown.holds(b"a", now) for now in (9.9, 10.0)] == [True, False]
    assert not unknown.holds(b"b", 0.0)
    unknown.keep(b"b", 10.0)
    unknown.keep(b"a", 20.0)
    unknown.keep(b"c", 10.0)
    assert [unknown.holds(mark, 5.0) for mark in (b"a", b"b", b"c")] == [True, False, True]
    unknown.clear()
    assert not unknown.holds(b"a", 5.0)
