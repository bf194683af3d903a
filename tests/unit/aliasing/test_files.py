"""The file of aliases: what is written, what is read with all its faults, and the steps to what it wants."""

from __future__ import annotations

import pytest

from gateway.aliasing.files import Wanted, describe, read, render, steps
from gateway.aliasing.plan import PlanFault
from gateway.model import AliasTable, Revision, Target
from gateway.policy.document import PolicyFault


def revision(alias: str, number: int, *targets: Target, note: str = "", canary_of: int | None = None) -> Revision:
    return Revision(alias, number, targets, "ops", 1.0, note, canary_of=canary_of)


def table(*revisions: Revision) -> AliasTable:
    return AliasTable(7, {held.alias: held for held in revisions})


SPLIT = (Target("a", 90), Target("b", 10))
TABLE = table(
    revision("internal-general", 3, Target("qwen3-32b"), note="the default"),
    revision("internal-code", 2, *SPLIT),
)
TEXT = """\
aliases:
  internal-code:
    targets:
    - {model: a, weight: 90}
    - {model: b, weight: 10}
  internal-general: {model: qwen3-32b, note: the default}
"""
TRIAL = table(revision("chat", 4, *SPLIT, canary_of=3))


def faults_of(text: str, source: str = "aliases.yaml") -> list[str]:
    with pytest.raises(PolicyFault) as caught:
        read(text, source)
    return str(caught.value).splitlines()


# --- written and read


def test_a_table_is_written_by_name_one_line_for_what_is_plain():
    assert render(TABLE) == TEXT
    assert render(AliasTable()) == "aliases: {}\n"


def test_what_was_written_is_read_back():
    assert read(TEXT, "x") == {
        "internal-code": Wanted(SPLIT),
        "internal-general": Wanted((Target("qwen3-32b"),), "the default"),
    }
    assert read("aliases: {}", "x") == {}


def test_names_that_yaml_would_take_for_something_else_come_back_as_they_were():
    odd = table(
        *(revision(name, 1, Target(name), note=name) for name in ("1", "no", "null", "1e3", "0x1F", "-", "1:2"))
    )
    assert steps(read(render(odd), "x"), odd, prune=True) == []


def test_a_file_may_be_written_as_a_person_would():
    text = 'aliases:\n  code: {targets: [{model: a, weight: 9}, {model: b, weight: 1}], note: ""}\n  7b: {model: "7"}\n'
    assert read(text, "x") == {
        "code": Wanted((Target("a", 9), Target("b", 1)), ""),
        "7b": Wanted((Target("7"),)),
    }


def test_every_fault_is_reported_at_once_with_its_line():
    text = """\
version: 1
aliases:
  good: {model: m}
  /models/llama: {model: m}
  both: {model: m, targets: [{model: m, weight: 1}]}
  neither: {note: x}
  number: {model: 7}
  list: [m]
  typo: {modle: m}
  split:
    targets:
    - {model: a, weight: 0}
    - {model: b}
    - {model: a, weight: 101}
    - {weight: 1}
    - b
  empty: {targets: []}
  note: {model: m, note: "two\\nlines"}
  good: {model: m}
"""
    assert faults_of(text) == [
        "aliases.yaml:3: aliases.good: written twice; expected once",
        "aliases.yaml:1: version: not known; expected one of aliases",
        "aliases.yaml:4: aliases./models/llama: expected an alias name, 1 to 64 of A-Z a-z 0-9 . _ : / - "
        "without empty, '.' or '..' segments",
        "aliases.yaml:5: aliases.both: expected either model or targets",
        "aliases.yaml:6: aliases.neither: expected either model or targets",
        "aliases.yaml:7: aliases.number.model: expected the name of a served model, "
        "1 to 256 printable ASCII characters without spaces",
        "aliases.yaml:8: aliases.list: expected a mapping",
        "aliases.yaml:9: aliases.typo.modle: not known; expected one of model, note, targets",
        "aliases.yaml:9: aliases.typo: expected either model or targets",
        "aliases.yaml:12: aliases.split.targets[0].weight: expected a whole number between 1 and 100",
        "aliases.yaml:13: aliases.split.targets[1]: expected weight: a whole number between 1 and 100",
        "aliases.yaml:14: aliases.split.targets[2].weight: expected a whole number between 1 and 100",
        "aliases.yaml:15: aliases.split.targets[3]: expected model: the name of a served model, "
        "1 to 256 printable ASCII characters without spaces",
        "aliases.yaml:16: aliases.split.targets[4]: expected a mapping",
        "aliases.yaml:16: aliases.split.targets[4]: expected model: the name of a served model, "
        "1 to 256 printable ASCII characters without spaces",
        "aliases.yaml:16: aliases.split.targets[4]: expected weight: a whole number between 1 and 100",
        "aliases.yaml:14: aliases.split.targets[2].model: written twice; expected each model once",
        "aliases.yaml:17: aliases.empty.targets: expected a list of 1 to 16 targets, each with model and weight",
        "aliases.yaml:18: aliases.note.note: expected a note, one line of at most 200 characters",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "x:0: file: expected aliases: a mapping of names"),
        ("aliases:", "x:1: aliases: expected a mapping"),
        ("[]", "x:1: file: expected a mapping"),
        ("aliases: {", "x:1: file: expected YAML: expected the node content, but found '<stream end>'"),
        ("[" * 1_000, "x:0: file: expected fewer levels"),
    ],
)
def test_a_file_that_was_cut_short_is_not_one_that_wants_nothing(text, fault):
    assert faults_of(text, "x") == [fault]


# --- steps


def test_only_what_differs_is_done_creations_first_and_deletions_last():
    wanted = read("aliases: {zeta: {model: z, note: new}, internal-general: {model: q}}", "x")
    planned = steps(wanted, TABLE, prune=True)
    assert [(step.verb, step.alias, step.targets, step.note, step.expect_revision) for step in planned] == [
        ("create", "zeta", (Target("z"),), "new", 0),
        ("change", "internal-general", (Target("q"),), "", 3),
        ("delete", "internal-code", (), "", 2),
    ]
    assert [describe(step) for step in planned] == [
        "create zeta: z",
        "change internal-general (revision 3): qwen3-32b -> q",
        "delete internal-code (revision 2): was a 90 %, b 10 %",
    ]


def test_what_the_file_does_not_name_stays_unless_it_is_to_be_pruned():
    assert steps({}, TABLE, prune=False) == []
    assert [step.verb for step in steps({}, TABLE, prune=True)] == ["delete", "delete"]


def test_the_same_shares_in_other_words_are_no_difference():
    wanted = {"internal-code": Wanted((Target("b", 1), Target("a", 9)))}
    assert steps(wanted, TABLE, prune=False) == []


def test_a_note_counts_where_the_file_writes_one():
    assert steps({"internal-general": Wanted((Target("qwen3-32b"),))}, TABLE, prune=False) == []
    (step,) = steps({"internal-general": Wanted((Target("qwen3-32b"),), "other")}, TABLE, prune=False)
    assert (step.note, step.expect_revision) == ("other", 3)
    assert describe(step) == "change internal-general (revision 3): qwen3-32b, another note"


def test_a_running_canary_that_the_file_repeats_is_left_alone():
    assert steps(read(render(TRIAL), "x"), TRIAL, prune=True) == []
    assert steps({"chat": Wanted(SPLIT, "a note of its own")}, TRIAL, prune=True) == []
    assert steps({}, TRIAL, prune=False) == []


@pytest.mark.parametrize("wanted", [{"chat": Wanted((Target("a"),))}, {}])
def test_a_running_canary_that_the_file_would_end_is_a_fault_unless_forced(wanted):
    with pytest.raises(PlanFault) as caught:
        steps(wanted, TRIAL, prune=True)
    assert caught.value.words == (
        "a canary runs that the file does not mention: chat (revision 4); promote or abort it, "
        "write its split into the file, or force the file to end it"
    )
    (step,) = steps(wanted, TRIAL, prune=True, force=True)
    assert step.expect_revision == 4
    assert "a 90 %, b 10 %, a canary of revision 3" in describe(step)


def test_an_alias_whose_name_no_verb_could_take_is_neither_written_nor_pruned():
    automatic = table(revision("/models/llama", 1, Target("/models/llama")))
    assert render(automatic) == "aliases: {}\n"
    assert steps({}, automatic, prune=True) == []
