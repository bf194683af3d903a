"""The kinds of rules that ``guards.yaml`` can name: for each its settings and how it is built, as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.model import FormPart
from gateway.policy import content, rules, schemas
from gateway.policy.document import Option, entries, flag, real, whole
from gateway.policy.rules import Rule

MODEL_PATTERN = r"[A-Za-z0-9._:/@-]{1,128}"
_INT64 = (1 << 63) - 1
_DECIMAL = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that stand once in the file and that several kinds of rules share."""

    content: content.ContentLimits
    schemas: schemas.SchemaLimits


Builder = Callable[[Mapping[str, Any], Bounds], Rule]
Parser = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: how its rule is built, which settings it has, and how a form's text becomes the value to judge."""

    build: Builder
    options: Mapping[str, Option] = field(default_factory=lambda: MappingProxyType({}))
    parse: Parser | None = None


def _number_of(written: str) -> Any:
    """A number written in decimals; anything else stays text, which no rule for numbers takes."""
    if not _DECIMAL.fullmatch(written):
        return written
    return float(written) if "." in written else int(written)


def _flag_of(written: str) -> Any:
    return {"true": True, "false": False}.get(written.lower(), written)


def _same(written: str) -> Any:
    return written


def _texts(options: Mapping[str, Any], _: Bounds) -> Rule:
    item = rules.text(options["min_chars"], options["max_chars"] or None)
    many = rules.listing(item, options["min_items"], options["max_items"])
    return rules.either(item, many) if options["single"] else many


def _choices(options: Mapping[str, Any], _: Bounds) -> Rule:
    many = rules.listing(rules.choice(options["values"]), 0, options["max_items"])
    return rules.either(rules.choice(options["values"]), many)


def _switches(options: Mapping[str, Any], _: Bounds) -> Rule:
    return rules.shape({name: rules.boolean() for name in options["names"]})


def _logit_bias(options: Mapping[str, Any], _: Bounds) -> Rule:
    return rules.mapping(r"[0-9]{1,9}", "token ids in decimal digits", rules.number(-100, 100), options["max_items"])


def _labels(options: Mapping[str, Any], _: Bounds) -> Rule:
    return rules.mapping(r"(?s).{1,64}", "1 to 64 characters long", rules.text(0, 512), options["max_items"])


def _thinking(options: Mapping[str, Any], _: Bounds) -> Rule:
    bare = rules.shape({"type": rules.text(1)})
    if not options["enabled"]:
        return rules.tagged({"disabled": bare})
    budget = {"type": rules.text(1), "budget_tokens": rules.integer(1, 1 << 20), "display": rules.text(1, 32)}
    return rules.tagged({"disabled": bare, "enabled": rules.shape(budget), "adaptive": rules.shape(budget)})


def _reasoning(options: Mapping[str, Any], _: Bounds) -> Rule:
    summary = rules.choice(["auto", "concise", "detailed"])
    return rules.shape({"effort": rules.choice(options["efforts"]), "summary": summary, "generate_summary": summary})


def _file(value: Any) -> str | None:
    if type(value) is not FormPart:
        return " must be a file"
    return None if value.data else " must be a file and not empty"


def _integers(options: Mapping[str, Any], _: Bounds) -> Rule:
    return rules.listing(rules.integer(options["min"], options["max"]), options["min_items"], options["max_items"])


_RANGE = {"min": whole(-_INT64 - 1, _INT64), "max": whole(-_INT64 - 1, _INT64)}
_ITEMS = {"min_items": whole(0, 1 << 20, 0), "max_items": whole(1, 1 << 20)}
_CHARS = {"min_chars": whole(0, 1 << 20, 0), "max_chars": whole(0, 1 << 30, 0)}
_NAMES = {"names": entries((str,))}

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "boolean": Kind(lambda _o, _b: rules.boolean(), parse=_flag_of),
        "integer": Kind(lambda o, _: rules.integer(o["min"], o["max"]), _RANGE, _number_of),
        "number": Kind(lambda o, _: rules.number(o["min"], o["max"]), {"min": real(), "max": real()}, _number_of),
        "integers": Kind(_integers, {**_RANGE, **_ITEMS}),
        "text": Kind(lambda o, _: rules.text(o["min_chars"], o["max_chars"] or None), _CHARS, _same),
        "texts": Kind(_texts, {**_CHARS, **_ITEMS, "single": flag(False)}),
        "choice": Kind(lambda o, _: rules.choice(o["values"]), {"values": entries((str, bool))}, _same),
        "choices": Kind(_choices, {"values": entries((str,)), "max_items": whole(1, 64, 16)}, _same),
        "switches": Kind(_switches, _NAMES),
        "never": Kind(lambda _o, _b: rules.refused("is not supported")),
        "object": Kind(lambda _o, _b: rules.any_object()),
        "labels": Kind(_labels, {"max_items": whole(0, 1024, 16)}),
        "file": Kind(lambda _o, _b: _file),
        "model": Kind(
            lambda _o, _b: rules.matching(MODEL_PATTERN, "1 to 128 letters, digits and . _ : / @ -"), parse=_same
        ),
        "logit_bias": Kind(_logit_bias, {"max_items": whole(0, 100_000)}),
        "thinking": Kind(_thinking, {"enabled": flag(False)}),
        "reasoning": Kind(_reasoning, {"efforts": entries((str,))}),
        "prompt": Kind(lambda o, _: content.prompt(o["max_items"]), {"max_items": whole(1, 1 << 20)}),
        "chat_messages": Kind(lambda _, b: content.chat_messages(b.content)),
        "anthropic_messages": Kind(lambda _, b: content.anthropic_messages(b.content)),
        "anthropic_system": Kind(lambda _, b: content.anthropic_system(b.content)),
        "responses_input": Kind(lambda _, b: content.responses_input(b.content)),
        "response_format": Kind(lambda _, b: schemas.response_format(b.schemas)),
        "structured_outputs": Kind(lambda _, b: schemas.structured_outputs(b.schemas)),
        "text_config": Kind(lambda _, b: schemas.text_config(b.schemas)),
        "output_config": Kind(lambda _, b: schemas.output_config(b.schemas)),
        "chat_tools": Kind(lambda _, b: schemas.chat_tools(b.schemas)),
        "responses_tools": Kind(lambda _, b: schemas.responses_tools(b.schemas)),
        "anthropic_tools": Kind(lambda _, b: schemas.anthropic_tools(b.schemas)),
        "chat_tool_choice": Kind(lambda _o, _b: schemas.chat_tool_choice()),
        "responses_tool_choice": Kind(lambda _o, _b: schemas.responses_tool_choice()),
        "anthropic_tool_choice": Kind(lambda _o, _b: schemas.anthropic_tool_choice()),
    }
)
