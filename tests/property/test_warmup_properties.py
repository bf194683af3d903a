"""Whatever shapes policy names and whatever an engine says of its context: what is sent fits, and what improves is
not settled."""

from __future__ import annotations

from random import Random

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.warmup import MARGIN, MAX_PROMPT, NOISE, Kind, Settling, calls, sizes
from gateway.policy.fleet import Shape, Warmup

STEADY = settings(derandomize=True, deadline=None)

outputs = st.integers(1, 4096)
shapes = st.lists(
    st.builds(Shape, prompt=st.integers(1, 3000), output=outputs)
    | st.builds(Shape, context=st.floats(0.01, 1.0), output=outputs),
    max_size=4,
).map(tuple)
contexts = st.none() | st.integers(-10, 3000)
any_contexts = contexts | st.integers(1, 10**18)
times = st.floats(0.0, 1e6) | st.floats(0.0, 0.1)


@STEADY
@given(shapes, st.sampled_from(Kind), any_contexts)
def test_a_size_fits_the_context_and_the_memory_that_a_prompt_may_take(shapes, kind, context):
    for index, size in sizes(shapes, kind, context).items():
        assert 1 <= size.prompt <= MAX_PROMPT
        assert size.output >= 1 if kind is Kind.COMPLETIONS else size.output == 0
        if context is not None:
            assert size.prompt + size.output <= context - MARGIN
        assert context is not None or not shapes[index].context


@STEADY
@given(shapes, st.integers(1, 3), st.sampled_from(Kind), contexts, st.none() | st.text(min_size=1, max_size=9))
def test_a_round_sends_each_shape_that_has_a_size_as_often_as_policy_says(shapes, concurrency, kind, context, salt):
    policy = Warmup(shapes=shapes, concurrency=concurrency)
    made = calls(policy, kind, "m", context, salt=salt, random=Random(1))
    known = sizes(shapes, kind, context)
    assert [index for index, _ in made] == [index for index in known for _ in range(concurrency)]
    assert len(made) <= concurrency * len(shapes)
    for index, asked in made:
        body = orjson.loads(asked.body)
        ids = body.get("prompt") or body.get("input")
        assert kind is Kind.SCORES or len(ids) == known[index].prompt
        assert kind is Kind.SCORES or all(256 <= number < 512 for number in ids)
        assert body.get("cache_salt") == salt


def _settle(rounds, ratio, needed):
    made = Settling(Warmup(shapes=(Shape(prompt=1),), ratio=ratio, rounds=needed))
    for measured in rounds:
        made.round([measured])
    return made


@STEADY
@given(st.lists(st.lists(times, max_size=3), max_size=12), st.floats(1.05, 10.0), st.integers(1, 4))
def test_what_has_settled_varied_by_no_more_than_ratio_or_noise(rounds, ratio, needed):
    made = _settle(rounds, ratio, needed)
    slowest = [max(measured) for measured in rounds if measured][-needed - 1 :]
    alike = bool(slowest) and (max(slowest) <= min(slowest) * ratio or max(slowest) - min(slowest) <= NOISE)
    assert made.settled is (len(slowest) == needed + 1 and alike)
    assert made.describe().isprintable()


@STEADY
@given(times, st.floats(1.05, 10.0), st.integers(1, 6))
def test_equal_times_settle_as_soon_as_there_are_enough_of_them(time, ratio, needed):
    assert not _settle([[time]] * needed, ratio, needed).settled
    assert _settle([[time]] * (needed + 1), ratio, needed).settled


@STEADY
@given(st.floats(1.0, 1e6), st.floats(1.05, 3.0), st.integers(1, 4), st.integers(1, 9))
def test_what_improves_beyond_the_ratio_in_every_round_never_settles(first, ratio, needed, count):
    rounds = [[first * (ratio * 1.1) ** -number] for number in range(count)]
    if min(map(max, rounds)) > 1.0:  # above noise: 5 % of a second is more than twenty milliseconds
        assert not _settle(rounds, ratio, needed).settled
