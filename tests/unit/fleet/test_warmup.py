"""What a warmup sends to which kind of model, and when its times count as settled."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import orjson
import pytest

from gateway.fleet.warmup import MARGIN, MAX_PROMPT, NOISE, Kind, Meaning, Settling, Size, call, calls, judge, sizes
from gateway.policy.fleet import Shape, Warmup

SHORT, LONG, FULL = Shape(prompt=32, output=16), Shape(prompt=512, output=32), Shape(context=0.9, output=4)
POLICY = Warmup(shapes=(SHORT, LONG, FULL), concurrency=2, ratio=1.3, rounds=2)
ONE = replace(POLICY, shapes=(SHORT,))
SMALL = Size(5, 3)


def said(kind: Kind, size: Size = SMALL, salt: str | None = None, seed: int = 1) -> dict[str, object]:
    return orjson.loads(call(kind, "served", size, salt=salt, random=Random(seed)).body)


# --- bodies


def test_a_completion_has_its_exact_length_in_and_out():
    body = said(Kind.COMPLETIONS)
    prompt = body.pop("prompt")
    assert len(prompt) == 5
    assert body == {"model": "served", "max_tokens": 3, "ignore_eos": True, "temperature": 0, "stream": True}
    assert call(Kind.COMPLETIONS, "m", Size(1, 1), salt=None, random=Random(1)).stream


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Kind.COMPLETIONS, "/v1/completions"),
        (Kind.EMBEDDINGS, "/v1/embeddings"),
        (Kind.POOLING, "/pooling"),
        (Kind.CLASSIFICATION, "/classify"),
        (Kind.SCORES, "/v1/score"),
    ],
)
def test_each_kind_has_its_route(kind, path):
    assert call(kind, "m", Size(1, 1), salt=None, random=Random(1)).path == path


@pytest.mark.parametrize("kind", [Kind.EMBEDDINGS, Kind.POOLING, Kind.CLASSIFICATION])
def test_a_model_that_generates_nothing_gets_an_input_and_no_more(kind):
    body = said(kind, Size(5, 0))
    assert (len(body.pop("input")), body) == (5, {"model": "served"})
    assert not call(kind, "m", Size(5, 0), salt=None, random=Random(1)).stream


@pytest.mark.parametrize(("prompt", "numbers"), [(1, 1), (8, 1), (80, 10)])
def test_scores_are_asked_in_words_since_they_take_no_ids(prompt, numbers):
    body = said(Kind.SCORES, Size(prompt, 0))
    assert [len(body[name].split()) for name in ("text_1", "text_2")] == [numbers, numbers]
    assert set(body) == {"model", "text_1", "text_2"}


@pytest.mark.parametrize("kind", list(Kind))
def test_the_salt_is_there_only_where_one_is_given(kind):
    assert said(kind, salt="warmup-1")["cache_salt"] == "warmup-1"
    assert "cache_salt" not in said(kind, salt=None)


def test_a_models_name_is_written_as_json():
    name = 'a"b\\c\u00e9'
    asked = call(Kind.COMPLETIONS, name, Size(1, 1), salt=None, random=Random(1))
    assert orjson.loads(asked.body)["model"] == name


def test_no_two_prompts_are_alike_and_all_ids_are_in_every_vocabulary():
    random = Random(1)
    bodies = [orjson.loads(call(Kind.COMPLETIONS, "m", Size(9000, 1), salt=None, random=random).body) for _ in range(3)]
    starts = {tuple(body["prompt"][:16]) for body in bodies}
    assert len(starts) == 3
    used = {number for body in bodies for number in body["prompt"]}
    assert used == set(range(256, 512))
    assert [len(body["prompt"]) for body in bodies] == [9000] * 3


# --- sizes


@pytest.mark.parametrize(
    ("shape", "context", "wanted"),
    [
        (SHORT, 8192, Size(32, 16)),
        (SHORT, None, Size(32, 16)),
        (FULL, 8192, Size(7372, 4)),
        (FULL, None, None),
        (Shape(context=1.0, output=4), 100, Size(100 - MARGIN - 4, 4)),
        (Shape(prompt=500, output=10), 100, Size(100 - MARGIN - 10, 10)),
        (Shape(prompt=5, output=500), 100, Size(1, 100 - MARGIN - 1)),
        (SHORT, MARGIN + 2, Size(1, 1)),
        (SHORT, MARGIN + 1, None),
        (SHORT, 0, None),
        (SHORT, -5, None),
        (FULL, 10**15, Size(MAX_PROMPT, 4)),
        (Shape(prompt=10_000_000, output=4), None, Size(MAX_PROMPT, 4)),
    ],
)
def test_a_prompt_and_its_answer_fit_the_context(shape, context, wanted):
    assert sizes([shape], Kind.COMPLETIONS, context).get(0) == wanted


@pytest.mark.parametrize(
    ("context", "wanted"), [(512, Size(460, 0)), (MARGIN + 1, Size(1, 0)), (MARGIN, None), (MARGIN - 1, None)]
)
def test_a_model_that_generates_nothing_needs_no_room_for_an_answer(context, wanted):
    assert sizes([FULL], Kind.EMBEDDINGS, context).get(0) == wanted


def test_a_round_is_each_shape_as_often_as_policy_says():
    made = calls(POLICY, Kind.COMPLETIONS, "m", 1000, salt="s", random=Random(1))
    assert [index for index, _ in made] == [0, 0, 1, 1, 2, 2]
    assert [len(orjson.loads(asked.body)["prompt"]) for _, asked in made] == [32, 32, 512, 512, 900, 900]
    assert len({asked.body for _, asked in made}) == 6


def test_a_round_leaves_out_what_it_is_told_to_and_what_it_cannot_size():
    made = calls(POLICY, Kind.COMPLETIONS, "m", None, salt=None, random=Random(1), without={0})
    assert [index for index, _ in made] == [1, 1]


# --- refusals


@pytest.mark.parametrize(
    ("status", "other_kind", "meaning"),
    [
        (404, False, Meaning.ROUTE),
        (405, False, Meaning.ROUTE),
        (501, False, Meaning.ROUTE),
        (400, True, Meaning.ROUTE),
        (400, False, Meaning.SHAPE),
        (413, False, Meaning.SHAPE),
        (422, False, Meaning.SHAPE),
        (401, False, Meaning.ENGINE),
        (500, False, Meaning.ENGINE),
        (503, False, Meaning.ENGINE),
    ],
)
def test_what_a_refusal_means(status, other_kind, meaning):
    assert judge(status, other_kind=other_kind) is meaning


# --- settling


def settling(*rounds: float, policy: Warmup = ONE) -> Settling:
    made = Settling(policy)
    for time in rounds:
        made.round([[time]])
    return made


@pytest.mark.parametrize(
    ("rounds", "settled"),
    [
        ((), False),
        ((1.0,), False),
        ((1.0, 1.0), False),
        ((1.0, 1.0, 1.0), True),
        ((1.0, 1.2, 1.3), True),
        ((1.0, 1.2, 1.31), False),
        ((1.3, 1.2, 1.0), True),
        ((60.0, 1.0, 1.0), False),
        ((60.0, 1.0, 1.0, 1.0), True),
        ((1.0, 0.8, 0.64), False),
        ((1.0, 1.0, 1.0, 60.0), False),
        ((60.0, 60.0, 2.0, 60.0), False),
        ((1.0, 2.0, 2.0, 2.0), True),
        ((0.001, 0.019, 0.001), True),
        ((0.001, 0.001 + NOISE, 0.001), True),
        ((0.001, 0.022, 0.001), False),
        ((0.0, 0.0, 0.0), True),
    ],
)
def test_times_settle_when_they_no_longer_change(rounds, settled):
    assert settling(*rounds).settled is settled


def test_the_slowest_request_of_a_round_is_its_time():
    made = Settling(ONE)
    for _ in range(3):
        made.round([[0.5, 1.0, 0.7]])
    made.round([[0.5, 60.0, 0.5]])
    assert not made.settled


def test_every_shape_has_to_settle():
    made = Settling(replace(POLICY, shapes=(SHORT, LONG)))
    for slow in (60.0, 2.0, 2.0):
        made.round([[1.0], [slow]])
    assert not made.settled
    made.round([[1.0], [2.0]])
    assert made.settled


def test_a_shape_that_was_dropped_need_not_settle():
    made = Settling(replace(POLICY, shapes=(SHORT, LONG)))
    for _ in range(3):
        made.round([[1.0], []])
    assert not made.settled
    made.drop(1)
    assert (made.settled, made.open, set(made.dropped)) == (True, True, {1})
    made.drop(0)
    assert (made.settled, made.open) == (False, False)


def test_a_round_without_an_answer_neither_helps_nor_hurts():
    made = settling(1.0, 1.0)
    made.round([[]])
    assert not made.settled
    made.round([[1.0]])
    assert made.settled


def test_how_many_rounds_have_to_agree_is_policys_to_say():
    policy = replace(ONE, rounds=4)
    assert not settling(1.0, 1.0, 1.0, 1.0, policy=policy).settled
    assert settling(1.0, 1.0, 1.0, 1.0, 1.0, policy=policy).settled


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ((), "no first token was seen"),
        ((1.94,), "first token 1.9 s at first, 1.9 s in the last round"),
        ((1.94, 0.0312, 0.0312, 0.0312), "first token 1.9 s at first, 0.031 s in the last 3 rounds"),
        ((123.4, 60.0, 0.5), "first token 123 s at first, 0.500 to 123 s in the last 3 rounds"),
    ],
)
def test_what_is_said_of_the_times(rounds, words):
    assert settling(*rounds).describe() == words


def test_the_shape_that_tells_most_is_described():
    made = Settling(replace(POLICY, shapes=(SHORT, LONG, FULL)))
    for _ in range(3):
        made.round([[9.0], [1.0], [2.0]])
    assert made.describe() == "first token 9.0 s at first, 9.0 s in the last 3 rounds (shape 1 of 3)"
    made.round([[9.0], [3.0], [2.0]])
    assert made.describe() == "first token 1.0 s at first, 1.0 to 3.0 s in the last 3 rounds (shape 2 of 3)"
    made.drop(1)
    assert made.describe().endswith("(shape 1 of 3)")
