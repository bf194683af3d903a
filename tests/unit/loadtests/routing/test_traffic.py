import itertools
from dataclasses import replace
from random import Random

import pytest

from loadtests.engine.text import pieces
from loadtests.routing.traffic import (
    VOCABULARY,
    Chat,
    Length,
    Retrieval,
    Traffic,
    Unshared,
    poisson,
    words,
)

SHORT = Length(median=20, sigma=0.5, most=60)
RETRIEVAL = Retrieval(rate=20, documents=5, document=100, skew=1.0, question=SHORT, output=SHORT)
CHAT = Chat(rate=3, more=4.0, pause=0.5, think=1.0, system=30, opening=SHORT, question=SHORT, answer=SHORT)
UNSHARED = Unshared(rate=20, prompt=SHORT, output=SHORT)
KINDS = pytest.mark.parametrize("kind", [RETRIEVAL, CHAT, UNSHARED, replace(UNSHARED, burst=10)], ids=repr)


@KINDS
def test_a_seed_decides_everything(kind: Traffic) -> None:
    assert kind.turns(Random(1), 20.0) == kind.turns(Random(1), 20.0)
    assert kind.turns(Random(1), 20.0) != kind.turns(Random(2), 20.0)


@KINDS
def test_turns_come_in_order_within_the_time_and_ask_for_something(kind: Traffic) -> None:
    turns = kind.turns(Random(3), 20.0)
    times = [turn.at for turn in turns]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 20.0
    assert all(1 <= turn.output <= SHORT.most for turn in turns)


def test_each_word_is_one_token_to_the_engine() -> None:
    assert [word for word in VOCABULARY if pieces(f" {word}") != [f" {word}"]] == []
    text = words(Random(1), 200)
    assert 200 <= len(pieces(text)) <= 205


def test_moments_are_as_many_as_the_rate_says() -> None:
    assert len(list(poisson(Random(4), 50.0, 100.0))) == pytest.approx(5000, rel=0.05)


def test_lengths_keep_their_bounds_and_their_median() -> None:
    random = Random(5)
    drawn = sorted(Length(median=100, sigma=1.0, most=400).draw(random) for _ in range(2001))
    assert drawn[0] >= 1
    assert drawn[-1] == 400
    assert drawn[1000] == pytest.approx(100, rel=0.1)


def test_retrieval_asks_new_questions_about_few_documents_the_first_one_most() -> None:
    turns = RETRIEVAL.turns(Random(6), 60.0)
    documents = {turn.messages[0].content for turn in turns}
    assert len(documents) == 5
    assert len({turn.messages[1].content for turn in turns}) == len(turns)
    asked = [sum(turn.session == f"document-{number}" for turn in turns) for number in range(5)]
    assert sum(asked) == len(turns)
    assert asked[0] / asked[4] == pytest.approx(5.0, rel=0.4)


def test_each_turn_of_a_conversation_says_all_that_came_before_and_more() -> None:
    turns = CHAT.turns(Random(7), 60.0)
    sessions = {turn.session for turn in turns}
    pairs = 0
    for session in sessions:
        own = [turn for turn in turns if turn.session == session]
        assert [message.role for message in own[0].messages] == ["system", "user"]
        for before, after in itertools.pairwise(own):
            pairs += 1
            assert after.messages[: len(before.messages)] == before.messages
            assert [message.role for message in after.messages[len(before.messages) :]] == ["assistant", "user"]
            assert after.at - before.at >= CHAT.pause
    assert pairs > 100
    assert len({turn.messages[0] for turn in turns}) == 1


def test_conversations_are_as_long_as_is_asked() -> None:
    turns = CHAT.turns(Random(8), 400.0)
    sessions = [turn.session for turn in turns if turn.at < 350.0]
    assert len(sessions) / len(set(sessions)) == pytest.approx(CHAT.more + 1, rel=0.1)


def test_what_is_not_shared_has_a_beginning_of_its_own() -> None:
    turns = UNSHARED.turns(Random(9), 60.0)
    assert len({turn.messages[0].content[:60] for turn in turns}) == len(turns)
    assert len({turn.session for turn in turns}) == len(turns)


def test_bursts_come_in_the_middle_of_each_interval_beside_the_rest() -> None:
    times = [turn.at for turn in replace(UNSHARED, rate=0.001, burst=10, every=4.0, width=0.2).turns(Random(10), 12.0)]
    for begin in (2.0, 6.0, 10.0):
        assert sum(begin <= at <= begin + 0.2 for at in times) == 10
    assert len(times) == 30


def test_a_burst_at_the_end_is_cut_off() -> None:
    turns = replace(UNSHARED, rate=0.001, burst=50, every=4.0, width=0.2).turns(Random(11), 2.1)
    assert 0 < len(turns) < 50
