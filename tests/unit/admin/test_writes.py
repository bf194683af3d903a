"""How often one author may write."""

from __future__ import annotations

from gateway.admin.writes import WriteLimit


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def admitted(limit, author, tries=200):
    return sum(limit.admit(author) is None for _ in range(tries))


def test_a_minute_gives_so_many_writes_all_at_once_and_then_one_by_one():
    clock = Clock()
    limit = WriteLimit(60, monotonic=clock)
    assert admitted(limit, "a") == 60
    assert limit.admit("a") == 1
    clock.now += 1.0
    assert admitted(limit, "a") == 1
    clock.now += 60.0
    assert admitted(limit, "a") == 60


def test_authors_do_not_share():
    limit = WriteLimit(5, monotonic=Clock())
    assert admitted(limit, "a") == 5
    assert admitted(limit, "b") == 5
    assert limit.admit("a") == 12


def test_what_is_remembered_is_bounded_and_the_newest_stays():
    limit = WriteLimit(1, capacity=2, monotonic=Clock())
    for author in ("a", "b", "c"):
        assert limit.admit(author) is None
    assert limit.admit("c") is not None
    assert limit.admit("b") is not None
    assert limit.admit("a") is None


def test_whoever_wrote_last_is_forgotten_last():
    limit = WriteLimit(2, capacity=2, monotonic=Clock())
    assert admitted(limit, "a", 1) == admitted(limit, "b", 1) == admitted(limit, "a", 1) == 1
    assert limit.admit("c") is None
    assert limit.admit("a") is not None
