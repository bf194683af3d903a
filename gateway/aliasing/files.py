"""Aliases as a file that may be kept under version control: written from a table, read back, and applied.

aliases:
  internal-code:
    targets:
    - {model: qwen3-coder-a, weight: 90}
    - {model: qwen3-coder-b, weight: 10}
  internal-general: {model: qwen3-32b, note: the default}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gateway.aliasing.plan import MAX_TARGETS, MAX_WEIGHT, PlanFault, describe_targets, shares_of
from gateway.model import AliasTable, Revision, Target
from gateway.policy.document import Document, Fault, Option, PolicyFault, read_options, whole
from gateway.policy.names import EXPECTED_ALIAS, EXPECTED_MODEL, EXPECTED_NOTE, is_alias, is_model, is_note

_KEYS = ("model", "targets", "note")
_TARGET = {
    "model": Option(lambda value: value if is_model(value) else None, EXPECTED_MODEL, required=True),
    "weight": whole(1, MAX_WEIGHT),
}
_ONE_LINE = 1 << 16
_ORDER = ("create", "change", "delete")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file says of one alias. ``note`` ``None``: it says nothing of the note, any will do."""

    targets: tuple[Target, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One write. ``verb`` is ``create``, ``change`` or ``delete`` (then there are no targets).

    ``before`` is the revision that is current (``None``: none), ``expect_revision`` its number (0: the alias must not
    exist), so that the step is lost if somebody else was there first.
    """

    verb: str
    alias: str
    targets: tuple[Target, ...] = ()
    note: str = ""
    before: Revision | None = None

    @property
    def expect_revision(self) -> int:
        """What the compare-and-set of this step has to expect."""
        return 0 if self.before is None else self.before.number


def render(table: AliasTable) -> str:
    """The table as a file, by name; ``read`` gives the same targets and notes back.

    A trial is written as the split it is. Left out are aliases that were made automatically for a served model whose
    name no alias may be given: no verb could assign them.
    """
    entries = {name: _entry(held) for name, held in sorted(table.current.items()) if is_alias(name)}
    return yaml.safe_dump(
        {"aliases": entries}, default_flow_style=None, sort_keys=False, allow_unicode=True, width=_ONE_LINE
    )


def read(text: str, source: str) -> Mapping[str, Wanted]:
    """What the file says of each alias that it names. Raises ``PolicyFault`` with every fault; ``source`` names it."""
    try:
        document = Document(text, source)
    except RecursionError:  # brackets without end: the YAML reader calls itself for each
        raise PolicyFault(source, [Fault("file", 0, "expected fewer levels")]) from None
    top = document.mapping(document.tree, "", ("aliases",))
    # A file cut short must not be one that wants nothing, or pruning would delete every alias.
    if "aliases" not in top and not document.faults:
        document.fault("", "expected aliases: a mapping of names")
    wanted = {}
    for name, value in document.mapping(top.get("aliases", {}), "aliases").items():
        where = f"aliases.{name}"
        if not is_alias(name):
            document.fault(where, f"expected {EXPECTED_ALIAS}")
        wanted[name] = _wanted(document, value, where)
    document.finish()
    return wanted


def steps(wanted: Mapping[str, Wanted], table: AliasTable, prune: bool, *, force: bool = False) -> list[Step]:
    """The writes that turn the table into what is wanted, and no others: creations, changes, deletions, each by name.

    ``prune`` deletes what the file does not name. A trial whose split the file repeats is left alone, its note too;
    without ``force``, a step that would end a trial is a ``PlanFault`` that names every one of them.
    """
    planned = [*_assignments(wanted, table)]
    if prune:
        gone = (table.current[name] for name in sorted(table.current.keys() - wanted.keys()) if is_alias(name))
        planned += [Step("delete", held.alias, before=held) for held in gone]
    trials = [step.before for step in planned if step.before is not None and step.before.canary_of is not None]
    if trials and not force:
        named = ", ".join(sorted(f"{held.alias} (revision {held.number})" for held in trials))
        raise PlanFault(
            f"a canary runs that the file does not mention: {named}; promote or abort it, "
            "write its split into the file, or force the file to end it"
        )
    return sorted(planned, key=lambda step: (_ORDER.index(step.verb), step.alias))


def describe(step: Step) -> str:
    """The step in words, for whoever is asked whether to take it."""
    if step.before is None:
        return f"create {step.alias}: {describe_targets(step.targets)}"
    head = f"{step.verb} {step.alias} (revision {step.before.number})"
    now = describe_targets(step.before.targets)
    if step.before.canary_of is not None:
        now += f", a canary of revision {step.before.canary_of}"
    if step.verb == "delete":
        return f"{head}: was {now}"
    same = shares_of(step.targets) == shares_of(step.before.targets)
    return f"{head}: {now}, another note" if same else f"{head}: {now} -> {describe_targets(step.targets)}"


def _assignments(wanted: Mapping[str, Wanted], table: AliasTable) -> Iterator[Step]:
    for name, entry in wanted.items():
        held = table.current.get(name)
        if held is None:
            yield Step("create", name, entry.targets, entry.note or "")
        elif not _satisfied(entry, held):
            yield Step("change", name, entry.targets, entry.note or "", held)


def _satisfied(entry: Wanted, held: Revision) -> bool:
    if shares_of(entry.targets) != shares_of(held.targets):
        return False
    return entry.note is None or entry.note == held.note or held.canary_of is not None


def _entry(held: Revision) -> dict[str, Any]:
    note = {"note": held.note} if held.note else {}
    if len(held.targets) == 1:
        return {"model": held.targets[0].model, **note}
    return {"targets": [{"model": target.model, "weight": target.weight} for target in held.targets], **note}


def _wanted(document: Document, value: Any, where: str) -> Wanted:
    written = document.mapping(value, where, _KEYS)
    note = written.get("note")
    if "note" in written and not is_note(note):
        document.fault(f"{where}.note", f"expected {EXPECTED_NOTE}")
    if isinstance(value, dict) and ("model" in written) == ("targets" in written):
        document.fault(where, "expected either model or targets")
    if "targets" in written:
        return Wanted(_targets(document, written["targets"], f"{where}.targets"), note)
    model = written.get("model", "")
    if "model" in written and not is_model(model):
        document.fault(f"{where}.model", f"expected {EXPECTED_MODEL}")
    return Wanted((Target(model),), note)


def _targets(document: Document, value: Any, where: str) -> tuple[Target, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TARGETS:
        document.fault(where, f"expected a list of 1 to {MAX_TARGETS} targets, each with model and weight")
        return ()
    read = [read_options(document, entry, f"{where}[{index}]", _TARGET) for index, entry in enumerate(value)]
    models = [entry["model"] for entry in read]
    for index, model in enumerate(models):
        if model is not None and models.index(model) < index:
            document.fault(f"{where}[{index}].model", "written twice; expected each model once")
    return tuple(Target(entry["model"], entry["weight"]) for entry in read)
