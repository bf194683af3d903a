"""Parts of a bound: what is within them neither class nor alias takes from another, and beyond them all give way."""

from __future__ import annotations

from time import process_time

import pytest

from gateway.admission.flows import Ticket
from gateway.admission.holdings import QueueFull, Together, part
from gateway.admission.queue import FairQueue
from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass

I, S, B = Priority  # noqa: E741 - the three classes, the highest first


def queue(together: Together | None = None, **bounds: int) -> FairQueue:
    policy = Admission(**{"queue": 1_000, "queue_bytes": 1 << 30, "starve": PerClass(0, 10, 30), **bounds})
    return FairQueue(lambda: policy, together)


def ticket(number: int, priority: Priority = S, tenant: str = "a", *, alias: str = "x", size: int = 1) -> Ticket:
    return Ticket(
        alias=alias, tenant=tenant, priority=priority, weight=1.0, tokens=100, size=size, deadline=1e9, entered=0.0,
        number=number,
    )  # fmt: skip


def fill(waiting: FairQueue, *tickets: Ticket) -> FairQueue:
    for each in tickets:
        assert waiting.offer(each) == ()
    return waiting


def numbers(tickets: tuple[Ticket, ...]) -> list[int]:
    return [each.number for each in tickets]


def depths(waiting: FairQueue) -> tuple[int, ...]:
    return tuple(waiting.depths().values())


def flood(waiting: FairQueue, priority: Priority, tickets: int, first: int, tenants: int = 10, **given) -> int:
    """So many come; how many were let in."""
    let_in = 0
    for number in range(first, first + tickets):
        try:
            waiting.offer(ticket(number, priority, f"flood{number % tenants}", **given))
        except QueueFull:
            continue
        let_in += 1
    return let_in


# --- classes


@pytest.mark.parametrize(
    ("bound", "parts"),
    [(0, (0, 0, 0)), (1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (4, (2, 1, 1)), (9, (5, 2, 2)),
     (1_000, (750, 125, 125))],
)  # fmt: skip
def test_each_class_has_its_part_of_a_bound(bound, parts):
    assert tuple(part(bound, each.rank) for each in Priority) == parts


@pytest.mark.parametrize("bound", [3, 4, 40, 1_000])
def test_a_flood_of_the_highest_class_leaves_the_others_their_parts(bound):
    waiting = fill(queue(queue=bound), *(ticket(n, (S, B)[n % 2], f"t{n % 7}") for n in range(bound)))
    flood(waiting, I, 3 * bound, 10_000)
    assert depths(waiting) == tuple(part(bound, each.rank) for each in Priority)


@pytest.mark.parametrize("bound", [3, 4, 40, 1_000])
@pytest.mark.parametrize("late", [S, B])
def test_into_a_queue_that_others_have_filled_a_class_gets_as_much_as_its_part(bound, late):
    for first in set(Priority) - {late}:
        waiting = queue(queue=bound)
        flood(waiting, first, bound, 0)
        assert flood(waiting, late, 1, 5_000) == 1
        flood(waiting, late, 3 * bound, 10_000)
        if late.rank > first.rank:
            assert waiting.depths()[late] == part(bound, late.rank)
        flood(waiting, first, 3 * bound, 20_000)
        assert waiting.depths()[late] >= part(bound, late.rank)


def test_where_fewer_may_wait_than_there_are_classes_the_higher_ones_have_it():
    for bound in (1, 2):
        waiting = fill(queue(queue=bound), *(ticket(n, B) for n in range(bound)))
        flood(waiting, I, 10, 100)
        assert depths(waiting) == (bound, 0, 0)
        assert flood(waiting, S, 10, 200) == 0


def test_the_lowest_class_that_is_beyond_its_part_gives_way_first():
    waiting = queue(queue=8)
    fill(waiting, *(ticket(n, I) for n in range(4)), *(ticket(4 + n, S) for n in range(4)))
    assert numbers(waiting.offer(ticket(10, B))) == [7]  # of S, though it is not the most
    with pytest.raises(QueueFull):
        waiting.offer(ticket(11, B))
    assert [numbers(waiting.offer(ticket(12 + n, I))) for n in range(2)] == [[6], [5]]
    with pytest.raises(QueueFull):
        waiting.offer(ticket(14, I))
    assert depths(waiting) == (6, 1, 1)


def test_bytes_have_parts_too_and_a_body_beyond_one_is_not_kept():
    waiting = fill(queue(queue_bytes=80), ticket(0, B, size=30), ticket(1, I, size=50))
    assert numbers(waiting.offer(ticket(2, I, "b", size=10))) == [0]
    waiting = fill(queue(queue_bytes=80), ticket(0, B, size=10), ticket(1, I, size=70))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(2, I, size=1))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(3, B, size=1))
    assert numbers(waiting.offer(ticket(4, S, size=10))) == [1]
    assert waiting.depth_of("x") == (2, 20)


def test_only_what_there_is_too_much_of_has_to_be_within_its_part():
    """Bulk holds most of the bytes, of which there are plenty left, and one of the places, of which there are not."""
    waiting = fill(queue(queue=16, queue_bytes=1_000), ticket(0, B, size=500), *(ticket(1 + n, I) for n in range(15)))
    assert numbers(waiting.offer(ticket(20, B))) == [15]


def test_of_a_class_at_its_part_whoever_holds_the_most_gives_way_to_its_equals():
    waiting = fill(queue(queue=40), *(ticket(n, B, "hog") for n in range(5)), *(ticket(5 + n, I) for n in range(35)))
    assert numbers(waiting.offer(ticket(90, B, "small"))) == [4]
    with pytest.raises(QueueFull):
        waiting.offer(ticket(91, B, "hog"))
    assert depths(waiting) == (35, 0, 5)


def test_who_starves_gets_every_fourth_place_under_a_flood():
    waiting, taken = queue(queue=8), []
    for number in range(400):
        flood(waiting, I, 6, 10 * number)
        for offset, priority in ((6, S), (7, B)):
            if not waiting.depths()[priority]:
                waiting.offer(ticket(10 * number + offset, priority))
        taken.append(waiting.take(31.0, lambda _: True).priority)
    assert [taken.count(each) for each in Priority] == [300, 50, 50]


# --- aliases


def test_an_alias_within_its_part_is_let_in_and_the_fattest_gives_way():
    together = Together(120)
    one, other = queue(together), queue(together)
    fill(one, *(ticket(n, size=10, alias="fat") for n in range(8)))
    fill(one, *(ticket(10 + n, size=10, alias="lean") for n in range(4)))
    assert numbers(other.offer(ticket(20, B, size=35, alias="z"))) == [7, 6, 5, 4]
    assert (one.depth_of("fat"), one.depth_of("lean"), together.size) == ((4, 40), (4, 40), 115)
    with pytest.raises(QueueFull):
        other.offer(ticket(21, B, size=6, alias="z"))
    with pytest.raises(QueueFull):
        one.offer(ticket(22, size=10, alias="fat"))


def test_an_alias_beyond_its_part_finds_room_in_itself():
    together = Together(100)
    waiting = fill(queue(together), *(ticket(n, B, "hog", size=10, alias="fat") for n in range(9)))
    fill(waiting, ticket(9, B, size=10, alias="lean"))
    assert numbers(waiting.offer(ticket(20, S, "new", size=10, alias="fat"))) == [8]
    assert numbers(waiting.offer(ticket(21, B, "new", size=10, alias="fat"))) == [7]
    assert waiting.depth_of("lean") == (1, 10)


def test_four_full_aliases_close_no_queue_to_a_fifth():
    """Each of them may hold 256 bytes, and all together 512."""
    together = Together(512)
    waiting = queue(together, queue_bytes=256)
    for number in range(4):
        flood(waiting, S, 300, 1_000 * number, alias=f"alias{number}")
    assert together.size == 512
    assert flood(waiting, B, 300, 5_000, alias="fifth") >= 512 // 5
    sizes = [waiting.depth_of(f"alias{number}")[1] for number in range(4)]
    assert together.size == 512
    assert min(sizes) >= 512 // 5


def test_a_body_that_is_larger_than_all_may_hold_drives_out_nobody():
    together = Together(100)
    waiting = fill(queue(together), *(ticket(n, B, size=10, alias=f"alias{n}") for n in range(10)))
    for size in (11, 101, 10**12):
        with pytest.raises(QueueFull):
            waiting.offer(ticket(20, I, size=size))
    assert len(waiting) == 10


def test_of_aliases_that_wait_no_more_nothing_is_kept_or_counted():
    together = Together(100)
    one, other = queue(together), queue(together)
    for number in range(300):
        held = ticket(number, size=50, alias=f"alias{number}")
        fill(one, held)
        fill(other, ticket(1_000 + number, size=50))
        one.remove(held)
        other.clear()
    assert (together.size, len(together._aliases)) == (0, 0)


# --- work


def test_a_large_body_that_finds_no_room_costs_no_more_than_itself():
    """Newcomers that would need thousands gone, and find that too few may go, look at few of them."""
    waiting = queue(queue=200_000, queue_bytes=200_000)
    fill(waiting, *(ticket(n, tenant=f"hog{n % 2}") for n in range(200_000)))
    began = process_time()
    for number in range(300):
        with pytest.raises(QueueFull):
            waiting.offer(ticket(300_000 + number, tenant="new", size=10_000))
    assert process_time() - began < 3.0
    assert len(waiting) == 200_000
