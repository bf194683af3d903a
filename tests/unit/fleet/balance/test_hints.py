"""Instances that tell each other a little agree on where a conversation is."""

from __future__ import annotations

import os
from random import Random

import pytest

from gateway.fleet.balance.hints import MAX_HINTS, Hints
from gateway.fleet.balance.prompt import FINE, HASH_BITS, Prompt, anchor, reach

REPLICAS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")


def prompt(random, count, before=()):
    own = (random.getrandbits(HASH_BITS) & ~1 | (place >= 16) for place in range(len(before), count))
    chain = (*before, *own)
    return Prompt(chain, reach(len(chain)) + 10)


def hints():
    made = Hints()
    made.know(REPLICAS)
    return made


def told(listener, prompt, held=None):
    held = {} if held is None else held
    listener.extend(prompt, held)
    return held


def test_the_next_turn_is_found_where_the_last_one_went():
    mine, other = hints(), hints()
    random = Random(1)
    first = prompt(random, 12)
    mine.note(first, REPLICAS[1], 0)
    assert other.learn(mine.hints())
    later = prompt(random, 20, first.chain)
    assert told(other, later) == {REPLICAS[1]: reach(12)}
    assert told(other, prompt(random, 20)) == {}
    assert told(hints(), later) == {}


@pytest.mark.parametrize("length", [1, 2, 9, 40, 2000])
def test_another_question_about_a_document_is_found_nearly_whole(length):
    mine, other = hints(), hints()
    random = Random(2)
    document = prompt(random, length)
    mine.note(prompt(random, length + 1, document.chain), REPLICAS[0], 0)
    other.learn(mine.hints())
    found = told(other, prompt(random, length + 3, document.chain)).get(REPLICAS[0], 0)
    assert reach(length) * 0.8 - reach(1) <= found <= reach(length)


def test_what_the_replica_had_is_not_told_again():
    mine, other = hints(), hints()
    random = Random(3)
    system = prompt(random, 16)
    mine.note(prompt(random, 18, system.chain), REPLICAS[0], reach(16))
    other.learn(mine.hints())
    assert len(other) == 2
    assert told(other, system) == {}


def test_more_than_is_known_is_added_and_less_is_not():
    mine, other = hints(), hints()
    random = Random(4)
    first = prompt(random, 12)
    mine.note(first, REPLICAS[1], reach(11))
    other.learn(mine.hints())
    known = {REPLICAS[0]: reach(3), REPLICAS[1]: reach(2)}
    assert told(other, first, known) == {REPLICAS[0]: reach(3), REPLICAS[1]: reach(12)}
    assert told(other, first, {REPLICAS[1]: reach(13)}) == {REPLICAS[1]: reach(13)}


def test_the_newest_that_was_told_of_a_block_holds():
    mine, other = hints(), hints()
    first = prompt(Random(5), 3)
    for replica in REPLICAS:
        mine.note(first, replica, reach(3))
    other.learn(mine.hints())
    assert told(other, first) == {REPLICAS[2]: reach(3)}


def test_hints_are_few_and_the_newest():
    mine, other = hints(), hints()
    random = Random(6)
    sent = [prompt(random, 30) for _ in range(500)]
    for each in sent:
        mine.note(each, REPLICAS[0], 0)
    assert 8000 < len(mine.hints()) <= MAX_HINTS
    other.learn(mine.hints())
    assert told(other, sent[-1]) == told(other, sent[-50]) == {REPLICAS[0]: reach(30)}
    assert told(other, sent[0]) == {}


def test_a_prompt_without_whole_blocks_says_nothing():
    mine = hints()
    mine.note(Prompt((), 10), REPLICAS[0], 0)
    assert mine.hints() == b""
    assert mine.learn(b"")
    assert told(mine, Prompt((), 10)) == {}


@pytest.mark.parametrize("bad", [b"x", b"x" * 13, b"\0" * (MAX_HINTS + 4), b"\0" * 12 * 10_000])
def test_what_are_no_hints_is_not_taken_in(bad):
    other = hints()
    assert not other.learn(bad)
    assert len(other) == 0


def test_what_is_told_of_strange_replicas_is_not_taken_in():
    mine, other = hints(), Hints()
    other.know(REPLICAS[:1])
    first = prompt(Random(7), 3)
    mine.note(first, REPLICAS[1], 0)
    assert other.learn(mine.hints())
    assert len(other) == 0
    other.learn(os.urandom(12 * 600))
    assert len(other) == 0


def test_a_replica_that_is_listed_no_more_is_named_no_more():
    mine, other = hints(), hints()
    first = prompt(Random(7), 3)
    mine.note(first, REPLICAS[1], 0)
    other.learn(mine.hints())
    other.know(REPLICAS[:1])
    assert told(other, first) == {}


def test_what_is_learned_is_bounded_and_the_oldest_goes():
    other = hints()
    random = Random(8)
    rounds = []
    for _ in range(60):
        mine = hints()
        rounds.append([prompt(random, 1) for _ in range(600)])
        for each in rounds[-1]:
            mine.note(each, REPLICAS[0], 0)
        other.learn(mine.hints())
        assert len(other) <= 16_384
    assert all(told(other, each) for each in rounds[-1])
    assert not any(told(other, each) for each in rounds[0])


def test_what_is_told_again_and_again_stays():
    other = hints()
    random = Random(8)
    first = prompt(random, 1)
    for _ in range(60):
        mine = hints()
        for _ in range(600):
            mine.note(prompt(random, 1), REPLICAS[0], 0)
        mine.note(first, REPLICAS[1], 0)
        other.learn(mine.hints())
        assert told(other, first) == {REPLICAS[1]: FINE}


def test_a_restarted_replica_is_forgotten():
    mine, other = hints(), hints()
    random = Random(9)
    first, second = prompt(random, 3), prompt(random, 3)
    mine.note(first, REPLICAS[0], 0)
    mine.note(second, REPLICAS[1], 0)
    other.learn(mine.hints())
    other.forget(REPLICAS[0])
    assert told(other, first) == {}
    assert told(other, second) == {REPLICAS[1]: reach(3)}
    mine.forget(REPLICAS[0])
    late = hints()
    late.learn(mine.hints())
    assert told(late, first) == {}
    assert told(late, second) == {REPLICAS[1]: reach(3)}


def test_an_anchor_is_the_first_block_that_nobody_holds():
    random = Random(10)
    system = prompt(random, 5)
    one, other = prompt(random, 9, system.chain), prompt(random, 9, system.chain)
    assert anchor(one) == anchor(other) == system.chain[0]
    assert anchor(one, reach(5)) == one.chain[5] != anchor(other, reach(5))
    assert anchor(prompt(random, 20, one.chain), reach(5)) == anchor(one, reach(5))
    assert anchor(one, reach(50)) == one.chain[-1]
    assert anchor(Prompt((), 10)) is None
