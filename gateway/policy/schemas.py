"""What a client may hand to the engine's grammar compilers: JSON schemas, tools, response formats.

The engine compiles them in its event loop or its core. Malformed ``type`` and ``pattern`` killed workers
(CVE-2025-48942, -48943, -48944) and compilation of a large or repetitive schema has no time limit, so that the size of
a schema is bounded here and regular expressions and grammars do not pass at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.policy.rules import Rule, any_object, boolean, choice, either, listing, matching, shape, tagged, text

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_REFUSED = frozenset({"pattern", "patternProperties", "$dynamicRef", "$recursiveRef"})
_NAMED_SCHEMAS = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "examples", "example", "required", "dependentRequired"})
_LISTS = frozenset({"enum", "required"})
_REPEATS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})

_TOOL_NAME = matching(r"[A-Za-z0-9_.-]{1,128}", "a name of 1 to 128 letters, digits, dots, dashes and underscores")
_DESCRIPTION = text(0, 65_536)


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Bounds of one schema: levels of schema within schema, serialised bytes, properties in all, repeat counts."""

    depth: int
    bytes: int
    properties: int
    repeats: int
    tools: int


def json_schema(limits: SchemaLimits) -> Rule:
    """A JSON schema within ``limits``, without regular expressions and without references that leave it."""

    def rule(value: Any) -> str | None:
        if type(value) is not dict:
            return " must be an object"
        if len(orjson.dumps(value)) > limits.bytes:
            return f" must be at most {limits.bytes} bytes of JSON"
        properties = 0
        level: list[dict[str, Any]] = [value]
        for _ in range(limits.depth):
            for node in level:
                if (found := _keywords(node, limits)) is not None:
                    return found
                named = node.get("properties")
                properties += len(named) if type(named) is dict else 0
            if properties > limits.properties:
                return f" must have at most {limits.properties} properties"
            level = [child for node in level for child in _subschemas(node)]
            if not level:
                return None
        return f" must nest at most {limits.depth} levels of schemas"

    return rule


def _keywords(node: dict[str, Any], limits: SchemaLimits) -> str | None:
    """The first fault among the keywords of one schema object."""
    if not _REFUSED.isdisjoint(node):
        return " must not use pattern, patternProperties or dynamic references"
    if "type" in node and not _is_type(node["type"]):
        return " must name types of JSON Schema in type"
    if not _is_within(node.get("$ref", "#")):
        return " must keep its references within itself"
    if not all(_is_named_schemas(node[keyword]) for keyword in _NAMED_SCHEMAS & node.keys()):
        return " must have schemas in properties and definitions"
    if any(type(node[keyword]) is not list for keyword in _LISTS & node.keys()):
        return " must have lists in enum and required"
    return _repeats(node, limits.repeats)


def _repeats(node: dict[str, Any], high: int) -> str | None:
    for keyword in sorted(_REPEATS & node.keys()):
        bound = node[keyword]
        if type(bound) is not int or not 0 <= bound <= high:
            return f" must keep {keyword} between 0 and {high}"
    return None


def _is_within(reference: Any) -> bool:
    return type(reference) is str and reference.startswith("#")


def _is_named_schemas(held: Any) -> bool:
    return type(held) is dict and all(type(child) is dict or type(child) is bool for child in held.values())


def _is_type(kind: Any) -> bool:
    kinds = kind if type(kind) is list else [kind]
    return bool(kinds) and all(type(name) is str and name in _TYPES for name in kinds)


def _subschemas(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Schemas directly within ``node``. A keyword that is not known is taken to hold schemas."""
    for keyword, held in node.items():
        if keyword in _DATA:
            continue
        if type(held) is dict:
            if keyword in _NAMED_SCHEMAS:
                yield from (child for child in held.values() if type(child) is dict)
            else:
                yield held
        elif type(held) is list:
            yield from (child for child in held if type(child) is dict)


def response_format(limits: SchemaLimits) -> Rule:
    """OpenAI's ``response_format``; vLLM's ``structural_tag`` is a grammar and does not pass."""
    bare = shape({"type": text(1)})
    named = shape(
        {"name": _TOOL_NAME, "description": _DESCRIPTION, "schema": json_schema(limits), "strict": boolean()}, ["name"]
    )
    held = shape({"type": text(1), "json_schema": named}, ["json_schema"])
    return tagged({"text": bare, "json_object": bare, "json_schema": held})


def text_config(limits: SchemaLimits) -> Rule:
    """The ``text`` member of a Responses request: the same formats, spelled flat."""
    bare = shape({"type": text(1)})
    flat = shape(
        {
            "type": text(1),
            "name": _TOOL_NAME,
            "description": _DESCRIPTION,
            "schema": json_schema(limits),
            "strict": boolean(),
        },
        ["schema"],
    )
    formats = tagged({"text": bare, "json_object": bare, "json_schema": flat})
    return shape({"format": formats, "verbosity": choice(["low", "medium", "high"])})


def structured_outputs(limits: SchemaLimits) -> Rule:
    """vLLM's own member, without ``regex``, ``grammar``, ``structural_tag`` and the choice of a backend."""
    return shape({"json": json_schema(limits), "choice": listing(text(1, 256), 1, 64), "json_object": boolean()})


def output_config(limits: SchemaLimits) -> Rule:
    """Anthropic's ``output_config``: effort and a JSON schema."""
    held = shape({"type": choice(["json_schema"]), "schema": json_schema(limits)}, ["type", "schema"])
    return shape({"format": held, "effort": choice(["low", "medium", "high", "xhigh", "max"])})


def chat_tools(limits: SchemaLimits) -> Rule:
    """Function tools of the chat API; tools that the server would run are not among them."""
    function = shape(
        {"name": _TOOL_NAME, "description": _DESCRIPTION, "parameters": json_schema(limits), "strict": boolean()},
        ["name"],
    )
    tool = shape({"type": choice(["function"]), "function": function}, ["type", "function"])
    return listing(tool, 0, limits.tools)


def responses_tools(limits: SchemaLimits) -> Rule:
    """Function tools of the Responses API."""
    tool = shape(
        {
            "type": choice(["function"]),
            "name": _TOOL_NAME,
            "description": _DESCRIPTION,
            "parameters": json_schema(limits),
            "strict": boolean(),
        },
        ["type", "name"],
    )
    return listing(tool, 0, limits.tools)


def anthropic_tools(limits: SchemaLimits) -> Rule:
    """Client tools of the Messages API; server tools (web search, code execution) carry another type."""
    tool = shape(
        {
            "type": choice(["custom"]),
            "name": _TOOL_NAME,
            "description": _DESCRIPTION,
            "input_schema": json_schema(limits),
            "strict": boolean(),
            "cache_control": any_object(),
        },
        ["name", "input_schema"],
    )
    return listing(tool, 0, limits.tools)


def chat_tool_choice() -> Rule:
    """A mode, or one function by name."""
    named = shape(
        {"type": choice(["function"]), "function": shape({"name": _TOOL_NAME}, ["name"])}, ["type", "function"]
    )
    return either(choice(["none", "auto", "required"]), named)


def responses_tool_choice() -> Rule:
    """A mode, or one function by name."""
    named = shape({"type": choice(["function"]), "name": _TOOL_NAME}, ["type", "name"])
    return either(choice(["none", "auto", "required"]), named)


def anthropic_tool_choice() -> Rule:
    """Anthropic's choice object."""
    mode = shape({"type": text(1), "disable_parallel_tool_use": boolean()})
    one = shape({"type": text(1), "name": _TOOL_NAME, "disable_parallel_tool_use": boolean()}, ["name"])
    return tagged({"auto": mode, "any": mode, "none": mode, "tool": one})
