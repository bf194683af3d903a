"""Decisions about one alias: where a rollback goes, what a canary may be, and what the refusals say."""

from __future__ import annotations

import pytest

from gateway.aliasing.plan import (
    MAX_TARGETS,
    PlanFault,
    aborted,
    canary_targets,
    describe_targets,
    diff,
    promoted,
    rollback_to,
    targets_of,
)
from gateway.model import Revision, Target


def revision(number: int, *targets: tuple[str, int], canary_of: int | None = None, note: str = "") -> Revision:
    split = tuple(Target(model, weight) for model, weight in targets)
    return Revision("chat", number, split, "ops", float(number), note, canary_of=canary_of)


def history(*models: str) -> list[Revision]:
    return [revision(number, (model, 1)) for number, model in enumerate(models, 1)]


def trial(number: int, of: int) -> Revision:
    return revision(number, ("a", 90), ("b", 10), canary_of=of)


def refusal(call, *arguments, **options) -> str:
    with pytest.raises(PlanFault) as caught:
        call(*arguments, **options)
    assert str(caught.value) == caught.value.words
    return caught.value.words


# --- rollback


def test_a_rollback_goes_to_the_newest_that_differs_and_has_served():
    assert rollback_to(history("a", "b", "c"), {1: 1.0, 2: 2.0, 3: 3.0}).number == 2


def test_a_rollback_passes_over_what_never_served():
    assert rollback_to(history("a", "typo", "c"), {1: 1.0, 3: 3.0}).number == 1


def test_a_rollback_takes_the_newest_that_differs_where_none_served():
    assert rollback_to(history("a", "b", "c"), {3: 3.0}).number == 2


def test_a_rollback_passes_over_revisions_that_send_traffic_where_it_goes_now():
    split = [revision(1, ("z", 1)), revision(2, ("a", 1), ("b", 1)), revision(3, ("b", 50), ("a", 50))]
    assert rollback_to(split, {1: 1.0, 2: 2.0, 3: 3.0}).number == 1


def test_a_rollback_never_chooses_a_canary_but_what_was_there_before_it():
    promoted_since = [revision(1, ("a", 1)), trial(2, of=1), revision(3, ("b", 1))]
    assert rollback_to(promoted_since, {1: 1.0, 2: 2.0, 3: 3.0}).number == 1


def test_a_rollback_while_a_canary_runs_is_its_abort_even_where_the_stable_one_has_not_served_alone():
    running = [revision(1, ("z", 1)), revision(2, ("a", 1)), trial(3, of=2)]
    assert rollback_to(running, {1: 1.0, 3: 3.0}).number == 2


def test_a_rollback_goes_where_it_is_told_to_whatever_served_and_whatever_it_is():
    assert rollback_to(history("a", "b", "a"), {}, 1).number == 1


def test_a_deleted_alias_comes_back_as_it_was_or_as_it_is_told_to():
    gone = history("a", "b")
    assert rollback_to(gone, {}, deleted=True).number == 2
    assert rollback_to(gone, {}, 2, deleted=True).number == 2
    assert rollback_to([*gone, trial(3, of=2)], {}, deleted=True).number == 2


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (None, "chat has never been assigned to anything else; set it to the model it should have"),
        (9, "chat has no revision 9; its newest is 3, its history lists all"),
        (0, "chat has no revision 0; its newest is 3, its history lists all"),
        (3, "chat is at revision 3 already; name an earlier one"),
        (2, "revision 2 of chat was a canary of revision 1; go back to that one, or start a canary again"),
    ],
)
def test_a_rollback_that_cannot_be_says_what_to_do(to, words):
    ended = [revision(1, ("a", 1)), trial(2, of=1), revision(3, ("a", 1))]
    assert refusal(rollback_to, ended, {1: 1.0, 2: 2.0}, to) == words


def test_an_alias_without_revisions_cannot_go_back():
    for call in (lambda: rollback_to([], {}), lambda: aborted([])):
        assert refusal(call) == "there is no such alias; set it to a model first"


# --- canary


def test_a_canary_keeps_the_rest_on_the_stable_model():
    assert canary_targets(revision(1, ("a", 7)), "b", 5) == (Target("a", 95), Target("b", 5))


def test_its_targets_are_the_tracks_of_the_revision():
    made = Revision("chat", 2, canary_targets(revision(1, ("a", 1)), "b", 5), "ops", 1.0, canary_of=1)
    assert (made.track("a"), made.track("b")) == ("stable", "canary")
    assert promoted(made) == (Target("b"),)
    assert aborted([revision(1, ("a", 1)), made]).number == 1


@pytest.mark.parametrize(
    ("current", "model", "weight", "words"),
    [
        (trial(2, of=1), "c", 5, "a canary of chat runs as revision 2; promote or abort it first"),
        (revision(1, ("a", 1)), "a", 5, "chat has that model already; name the one to try"),
        (revision(1, ("a", 1), ("b", 1)), "c", 5, "chat has 2 targets; set it to one model first"),
        (revision(1, ("a", 1)), "b", 0, "a canary gets 1 to 99 percent; to give it all, set the alias to the model"),
        (revision(1, ("a", 1)), "b", 100, "a canary gets 1 to 99 percent; to give it all, set the alias to the model"),
        (
            revision(1, ("a", 1)),
            "b\x1b[31m",
            5,
            "expected the name of a served model, 1 to 256 printable ASCII characters without spaces",
        ),
    ],
)
def test_a_canary_that_cannot_be_says_what_to_do(current, model, weight, words):
    assert refusal(canary_targets, current, model, weight) == words


def test_only_a_canary_is_promoted_or_aborted():
    assert "no canary of chat runs; start one" in refusal(promoted, revision(1, ("a", 1)))
    assert "no canary of chat runs; to go back" in refusal(aborted, history("a", "b"))


# --- targets


def test_targets_are_made_of_models_and_weights():
    assert targets_of([("a", 90), ("b", 10)]) == (Target("a", 90), Target("b", 10))
    assert len(targets_of([(f"m{index}", 100) for index in range(MAX_TARGETS)])) == MAX_TARGETS


@pytest.mark.parametrize(
    ("pairs", "parts"),
    [
        ([], ["name 1 to 16 models"]),
        ([(f"m{index}", 1) for index in range(MAX_TARGETS + 1)], ["name 1 to 16 models"]),
        ([("a", 0)], ["a weight is a whole number between 1 and 100"]),
        ([("a", 101)], ["a weight is a whole number between 1 and 100"]),
        ([("a", True)], ["a weight is a whole number between 1 and 100"]),
        ([("a", 1), ("a", 1)], ["name each model once"]),
        (
            [("a b", 0), ("a b", 1)],
            [
                "expected the name of a served model, 1 to 256 printable ASCII characters without spaces",
                "a weight is a whole number between 1 and 100",
                "name each model once",
            ],
        ),
    ],
)
def test_targets_that_cannot_be_say_all_that_is_wrong(pairs, parts):
    assert refusal(targets_of, pairs) == "; ".join(parts)


# --- words


def test_a_diff_names_each_model_whose_share_changes_and_the_rest_that_does():
    one = revision(1, ("a", 1), note="before")
    other = revision(2, ("a", 90), ("b", 10), canary_of=1, note="after")
    assert [str(row) for row in diff(one, other)] == [
        "a: 100 % -> 90 %",
        "b: none -> 10 %",
        "canary of: none -> revision 1",
        "note: before -> after",
    ]
    assert [str(row) for row in diff(revision(3, ("a", 1)), revision(4, ("c", 1)))] == [
        "a: 100 % -> none",
        "c: none -> 100 %",
    ]
    assert diff(revision(1, ("a", 1), ("b", 2)), revision(5, ("b", 20), ("a", 10))) == []


def test_targets_in_words_give_shares_where_there_are_several():
    assert describe_targets([Target("a", 7)]) == "a"
    assert describe_targets([Target("a", 1), Target("b", 2)]) == "a 33.33 %, b 66.67 %"
