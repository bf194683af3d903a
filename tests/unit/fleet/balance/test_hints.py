"""Instances that tell each other a little agree on where a conversation is."""

from __future__ import annotations

import os
import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.hints import LIFETIME, MAX_HINTS, Hints
from gateway.fleet.balance.prompt import HASH_BITS, Prompt, reach

NAMES = {1: "10.0.0.1:8000", 3: "10.0.0.2:8000", 5: "10.0.0.3:8000"}


def prompt(random, count, before=()):
    own = (random.getrandbits(HASH_BITS) & ~1 | (place >= 16) for place in range(len(before), count))
    chain = (*before, *own)
    return Prompt(chain, reach(len(chain)) + 10)


def hints():
    made = Hints()
    made.shared = True
    return made


def found(listener, prompt, held=None):
    held = {} if held is None else held
    listener.extend(prompt, held)
    return held


def pair(block=2, point=1):
    return struct.pack("<QQ", block, point)


def test_the_next_turn_is_found_where_the_last_one_went():
    mine, other = hints(), hints()
    random = Random(1)
    first = prompt(random, 12)
    mine.note(first, 3, 0)
    assert other.learn(mine.take(), NAMES)
    later = prompt(random, 20, first.chain)
    assert found(other, later) == {NAMES[3]: reach(12)}
    assert found(other, prompt(random, 20)) == {}
    assert found(hints(), later) == {}


@pytest.mark.parametrize("length", [1, 2, 9, 40, 2000])
def test_another_question_about_a_document_is_found_for_the_most_part(length):
    mine, other = hints(), hints()
    random = Random(2)
    document = prompt(random, length)
    mine.note(prompt(random, length + 1, document.chain), 1, 0)
    other.learn(mine.take(), NAMES)
    known = found(other, prompt(random, length + 3, document.chain)).get(NAMES[1], 0)
    assert reach(length) * 0.7 - reach(1) <= known <= reach(length)


def test_what_the_replica_had_is_not_told_again():
    mine, other = hints(), hints()
    random = Random(3)
    system = prompt(random, 16)
    mine.note(prompt(random, 18, system.chain), 1, reach(16))
    other.learn(mine.take(), NAMES)
    assert len(other) == 2
    assert found(other, system) == {}


@pytest.mark.parametrize("held", [reach(11), reach(12), reach(12) + 10, 1 << 40])
def test_of_a_prompt_that_was_held_its_end_is_told(held):
    mine, other = hints(), hints()
    sent = prompt(Random(3), 12)
    mine.note(sent, 1, held)
    other.learn(mine.take(), NAMES)
    assert len(other) == 1
    assert found(other, sent) == {NAMES[1]: reach(12)}


def test_more_than_is_known_is_added_and_less_is_not():
    mine, other = hints(), hints()
    first = prompt(Random(4), 12)
    mine.note(first, 3, reach(11))
    other.learn(mine.take(), NAMES)
    known = {NAMES[1]: reach(3), NAMES[3]: reach(2)}
    assert found(other, first, known) == {NAMES[1]: reach(3), NAMES[3]: reach(12)}
    assert found(other, first, {NAMES[3]: reach(13)}) == {NAMES[3]: reach(13)}


def test_the_newest_that_was_told_of_a_block_holds():
    mine, other = hints(), hints()
    first = prompt(Random(5), 3)
    for point in NAMES:
        mine.note(first, point, reach(3))
    other.learn(mine.take(), NAMES)
    assert found(other, first) == {NAMES[5]: reach(3)}


def test_hints_are_told_once_and_of_too_many_the_newest():
    mine, other = hints(), hints()
    random = Random(6)
    sent = [prompt(random, 30) for _ in range(500)]
    for each in sent:
        mine.note(each, 1, 0)
    told = mine.take()
    assert MAX_HINTS / 2 < len(told) <= MAX_HINTS
    assert mine.take() == b""
    other.learn(told, NAMES)
    assert found(other, sent[-1]) == found(other, sent[-40]) == {NAMES[1]: reach(30)}
    assert found(other, sent[0]) == {}


def test_where_nobody_shares_nothing_is_noted():
    mine = Hints()
    mine.note(prompt(Random(1), 12), 1, 0)
    assert mine.take() == b""


def test_a_prompt_without_whole_blocks_says_nothing():
    mine = hints()
    mine.note(Prompt((), 10), 1, 0)
    assert mine.take() == b""
    assert found(mine, Prompt((), 10)) == {}


# --- hostile instances


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"x",
        b"\x02" + pair(),  # of a newer version
        b"\x01" + pair()[:-1],
        b"\x01" + pair() + b"\0",
        b"\x01" + pair(block=1 << HASH_BITS),
        b"\x01" + pair() + pair(block=2**64 - 1),
        b"\x01" + pair() * (MAX_HINTS // 16 + 1),
        b"\x01" + b"\0" * 16_000_000,
    ],
)
def test_what_are_no_hints_is_not_taken_in(told):
    other = hints()
    assert not other.learn(told, NAMES)
    assert len(other) == 0


@given(st.binary(max_size=100))
def test_any_bytes_are_hints_or_are_refused(told):
    other = hints()
    if not other.learn(told, NAMES):
        assert len(other) == 0


def test_hints_of_unknown_replicas_are_passed_over():
    other = hints()
    assert other.learn(b"\x01" + pair(point=1) + pair(block=4, point=99), NAMES)
    assert len(other) == 1


def test_however_much_is_told_little_is_kept_and_that_is_the_newest():
    mine, other = hints(), hints()
    random = Random(7)
    for _ in range(1_000):
        other.learn(b"\x01" + b"".join(pair(random.getrandbits(HASH_BITS)) for _ in range(200)), NAMES)
    newest = prompt(random, 12)
    mine.note(newest, 5, 0)
    other.learn(mine.take(), NAMES)
    assert 30_000 < len(other) <= 70_000
    assert found(other, newest) == {NAMES[5]: reach(12)}


def test_random_bytes_move_no_prompt():
    other = hints()
    other.learn(b"\x01" + b"".join(pair(int.from_bytes(os.urandom(7))) for _ in range(200)), NAMES)
    assert found(other, prompt(Random(8), 500)) == {}


# --- what is forgotten


def test_of_a_replica_that_starts_anew_nothing_holds_and_of_others_all():
    mine, other = hints(), hints()
    random = Random(9)
    one, two = prompt(random, 12), prompt(random, 12)
    mine.note(one, 1, 0)
    mine.note(two, 3, 0)
    other.learn(mine.take(), NAMES)
    other.forget(NAMES[1])
    other.forget("10.9.9.9:8000")
    assert found(other, one) == {}
    assert found(other, two) == {NAMES[3]: reach(12)}
    mine.note(one, 1, 0)
    other.learn(mine.take(), NAMES)
    assert found(other, one) == {NAMES[1]: reach(12)}


def test_what_is_old_is_forgotten_and_what_is_not_is_kept():
    mine, other = hints(), hints()
    sent = prompt(Random(10), 12)
    other.review(0.0)
    mine.note(sent, 1, 0)
    other.learn(mine.take(), NAMES)
    for now in (1.0, LIFETIME / 2 - 1, LIFETIME / 2 + 1, LIFETIME - 1):
        other.review(now)
        assert found(other, sent) == {NAMES[1]: reach(12)}
    other.review(LIFETIME + 2)
    assert (found(other, sent), len(other)) == ({}, 0)
