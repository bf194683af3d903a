"""Whose turn it is among the classes, who gives way when all is full, and that nothing is left of who has gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.flows import Ahead, Ticket
from gateway.admission.holdings import QueueFull
from gateway.admission.queue import STARVED_EVERY, FairQueue
from gateway.model import Priority
from gateway.policy.admission import Admission, PerClass

I, S, B = Priority  # noqa: E741 - the three classes, the highest first
PLAIN = Admission(queue=1_000, queue_bytes=1 << 30, starve=PerClass(0, 0, 0))
STARVING = replace(PLAIN, starve=PerClass(0, 10, 30))


def queue(policy: Admission = PLAIN) -> FairQueue:
    return FairQueue(lambda: policy)


def ticket(number: int, priority: Priority = S, tenant: str = "a", *, alias="x", tokens=100, size=1, entered=0.0):
    return Ticket(
        alias=alias,
        tenant=tenant,
        priority=priority,
        weight=1.0,
        tokens=tokens,
        size=size,
        deadline=1e9,
        entered=entered,
        number=number,
    )


def fill(waiting: FairQueue, *tickets: Ticket) -> FairQueue:
    for each in tickets:
        assert waiting.offer(each) == ()
    return waiting


def anyone(_: Priority) -> bool:
    return True


def drain(waiting: FairQueue, now: float = 0.0, may=anyone, most: int = 10**9) -> list[int]:
    taken = []
    while len(taken) < most and (each := waiting.take(now, may)) is not None:
        taken.append(each.number)
    return taken


# --- turns


def test_classes_come_one_after_the_other():
    waiting = fill(queue(), ticket(1, B), ticket(2, S), ticket(3, I), ticket(4, B), ticket(5, I))
    assert drain(waiting) == [3, 5, 2, 1, 4]
    assert len(waiting) == 0


def test_a_class_waits_that_may_not_fill_a_place():
    waiting = fill(queue(), ticket(1, B), ticket(2, S), ticket(3, I))
    assert drain(waiting, may=lambda priority: priority is I) == [3]
    assert drain(waiting, may=lambda priority: priority is not B) == [2]
    assert drain(waiting, may=lambda priority: False) == []
    assert len(waiting) == 1


def test_a_class_that_starves_gets_some_places_and_no_more():
    waiting = fill(queue(STARVING), *(ticket(n, B) for n in range(20)), *(ticket(100 + n, I) for n in range(100)))
    assert not any(number < 100 for number in drain(waiting, now=29.9, most=20))
    assert [number < 100 for number in drain(waiting, now=30.0, most=12)] == [True, False, False, False] * 3
    assert STARVED_EVERY == 4


def test_a_class_that_starves_gets_places_that_are_held_back_from_it_by_turns():
    waiting = fill(queue(STARVING), *(ticket(n, B) for n in range(20)))

    def held(priority):
        return priority is I

    assert drain(waiting, now=31, may=held) == [0]
    assert drain(waiting, now=31, may=held) == []
    for _ in range(STARVED_EVERY - 2):
        waiting.passed()
    assert drain(waiting, now=31, may=held) == []
    waiting.passed()
    assert drain(waiting, now=31, may=held) == [1]
    assert drain(waiting, now=31, may=lambda priority: False) == []


def test_classes_that_starve_take_turns_and_the_first_that_waits_needs_none():
    tickets = [ticket(100 * each.rank + n, each) for each in (S, B) for n in range(50)]
    waiting = fill(queue(STARVING), *tickets)
    assert [n // 100 for n in drain(waiting, now=31, most=8)] == [2, 1, 1, 1] * 2
    fill(waiting, *(ticket(1_000 + n, I) for n in range(50)))
    assert [n // 100 for n in drain(waiting, now=31, most=16)].count(10) == 12
    waiting = fill(queue(STARVING), *tickets, *(ticket(1_000 + n, I) for n in range(50)))
    assert [n // 100 for n in drain(waiting, now=31, most=16)] == [1, 10, 10, 10, 2, 10, 10, 10] * 2


def test_nobody_starves_where_policy_says_never():
    waiting = fill(queue(), ticket(1, B), ticket(2, I))
    assert drain(waiting, now=1e9, most=1) == [2]


def test_a_clock_that_goes_back_starves_nobody():
    waiting = fill(queue(STARVING), ticket(1, B, entered=1e6), ticket(2, I))
    assert drain(waiting, now=0.0) == [2, 1]


def test_who_starves_counts_by_when_it_first_came():
    waiting = fill(queue(STARVING), ticket(1, B, entered=100), ticket(2, B, entered=60), ticket(3, I, entered=100))
    assert drain(waiting, now=100) == [2, 3, 1]


# --- bounds


def test_as_many_wait_as_may_of_each_alias():
    waiting = queue(replace(PLAIN, queue=2))
    fill(waiting, ticket(1), ticket(2), ticket(3, alias="y"), ticket(4, alias="y"))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(5))
    assert (waiting.depth_of("x"), waiting.depth_of("y"), waiting.depth_of("z")) == ((2, 2), (2, 2), (0, 0))
    assert len(waiting) == waiting.size == 4


def test_as_many_bytes_wait_as_may():
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), ticket(1, size=60))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(2, size=41))
    fill(waiting, ticket(3, size=40))
    assert waiting.depth_of("x") == (2, 100)


def test_where_none_may_wait_none_does():
    with pytest.raises(QueueFull):
        queue(replace(PLAIN, queue=0)).offer(ticket(1, I))


def test_the_newest_of_the_lowest_class_gives_way_to_a_higher_one():
    waiting = queue(replace(PLAIN, queue=4))
    held = {n: ticket(n, each) for n, each in enumerate((S, B, B, S))}  # all of one tenant
    fill(waiting, *held.values())
    assert waiting.offer(ticket(10, I)) == (held[2],)
    for refused in (ticket(11, S), ticket(12, B)):  # the last of bulk stays, and no more of it comes in
        with pytest.raises(QueueFull):
            waiting.offer(refused)
    assert waiting.offer(ticket(13, I)) == (held[3],)
    with pytest.raises(QueueFull):
        waiting.offer(ticket(14, I))
    assert drain(waiting) == [10, 13, 0, 1]


def test_of_another_alias_none_gives_way():
    waiting = fill(queue(replace(PLAIN, queue=1)), ticket(1, S), ticket(2, B, alias="y"))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(3, S))
    assert waiting.offer(ticket(4, S, alias="y"))[0].number == 2


def test_one_that_came_before_and_comes_again_is_not_the_newest():
    waiting = fill(queue(replace(PLAIN, queue=2)), ticket(1, B, entered=5), ticket(2, B, entered=1))
    assert [each.number for each in waiting.offer(ticket(3, I, entered=9))] == [1]


def test_as_many_give_way_as_have_to_for_the_bytes():
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), *(ticket(n, B, size=20) for n in range(5)))
    assert [each.number for each in waiting.offer(ticket(9, S, size=50))] == [4, 3, 2]
    assert waiting.depth_of("x") == (3, 90)


@pytest.mark.parametrize("size", [91, 10**12])
def test_nobody_gives_way_in_vain(size):
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), ticket(1, S, size=10), ticket(2, B, size=80))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(3, S, size=size))
    assert len(waiting) == 2


def test_all_that_waits_may_give_way():
    waiting = fill(queue(replace(PLAIN, queue=1)), ticket(1, B))
    assert [each.number for each in waiting.offer(ticket(2, I))] == [1]
    assert (waiting.depth_of("x"), drain(waiting)) == ((1, 1), [2])


def test_a_policy_that_allows_less_than_waits_already_drives_nobody_out_but_lets_none_in():
    policy = PLAIN
    waiting = FairQueue(lambda: policy)
    fill(waiting, *(ticket(n) for n in range(10)))
    policy = replace(PLAIN, queue=3)
    with pytest.raises(QueueFull):
        waiting.offer(ticket(20))
    assert len(waiting) == 10
    assert [each.number for each in waiting.offer(ticket(22, I))] == [9, 8, 7, 6, 5, 4, 3, 2]
    assert len(waiting) == 3


@pytest.mark.parametrize("priority", [I, B])
def test_one_within_its_part_makes_up_for_a_policy_that_allows_less(priority):
    policy = PLAIN
    waiting = FairQueue(lambda: policy)
    fill(waiting, *(ticket(n) for n in range(10)))
    policy = replace(PLAIN, queue=3)
    assert len(waiting.offer(ticket(20, priority))) == 8
    assert len(waiting) == 3


# --- who gives way to an equal


def test_one_that_has_filled_the_queue_shuts_nobody_out():
    waiting = fill(queue(), *(ticket(n, tenant="hog") for n in range(1_000)))
    assert [each.number for each in waiting.offer(ticket(2_000, tenant="small"))] == [999]
    with pytest.raises(QueueFull):
        waiting.offer(ticket(2_001, tenant="hog"))
    assert len(waiting) == 1_000
    assert 2_000 in drain(waiting, most=8)


def test_equals_do_not_drive_out_each_other():
    """In the end all that ask for much have as much, and from then on nobody gets in."""
    waiting = fill(queue(replace(PLAIN, queue=12)), *(ticket(n, tenant="t0") for n in range(12)))
    let_in = 0
    for number in range(100, 400):
        try:
            evicted = waiting.offer(ticket(number, tenant=f"t{number % 4}"))
        except QueueFull:
            continue
        assert len(evicted) == 1
        let_in += 1
    assert let_in == 9
    left = [waiting.take(0, anyone) for _ in range(12)]
    assert sorted(each.tenant for each in left if each) == sorted(f"t{n % 4}" for n in range(12))


def test_one_that_has_no_more_than_the_newcomer_would_gives_no_way():
    waiting = fill(queue(replace(PLAIN, queue=3)), *(ticket(n, tenant=f"t{n}") for n in range(3)))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(3, tenant="t3"))
    waiting = fill(queue(replace(PLAIN, queue=3)), *(ticket(n, tenant="ab"[n > 1]) for n in range(3)))
    with pytest.raises(QueueFull):
        waiting.offer(ticket(3, tenant="b"))
    assert [each.number for each in waiting.offer(ticket(4, tenant="c"))] == [1]


def test_where_bytes_are_full_whoever_holds_the_most_of_them_gives_way():
    many, big = [ticket(n, tenant="many") for n in range(40)], [ticket(40 + n, tenant="big", size=20) for n in range(3)]
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), *many, *big)
    with pytest.raises(QueueFull):
        waiting.offer(ticket(90, tenant="many"))
    assert [each.number for each in waiting.offer(ticket(91, tenant="new", size=20))] == [42]


def test_lower_classes_give_way_first_and_then_equals():
    held = [ticket(0, B, size=20), *(ticket(n, S, "hog", size=20) for n in range(1, 5))]
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), *held)
    waiting.remove(held[4])
    fill(waiting, ticket(5, B, size=20))
    assert [each.number for each in waiting.offer(ticket(9, S, "new", size=40))] == [5, 3]
    assert waiting.depth_of("x") == (4, 100)


def test_of_the_lowest_class_whoever_holds_the_most_gives_way_first():
    held = [ticket(0, B, "a"), ticket(1, B, "hog"), ticket(2, B, "hog"), ticket(3, B, "b", size=50)]
    waiting = fill(queue(replace(PLAIN, queue=4)), *held)
    assert [each.number for each in waiting.offer(ticket(9, S))] == [2]
    waiting = fill(queue(replace(PLAIN, queue_bytes=53)), *held)
    assert [each.number for each in waiting.offer(ticket(9, S))] == [3]


def test_who_holds_the_most_is_known_after_it_has_lost_some():
    hog = [ticket(n, tenant="hog", size=5) for n in range(10)]
    waiting = fill(queue(replace(PLAIN, queue=14)), *hog, *(ticket(20 + n, tenant="b") for n in range(4)))
    for each in hog[:8]:
        waiting.remove(each)
    fill(waiting, *(ticket(30 + n, tenant=f"c{n}") for n in range(8)))
    assert [each.number for each in waiting.offer(ticket(90, tenant="new"))] == [23]
    for each in hog[8:]:
        waiting.remove(each)
    fill(waiting, ticket(91, tenant="b"), ticket(92, tenant="hog"))
    assert [each.number for each in waiting.offer(ticket(93, tenant="new2"))] == [91]


def test_when_too_few_would_give_way_nobody_does():
    hog = [ticket(n, tenant="hog", size=10) for n in range(10)]
    waiting = fill(queue(replace(PLAIN, queue_bytes=100)), *hog)
    with pytest.raises(QueueFull):
        waiting.offer(ticket(90, tenant="new", size=60))
    assert waiting.depth_of("x") == (10, 100)
    assert [each.number for each in waiting.offer(ticket(91, tenant="new", size=50))] == [9, 8, 7, 6, 5]
    assert sorted(drain(waiting)) == [0, 1, 2, 3, 4, 91]


def test_no_more_than_some_equals_give_way_to_one():
    policy = PLAIN
    waiting = FairQueue(lambda: policy)
    fill(waiting, *(ticket(n, tenant="hog") for n in range(200)))
    policy = replace(PLAIN, queue=100)
    with pytest.raises(QueueFull):
        waiting.offer(ticket(900, tenant="new"))
    assert len(waiting) == 200


@pytest.mark.parametrize(("size", "wanted"), [(64, 64), (65, None)])
def test_the_larger_a_newcomer_is_the_more_equals_may_give_way_to_it(size, wanted):
    """Bodies of no more than usual size all may: else whoever sends a large one is refused where many wait."""
    waiting = queue(replace(PLAIN, queue_bytes=1_000))
    fill(waiting, *(ticket(n, tenant="hog") for n in range(1_000)))
    if wanted is None:
        with pytest.raises(QueueFull):
            waiting.offer(ticket(2_000, tenant="new", size=size))
    else:
        assert len(waiting.offer(ticket(2_000, tenant="new", size=size))) == wanted
    mebi, body = 1 << 20, 262_144
    waiting = fill(queue(replace(PLAIN, queue_bytes=256 * mebi)), *(ticket(n, S, "hog", size=body) for n in range(999)))
    assert len(waiting.offer(ticket(2_000, S, "new", size=100 * mebi))) == 375
    assert waiting.depth_of("x")[1] <= 256 * mebi


def test_rankings_hold_no_more_than_there_is():
    waiting = fill(queue(), *(ticket(n, tenant=f"t{n}") for n in range(10)))
    for number in range(10, 20_000):
        each = ticket(number, tenant=f"t{number}")
        waiting.offer(each)
        waiting.remove(each)
    rankings = waiting._aliases["x"].classes[S.rank]._rankings
    assert max(map(len, rankings)) < 200


# --- who leaves


def test_who_leaves_is_gone_at_once_and_only_once():
    held = [ticket(n) for n in range(3)]
    waiting = fill(queue(), *held)
    assert waiting.remove(held[1])
    assert not waiting.remove(held[1])
    assert not waiting.remove(ticket(0))  # another one of the same number
    assert drain(waiting) == [0, 2]
    assert not waiting.remove(held[0])
    assert (len(waiting), waiting.size, waiting.depth_of("x")) == (0, 0, (0, 0))


def test_of_aliases_and_tenants_that_wait_no_more_nothing_is_kept():
    waiting = queue()
    for number in range(100):
        fill(waiting, ticket(number, tenant=f"t{number}", alias=f"alias{number}"))
    drain(waiting, most=50)
    waiting.clear()
    assert len(waiting._aliases) == len(waiting._tickets) == 0
    assert [len(flows._tenants) for flows in waiting._classes] == [0, 0, 0]


def test_all_may_leave_at_once():
    held = [ticket(n, each, alias=f"alias{n % 2}") for n, each in enumerate((B, I, S, B))]
    waiting = fill(queue(), *held)
    assert waiting.clear() == tuple(held)
    assert (len(waiting), waiting.clear(), waiting.take(0, anyone)) == (0, (), None)


# --- what is told


def test_depths_are_told_by_class():
    waiting = fill(queue(), ticket(1, B), ticket(2, B), ticket(3, I))
    assert waiting.depths() == {I: 1, S: 0, B: 2}


def test_before_a_newcomer_is_what_is_above_it_and_its_fair_part_of_its_class():
    waiting = fill(queue(), ticket(1, I, tokens=7), ticket(2, S, "a"), ticket(3, S, "b"), ticket(4, B, tokens=9_999))
    assert waiting.ahead(ticket(9, I)) == Ahead(1, 7)
    assert waiting.ahead(ticket(9, S)) == Ahead(2, 107)
    assert waiting.ahead(ticket(9, S, "b")) == Ahead(3, 207)
    assert waiting.ahead(ticket(9, B)) == Ahead(4, 10_206)


def test_before_one_whose_class_will_starve_is_no_more_than_goes_between_its_places():
    waiting = fill(queue(STARVING), *(ticket(n, I, f"t{n}") for n in range(100)), ticket(200, B, "a"))
    assert waiting.ahead(ticket(900, B, "a")) == Ahead(8, 10_100)
    assert waiting.ahead(ticket(900, S, "b")).requests == 4
    hasty = ticket(900, B, "b")
    hasty.deadline = 30.0
    assert waiting.ahead(hasty).requests == 101
    assert waiting.ahead(ticket(900, I, "b")).requests <= 100


def test_a_hundred_thousand_wait_and_make_way():
    waiting = queue(replace(PLAIN, queue=100_000))
    tickets = [ticket(n, (S, B)[n % 2], f"t{n % 1_000}", alias="x") for n in range(100_000)]
    fill(waiting, *tickets)
    evicted = [waiting.offer(ticket(200_000 + n, I))[0] for n in range(1_000)]
    assert {each.priority for each in evicted} == {B}
    assert sorted(each.number for each in evicted) == list(range(98_001, 100_000, 2))
    assert len(waiting) == 100_000
    assert len(drain(waiting)) == 100_000
    assert waiting.size == 0
