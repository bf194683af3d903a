"""What waits for the store."""

from __future__ import annotations

from gateway.limits.outbox import Outbox


def test_nothing_to_tell():
    box = Outbox()
    assert not box
    assert box.next() is None


def test_what_comes_for_one_key_is_summed_and_both_directions_are_kept_apart():
    box = Outbox()
    for seconds in (-2.0, 5.0, -1.0):
        box.correct("rate", seconds)
    box.free("places", "a")
    box.free("places", "b")
    batch = box.next()
    assert batch.keys == ("places", "rate")
    assert batch.values == ("places", 2, "a", "b", "rate", 3.0, 5.0)


def test_a_batch_is_the_same_until_it_is_delivered():
    box = Outbox()
    box.correct("rate", 1.0)
    batch = box.next()
    box.correct("rate", 2.0)
    assert box.next() is batch
    box.delivered(batch)
    later = box.next()
    assert (batch.number, later.number) == (1, 2)
    assert later.values == ("rate", 0.0, 2.0)
    box.delivered(batch)
    assert box.next() is later
    box.delivered(later)
    assert not box


def test_freed_leases_are_known_until_they_are_delivered():
    box = Outbox()
    box.free("places", "a")
    batch = box.next()
    box.free("places", "b")
    assert box.freed("places") == ("a", "b")
    assert box.freed("others") == ()
    box.delivered(batch)
    assert box.freed("places") == ("b",)


def test_memory_is_bounded_and_what_is_dropped_is_counted():
    box = Outbox(most=10)
    for number in range(20):
        box.correct(f"rate-{number}", 1.0)
        box.free("places", f"lease-{number}")
    assert len(box) == 10
    assert box.dropped == 30
    box.correct("rate-0", 1.0)
    assert box.dropped == 30


def test_a_batch_is_bounded_and_all_is_told_in_the_end():
    box = Outbox(batch=12)
    for number in range(20):
        box.correct(f"rate-{number}", 1.0)
        box.free("places", f"lease-{number}")
    told, sizes = [], []
    while (batch := box.next()) is not None:
        told += [value for value in (*batch.keys, *batch.values) if str(value).startswith(("rate-", "lease-"))]
        sizes.append(len(batch.keys) + sum(map(len, batch.freed.values())))
        box.delivered(batch)
    assert len(set(told)) == len(told) == 40
    assert max(sizes) <= 14
    assert len(sizes) > 3
    assert len(box) == 0
