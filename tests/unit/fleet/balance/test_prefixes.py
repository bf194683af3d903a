"""What a replica was sent is believed to be held there: to its room, the oldest giving way first."""

from __future__ import annotations

import math
import tracemalloc
from random import Random

import pytest

from gateway.fleet.balance.prefixes import PrefixTable
from gateway.fleet.balance.prompt import COARSE, FINE, HASH_BITS, Prompt, reach
from loadtests.engine.kv import BlockPool

PLENTY = 1 << 30


def blocks(random, count, before=()):
    """The chain of a prompt of ``count`` blocks that begins with those ``before``."""
    own = (random.getrandbits(HASH_BITS) & ~1 | (place >= 16) for place in range(len(before), count))
    return (*before, *own)


def prompt(chain):
    return Prompt(chain, reach(len(chain)) + 100)


def prompts(count, length, seed=1, before=()):
    random = Random(seed)
    return [prompt(blocks(random, length, before)) for _ in range(count)]


def open_table(*rooms):
    table = PrefixTable()
    return table, [table.open(f"r{place}", room) for place, room in enumerate(rooms)]


def test_what_was_noted_is_held_and_nothing_else():
    table, (one, other) = open_table(PLENTY, PLENTY)
    sent, unsent = prompts(2, 30)
    one.note(sent)
    assert one.held(sent) == reach(30)
    assert other.held(sent) == one.held(unsent) == 0
    assert table.held_by_all(sent) == {"r0": reach(30)}
    assert table.held_by_all(unsent) == {}
    assert one.size == reach(30)
    assert len(table) == 30


def test_of_a_few_replicas_the_same_is_said_as_of_all():
    table, indexes = open_table(*[PLENTY] * 40)
    random = Random(4)
    whole = prompt(blocks(random, 60))
    for place, index in enumerate(indexes[:-2]):
        index.note(prompt(whole.chain[: 1 + (place * 7) % 50]))
    runs, all_ = table.runs(whole), table.held_by_all(whole)
    assert len(all_) == 38
    assert [size for size, _ in runs] == sorted({*all_.values()})
    names = ["r3", "r39", "gone", "r17", "r0"]
    assert table.held_by(names, runs) == {name: all_[name] for name in names if name in all_}
    assert table.held_by(names, []) == {}
    indexes[3].close()
    assert "r3" not in table.held_by(names, table.runs(whole))
    table.open("r99", PLENTY).note(whole)
    assert table.held_by(["r3", "r99"], table.runs(whole)) == {"r99": reach(60)}


def test_asked_again_of_the_same_beginning_it_says_the_same_and_names_who_has_come():
    table, indexes = open_table(*[PLENTY] * 8)
    system = blocks(Random(6), 5)
    first, second = prompts(2, 9, before=system)
    for index in indexes:
        index.note(prompt(system))
    said = table.held_by_all(first)
    assert said == {f"r{place}": reach(5) for place in range(8)}
    said["r1"] = said["told"] = reach(9)  # as what others told is added to it
    assert table.held_by_all(second) == {f"r{place}": reach(5) for place in range(8)}
    indexes[3].close()
    table.open("r99", PLENTY).note(prompt(system))
    assert table.held_by_all(second) == {name: reach(5) for name in ("r0", "r1", "r2", "r99", "r4", "r5", "r6", "r7")}
    indexes[4].note(second)
    assert table.held_by_all(first).keys() == table.held_by_all(second).keys()
    assert table.held_by_all(second)["r4"] == reach(9)
    assert table.held_by_all(first)["r4"] == reach(5)


def test_who_holds_the_most_is_named_and_not_what_half_of_all_hold():
    table, indexes = open_table(*[PLENTY] * 20)
    whole = prompt(blocks(Random(5), 60))
    for index in indexes[:15]:
        index.note(prompt(whole.chain[:5]))
    assert table.deepest(table.runs(whole), 4, 20) == []
    indexes[2].note(prompt(whole.chain[:30]))
    indexes[7].note(whole)
    assert table.deepest(table.runs(whole), 4, 20) == ["r7", "r2"]
    assert table.deepest(table.runs(whole), 1, 20) == ["r7"]
    assert table.deepest(table.runs(whole), 4, 256) == ["r7", "r2", "r0", "r1"]


def test_a_prompt_that_the_youngest_generation_has_to_its_end_changes_nothing():
    table, (index,) = open_table(PLENTY)
    sent = prompt(blocks(Random(6), 30))
    index.note(sent)
    before = (index.size, len(table), len(index._generations[-1].blocks))
    index.note(sent)
    index.note(prompt(sent.chain[:7]))
    assert (index.size, len(table), len(index._generations[-1].blocks)) == before


def test_a_prompt_is_held_as_far_as_it_is_known():
    table, (one, other) = open_table(PLENTY, PLENTY)
    random = Random(2)
    system = blocks(random, 10)
    mine, theirs = prompt(blocks(random, 40, system)), prompt(blocks(random, 25, system))
    one.note(mine)
    other.note(theirs)
    assert table.held_by_all(mine) == {"r0": reach(40), "r1": reach(10)}
    assert table.held_by_all(theirs) == {"r0": reach(10), "r1": reach(25)}
    longer = prompt(blocks(random, 60, mine.chain))
    assert table.held_by_all(longer) == {"r0": reach(40), "r1": reach(10)}
    assert (one.held(longer), other.held(longer)) == (reach(40), reach(10))
    assert table.held_by_all(prompt(mine.chain[:5])) == {"r0": reach(5), "r1": reach(5)}


def test_a_prompt_without_whole_blocks_is_nowhere():
    table, (one,) = open_table(PLENTY)
    one.note(Prompt((), 200))
    assert one.held(Prompt((), 200)) == 0
    assert table.held_by_all(Prompt((), 200)) == {}


@pytest.mark.parametrize("replicas", [1, 3, 8, 9, 40])
def test_all_at_once_says_what_each_says(replicas):
    table, indexes = open_table(*[PLENTY] * replicas)
    whole = prompts(1, 60)[0]
    for place, index in enumerate(indexes):
        index.note(prompt(whole.chain[: place * 7 % 61]))
    assert table.held_by_all(whole) == {
        f"r{place}": index.held(whole) for place, index in enumerate(indexes) if index.held(whole)
    }


def test_the_oldest_gives_way_and_the_bound_is_kept():
    room = 20 * reach(10)
    table, (index,) = open_table(room)
    sent = prompts(100, 10)
    for each in sent:
        index.note(each)
        assert index.size <= room
        assert index.held(each) == reach(10)
    assert all(index.held(each) == reach(10) for each in sent[-16:])
    assert not any(index.held(each) for each in sent[:76])
    assert index.size == room
    assert len(table) == 200


def test_what_is_used_stays_while_others_pass():
    _, (index,) = open_table(20 * reach(10))
    hot, *others = prompts(200, 10)
    for each in others:
        index.note(hot)
        index.note(each)
        assert index.held(hot) == reach(10)


def test_a_prompt_is_held_whole_though_all_else_was_used_just_before():
    _, (index,) = open_table(118 * FINE)
    hot, passing = prompts(7, 16), prompts(30, 2, seed=2)
    for each in passing:
        for other in hot:
            index.note(other)
        index.note(each)
        assert index.held(each) == reach(2)
        assert index.size <= 118 * FINE


def test_when_it_was_sent_last_is_known_to_a_generation():
    _, (index,) = open_table(60 * FINE)
    first, second, *others = prompts(40, 3)
    assert index.note(first, 100.0) == (0, 0.0)
    assert index.oldest == 100.0
    size, age = index.note(first, 104.0)
    assert (size, age) == (reach(3), 4.0)
    index.note(second, 106.0)
    for place, each in enumerate(others):
        held, age = index.note(each, 110.0 + place)
        assert (held, age) == (0, 0.0)
    assert 110.0 <= index.oldest <= 150.0
    assert index.note(others[-1], 1.0) == (reach(3), 0.0)  # a clock that was set back


def test_looking_does_not_make_recent():
    table, (index,) = open_table(10 * reach(10))
    watched, *others = prompts(40, 10)
    index.note(watched)
    for each in others:
        index.note(each)
        index.held(watched)
        table.held_by_all(watched)
    assert index.held(watched) == 0


def test_the_end_of_a_prompt_goes_before_its_beginning():
    _, (index,) = open_table(reach(30))
    first, second = prompts(2, 20)
    index.note(first)
    index.note(second)
    assert index.held(second) == reach(20)
    assert 0 < index.held(first) <= reach(30) - reach(20) + FINE * 16


@pytest.mark.parametrize("room", [0, -5, FINE - 1, FINE, 5 * FINE, reach(20) + 1])
def test_a_prompt_longer_than_the_room_is_held_as_far_as_that(room):
    _, (index,) = open_table(room)
    for each in prompts(5, 40):
        index.note(each)
        assert index.held(each) == max(room, 0) // FINE * FINE if room < reach(20) else reach(20)
        assert index.size <= max(room, 0)


def test_a_small_room_drops_the_oldest_at_once_and_a_larger_one_nothing():
    _, (index,) = open_table(20 * reach(10))
    sent = prompts(20, 10)
    for each in sent:
        index.note(each)
    index.resize(5 * reach(10))
    assert index.size == 5 * reach(10)
    assert not any(index.held(each) for each in sent[:10])
    index.resize(40 * reach(10))
    assert index.size == 5 * reach(10)
    index.resize(-1)
    assert index.size == 0


def test_to_forget_leaves_nothing_and_others_alone():
    table, (one, other) = open_table(PLENTY, PLENTY)
    random = Random(3)
    system = blocks(random, 5)
    for _ in range(50):
        each = prompt(blocks(random, 20, system))
        one.note(each)
        other.note(prompt(each.chain[:8]))
    one.forget()
    assert one.size == 0
    assert table.held_by_all(each) == {"r1": reach(8)}
    assert len(table) == 5 + 50 * 3
    one.note(each)
    assert one.held(each) == reach(20)


def test_a_closed_index_holds_nothing_and_leaves_its_place():
    table, (one, other) = open_table(PLENTY, PLENTY)
    sent, more = prompts(2, 20)
    one.note(sent)
    other.note(sent)
    one.close()
    one.close()
    third, fourth = table.open("r2", PLENTY), table.open("r3", PLENTY)
    one.resize(PLENTY)
    one.note(more)
    assert table.held_by_all(more) == {}
    third.note(more)
    fourth.note(more)
    assert table.held_by_all(sent) == {"r1": reach(20)}
    assert table.held_by_all(more) == {"r2": reach(20), "r3": reach(20)}
    for index in (other, third, fourth):
        index.close()
    assert len(table) == 0


def test_hashes_that_meet_do_no_harm():
    """Two different prompts with a common block behind different ones: possible, one time in 10^9."""
    table, (index,) = open_table(40 * reach(5))
    random = Random(4)
    few = [random.getrandbits(HASH_BITS) for _ in range(60)]
    for _ in range(2_000):
        index.note(prompt(tuple(random.choices(few, k=random.randrange(1, 30)))))
        assert 0 <= index.size <= index.room
    index.forget()
    assert index.size == len(table) == 0


def test_room_shrinks_where_the_engine_holds_less_and_grows_back():
    _, (index,) = open_table(10 * reach(10))
    for each in prompts(10, 10):
        index.note(each)
    index.correct(0.8, 0.3)
    assert index.room == int(9 * reach(10))
    assert index.size <= index.room
    for _ in range(100):
        index.correct(0.8, 0.0)
    assert index.room == int(10 * reach(10) / 8)
    index.resize(20 * reach(10))
    assert index.room == int(20 * reach(10) / 8)
    for _ in range(100):
        index.correct(0.5, 0.9)
    assert index.room == 20 * reach(10)


@pytest.mark.parametrize(
    ("believed", "measured"),
    [(0.5, 0.42), (0.0, 0.0), (0.02, 0.0), (math.nan, 0.1), (0.5, math.nan), (math.inf, 0), (0.5, -1.0), (2.0, 0.1)],
)
def test_what_tells_nothing_changes_no_room(believed, measured):
    _, (index,) = open_table(1000)
    index.correct(0.9, 0.1)
    index.correct(believed, measured)
    assert index.room == 900


def test_a_great_many_prompts_take_bounded_memory():
    room = 1_500_000
    random = Random(5)
    taken = []
    tracemalloc.start()
    try:
        table, indexes = open_table(*[room] * 4)
        for _ in range(4):
            for place in range(6_000):
                indexes[place % 4].note(prompt(blocks(random, 4)))
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sum(index.size for index in indexes) <= 4 * room
    assert 20_000 < len(table) <= 4 * room // FINE
    assert max(taken) / len(table) < 160
    assert taken[3] < 1.1 * taken[1]


def test_belief_is_near_to_what_an_engine_holds():
    """An engine's cache as vLLM keeps it, and an index of its size: conversations, documents and what comes once.

    All begin with one system prompt, so that the engine's blocks are all of one size here.
    """
    random = Random(6)
    capacity = 1_500
    _, (index,) = open_table(capacity * COARSE + reach(16))
    engine = BlockPool(capacity)
    system = blocks(random, 16)
    documents = [blocks(random, 46, system) for _ in range(40)]
    talks = [system] * 30
    believed = measured = wrong = 0
    for _ in range(3_000):
        kind = random.random()
        if kind < 0.4:
            chain = blocks(random, 50, documents[min(int(random.expovariate(0.1)), 39)])
        elif kind < 0.8:
            place = min(int(random.expovariate(0.15)), 29)
            chain = blocks(random, len(talks[place]) + 3, talks[place])
            talks[place] = chain if len(chain) < 120 else system
        else:
            chain = blocks(random, 60, system)
        found = engine.matching(chain[16:])
        belief = max(index.held(prompt(chain)) - reach(16), 0) // COARSE
        measured += found
        believed += belief
        wrong += abs(belief - found)
        index.note(prompt(chain))
        _serve(engine, chain[16:], found)
    assert measured > 20_000
    assert abs(believed - measured) < 0.03 * measured
    assert wrong < 0.06 * measured


def _serve(engine, chain, found):
    engine.hold(chain[:found])
    assert engine.allocate(len(chain) - found)
    for block in chain[found:]:
        engine.publish(block)
    engine.release(0, chain)
