"""Whatever the history, the table, the file and the counts: rollbacks differ, files converge, verdicts are fair."""

from __future__ import annotations

import contextlib
import math
import string

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.aliasing.compare import Margins, TrackCounts, Verdict, abort_reason, compare
from gateway.aliasing.files import Step, Wanted, describe, read, render, steps
from gateway.aliasing.plan import PlanFault, aborted, canary_targets, diff, promoted, rollback_to, shares_of, targets_of
from gateway.aliasing.statistics import Buckets, even_interval, quantile, quantile_interval, rate_difference, wilson
from gateway.model import AliasTable, Revision, Target
from gateway.policy.document import PolicyFault

# The same examples each time, however slow the machine is.
STEADY = settings(derandomize=True, deadline=None)

# So few models that revisions often repeat each other.
few_models = st.sampled_from(["a", "b", "c"])
odd_models = st.text(string.ascii_letters + string.digits + string.punctuation, min_size=1, max_size=8)
splits = st.lists(
    st.builds(Target, few_models | odd_models, st.integers(1, 100)), min_size=1, max_size=3, unique_by=lambda t: t.model
).map(tuple)
notes = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\u2028\u2029"), max_size=20
) | st.just("")
names = st.sampled_from(["x", "y", "z", "1", "no", "a/b", "null", "-", "1:20"])
HISTORY = 6


@st.composite
def revisions(draw: st.DrawFn, alias: str, number: int, *, trials: bool = True) -> Revision:
    canary_of = draw(st.none() | st.integers(1, number - 1)) if trials and number > 1 else None
    if canary_of is None:
        return Revision(alias, number, draw(splits), "ops", 1.0, draw(notes))
    weight = draw(st.integers(1, 99))
    return Revision(alias, number, (Target("a", 100 - weight), Target("b", weight)), "ops", 1.0, canary_of=canary_of)


@st.composite
def histories(draw: st.DrawFn) -> list[Revision]:
    """What verbs can make: sets, trials of single models, and their ends."""
    made = [Revision("x", 1, draw(splits), "ops", 1.0)]
    for number in range(2, draw(st.integers(1, HISTORY)) + 1):
        current = made[-1]
        targets, canary_of = draw(splits), None
        if current.canary_of is not None:
            targets = draw(st.sampled_from([promoted(current), aborted(made).targets, targets]))
        elif draw(st.booleans()):
            with contextlib.suppress(PlanFault):
                targets = canary_targets(current, draw(few_models), draw(st.integers(1, 99)))
                canary_of = current.number
        made.append(Revision("x", number, targets, "ops", float(number), canary_of=canary_of))
    return made


@st.composite
def tables(draw: st.DrawFn, *, trials: bool = True) -> AliasTable:
    listed = draw(st.lists(names, unique=True, max_size=4))
    return AliasTable(1, {name: draw(revisions(name, draw(st.integers(1, 9)), trials=trials)) for name in listed})


wanted_files = st.dictionaries(names, st.builds(Wanted, splits, st.none() | notes), max_size=4)


def applied(table: AliasTable, taken: list[Step]) -> AliasTable:
    """The table after the steps, each of which has to win its compare-and-set."""
    current = dict(table.current)
    for step in taken:
        before = current.pop(step.alias, None)
        assert (before.number if before else 0) == step.expect_revision
        if step.verb != "delete":
            assert (step.verb == "create") is (before is None)
            number = step.expect_revision + 1
            current[step.alias] = Revision(step.alias, number, step.targets, "ops", 2.0, step.note, "file")
    return AliasTable(table.generation + len(taken), current)


# --- plans


@given(histories(), st.sets(st.integers(1, HISTORY)))
@STEADY
def test_a_rollback_that_chooses_by_itself_goes_to_something_else_that_is_no_canary(history, served):
    uses = dict.fromkeys(served, 1.0)
    others = [
        one for one in history if one.canary_of is None and shares_of(one.targets) != shares_of(history[-1].targets)
    ]
    try:
        chosen = rollback_to(history, uses)
    except PlanFault:
        assert others == []
        return
    assert chosen in others
    if history[-1].canary_of is None and any(one.number in served for one in others):
        assert chosen.number == max(one.number for one in others if one.number in served)
    assert diff(history[-1], chosen) != []


@given(histories(), st.integers(0, HISTORY + 1))
@STEADY
def test_a_rollback_that_is_told_where_to_goes_there_or_nowhere(history, to):
    with contextlib.suppress(PlanFault):
        assert rollback_to(history, {}, to).number == to


@given(histories(), odd_models | few_models, st.integers(-1, 101))
@STEADY
def test_a_canary_keeps_the_stable_model_first_and_both_its_ends_are_known(history, model, weight):
    current = history[-1]
    try:
        targets = canary_targets(current, model, weight)
    except PlanFault:
        return
    trial = Revision("x", current.number + 1, targets, "ops", 1.0, canary_of=current.number)
    assert [trial.track(target.model) for target in targets] == ["stable", "canary"]
    assert (targets[1].weight, sum(target.weight for target in targets)) == (weight, 100)
    assert aborted([*history, trial]) == current == rollback_to([*history, trial], {})
    assert promoted(trial) == (Target(model),)


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(-1, 102)), max_size=18))
@STEADY
def test_targets_are_either_refused_or_what_was_named(pairs):
    with contextlib.suppress(PlanFault):
        targets = targets_of(pairs)
        assert [(target.model, target.weight) for target in targets] == pairs
        assert sum(shares_of(targets).values()) == 1


# --- files


@given(tables())
@STEADY
def test_what_is_written_is_read_back_and_asks_for_nothing(table):
    text = render(table)
    again = read(text, "x")
    assert {name: shares_of(entry.targets) for name, entry in again.items()} == {
        name: shares_of(held.targets) for name, held in table.current.items()
    }
    assert {name: entry.note or "" for name, entry in again.items()} == {
        name: held.note for name, held in table.current.items()
    }
    assert steps(again, table, prune=True) == []
    assert render(AliasTable(9, dict(reversed(table.current.items())))) == text


@given(wanted_files, tables(), st.booleans(), st.booleans())
@STEADY
def test_steps_make_what_is_wanted_once_and_touch_nothing_else(wanted, table, prune, force):
    try:
        planned = steps(wanted, table, prune, force=force)
    except PlanFault:
        assert not force
        return
    after = applied(table, planned)
    for name, entry in wanted.items():
        assert shares_of(after.current[name].targets) == shares_of(entry.targets)
        assert entry.note in {None, after.current[name].note} or after.current[name].canary_of is not None
    others = {name: held for name, held in table.current.items() if name not in wanted}
    assert {name: held for name, held in after.current.items() if name not in wanted} == ({} if prune else others)
    assert steps(wanted, after, prune) == []
    if not force:
        assert all(step.before is None or step.before.canary_of is None for step in planned)
    assert all(step.alias in describe(step) for step in planned)


@given(tables(trials=False), tables(trials=False))
@STEADY
def test_the_file_of_one_table_turns_another_into_it(table, other):
    after = applied(other, steps(read(render(table), "x"), other, prune=True))
    assert {name: shares_of(held.targets) for name, held in after.current.items()} == {
        name: shares_of(held.targets) for name, held in table.current.items()
    }


@given(st.text(max_size=60) | st.text("aliases:{}[] model,\n-&*1\"'", max_size=60).map("aliases:\n  ".__add__))
@STEADY
def test_any_text_is_refused_or_read_to_what_may_be_assigned(text):
    with contextlib.suppress(PolicyFault):
        wanted = read(text, "x")
        assert all(targets_of([(t.model, t.weight) for t in entry.targets]) for entry in wanted.values())


# --- comparisons

counts = st.integers(0, 40) | st.integers(0, 5_000)
BOUNDS = (0.1, 0.25, 0.5)
buckets = st.tuples(counts, counts, counts, counts).map(lambda held: Buckets(BOUNDS, held))
requests = st.tuples(counts, counts).map(lambda pair: (max(pair), min(pair)))
tracks = st.builds(lambda pair, ttft, tpot: TrackCounts(*pair, ttft, tpot), requests, buckets, buckets)
confidences = st.sampled_from([0.8, 0.95, 0.999])
MIRROR = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}


@given(tracks, tracks, confidences)
@STEADY
def test_tracks_that_change_places_change_verdicts_and_nothing_is_said_of_too_few(stable, canary, confidence):
    there, back = compare(stable, canary, confidence), compare(canary, stable, confidence)
    for one, two in zip(there.rows, back.rows, strict=True):
        assert two.verdict is MIRROR.get(one.verdict, one.verdict)
        assert (one.stable, one.canary) == (two.canary, two.stable)
        if min(one.stable.samples, one.canary.samples) < one.minimum:
            assert (one.verdict, one.interval) == (Verdict.NOT_ENOUGH, None)
        else:
            assert one.verdict is not Verdict.NOT_ENOUGH
            assert one.interval is not None
            assert one.difference is not None
            assert one.interval.low - 1e-12 <= one.difference <= one.interval.high + 1e-12
            assert one.interval.low < one.interval.high


@given(tracks, confidences)
@STEADY
def test_a_track_is_never_better_or_worse_than_itself(track, confidence):
    compared = compare(track, track, confidence)
    assert {row.verdict for row in compared.rows} <= {Verdict.SAME, Verdict.NOT_ENOUGH}
    assert abort_reason(compared, Margins(error_rate=0.0, ttft_p95=1.0)) is None


@given(tracks, tracks)
@STEADY
def test_a_canary_is_ended_only_for_what_a_row_calls_worse(stable, canary):
    compared = compare(stable, canary, 0.999)
    if abort_reason(compared):
        assert Verdict.WORSE in {compared.row("error rate").verdict, compared.row("TTFT p95").verdict}


@given(tracks, tracks)
@STEADY
def test_more_confidence_or_wider_margins_never_end_more_canaries(stable, canary):
    compared = compare(stable, canary)
    if abort_reason(compared) is not None:
        assert abort_reason(compared, Margins(confidence=0.95)) is not None
        assert abort_reason(compared, Margins(error_rate=0.0, ttft_p95=1.0)) is not None


@given(buckets, st.sampled_from([0.05, 0.5, 0.95]), confidences)
@STEADY
def test_the_value_lies_in_its_intervals_and_the_even_one_in_that_of_bounds(histogram, fraction, confidence):
    value = quantile(histogram, fraction)
    if value is None:
        assert histogram.total == 0
        return
    wide, narrow = quantile_interval(histogram, fraction, confidence), even_interval(histogram, fraction, confidence)
    assert wide.low <= narrow.low <= value + 1e-12
    assert value - 1e-12 <= narrow.high <= wide.high
    assert {wide.low, wide.high} <= {0.0, *BOUNDS, math.inf}


@given(requests.filter(lambda pair: pair[0]), requests.filter(lambda pair: pair[0]), confidences)
@STEADY
def test_intervals_of_rates_hold_the_rate_and_grow_with_confidence(one, two, confidence):
    (total, hits), (other_total, other_hits) = one, two
    low, high = wilson(hits, total, confidence)
    assert 0.0 <= low <= hits / total + 1e-12
    assert hits / total - 1e-12 <= high <= 1.0
    narrow = rate_difference(hits, total, other_hits, other_total, confidence)
    wide = rate_difference(hits, total, other_hits, other_total, 0.9999)
    assert wide.low <= narrow.low < narrow.high <= wide.high
    assert wide.low >= -1
    assert wide.high <= 1
