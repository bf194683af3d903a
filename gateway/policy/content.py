"""The shapes of conversations: messages, their content, and what else an input is made of.

Roles, part types and members are closed sets taken from the public APIs, because vLLM accepts unknown roles and
members without a word (captured, 0.32.0). Parts that carry tensors (``*_embeds``), fetch an address or decode
audio or video never pass; images only as data, and only where the policy turns them on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway.policy.images import declared_size
from gateway.policy.rules import (
    Rule,
    any_object,
    boolean,
    choice,
    either,
    listing,
    matching,
    refused,
    shape,
    tagged,
    text,
)

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
_DATA_URL = re.compile(rf"data:({'|'.join(_IMAGE_TYPES)});base64,")
_MEDIA_OFF = " holds media, which is not enabled"
_IDENTIFIER = text(1, 256)
_NAME = matching(r"[A-Za-z0-9_.-]{1,128}", "a name of 1 to 128 letters, digits, dots, dashes and underscores")
_SOMETHING = text(1)
_ANYTHING = text(0)


@dataclass(frozen=True, slots=True)
class ContentLimits:
    """Bounds of a conversation. ``media`` is none or data; ``images`` bounds how many a request has.

    ``image_bytes`` counts base64 letters of one image, ``image_pixels`` is the most that its width times height may be.
    """

    messages: int
    parts: int
    media: str
    images: int
    image_bytes: int
    image_pixels: int

    def images_pass(self) -> bool:
        """Whether images given as data may pass."""
        return self.media == "data"


def chat_messages(limits: ContentLimits) -> Rule:
    """Messages of the chat API."""
    text_part = shape({"type": _ANYTHING, "text": _SOMETHING}, ["type", "text"])
    output_part = shape({"type": _ANYTHING, "text": _ANYTHING}, ["type", "text"])
    refusal_part = shape({"type": _ANYTHING, "refusal": _ANYTHING}, ["type", "refusal"])
    image = shape({"url": _data_url(limits), "detail": choice(["auto", "low", "high"])}, ["url"])
    image_part = _media(limits, shape({"type": _ANYTHING, "image_url": image}, ["type", "image_url"]))
    told = {"text": text_part, "image_url": image_part}
    call = shape(
        {
            "id": _IDENTIFIER,
            "type": choice(["function"]),
            "function": shape({"name": _NAME, "arguments": _ANYTHING}, ["name"]),
            "index": lambda value: None if type(value) is int else " must be a whole number",
        },
        ["function"],
    )
    said = {
        "content": _content(limits, {"text": output_part, "refusal": refusal_part}, empty=True),
        "tool_calls": listing(call, 0, limits.parts),
        "reasoning": _ANYTHING,
        "reasoning_content": _ANYTHING,
        "refusal": _ANYTHING,
        # An answer's message that is sent back as it came has these members, null or empty (captured, 0.32.0).
        "audio": refused("is not supported"),
        "function_call": refused("is not supported"),
        "annotations": listing(any_object(), 0, limits.parts),
    }
    instructed = _content(limits, {"text": text_part}, empty=False)
    variants = {
        "system": _message({"content": instructed}, ["content"]),
        "developer": _message({"content": instructed}, ["content"]),
        "user": _message({"content": _content(limits, told, empty=False)}, ["content"]),
        "assistant": _spoken(_message(said, [])),
        "tool": _message(
            {"content": _content(limits, told | {"text": output_part}, empty=True), "tool_call_id": _IDENTIFIER},
            ["content", "tool_call_id"],
        ),
    }
    return _conversation(limits, tagged(variants, key="role"), frozenset({"system", "developer", "user", "assistant"}))


def anthropic_messages(limits: ContentLimits) -> Rule:
    """Messages of Anthropic's API."""
    told = {"text": _block({"text": _SOMETHING, "citations": listing(any_object(), 0, limits.parts)}, ["text"])}
    told["image"] = _media(limits, _block({"source": _base64_source(limits)}, ["source"]))
    result = either(_ANYTHING, listing(tagged(told), 0, limits.parts))
    user = {
        **told,
        "tool_result": _block({"tool_use_id": _IDENTIFIER, "content": result, "is_error": boolean()}, ["tool_use_id"]),
    }
    assistant = {
        "text": told["text"],
        "tool_use": _block({"id": _IDENTIFIER, "name": _NAME, "input": any_object()}, ["id", "name", "input"]),
        "thinking": _block({"thinking": _ANYTHING, "signature": _ANYTHING}, ["thinking"]),
        "redacted_thinking": _block({"data": _ANYTHING}, ["data"]),
    }
    variants = {
        "user": _message({"content": _content(limits, user, empty=False)}, ["content"]),
        "assistant": _message({"content": _content(limits, assistant, empty=False)}, ["content"]),
    }
    return _conversation(limits, tagged(variants, key="role"), frozenset(variants))


def anthropic_system(limits: ContentLimits) -> Rule:
    """Anthropic's system prompt: a string or text blocks."""
    return _content(limits, {"text": _block({"text": _SOMETHING}, ["text"])}, empty=False)


def responses_input(limits: ContentLimits) -> Rule:
    """Input of the Responses API, stateless: items that refer to stored ones do not pass."""
    told = shape({"type": _ANYTHING, "text": _SOMETHING}, ["type", "text"])
    wrote = shape(
        {
            "type": _ANYTHING,
            "text": _ANYTHING,
            "annotations": listing(any_object(), 0, limits.parts),
            "logprobs": listing(any_object(), 0, 0),
        },
        ["type", "text"],
    )
    image = _media(
        limits,
        shape(
            {"type": _ANYTHING, "image_url": _data_url(limits), "detail": choice(["auto", "low", "high"])},
            ["type", "image_url"],
        ),
    )
    refusal = shape({"type": _ANYTHING, "refusal": _ANYTHING}, ["type", "refusal"])
    parts = {"input_text": told, "output_text": wrote, "input_image": image, "refusal": refusal}
    message = {
        "role": choice(["user", "assistant", "system", "developer"]),
        "content": _content(limits, parts, empty=False),
        "phase": text(0, 64),
    }
    summary = listing(shape({"type": _ANYTHING, "text": _ANYTHING}), 0, limits.parts)
    items = {
        "message": _item(message, ["role", "content"]),
        "function_call": _item(
            {"call_id": _IDENTIFIER, "name": _NAME, "arguments": _ANYTHING, "namespace": text(0, 128)},
            ["call_id", "name", "arguments"],
        ),
        "function_call_output": _item(
            {"call_id": _IDENTIFIER, "output": _content(limits, parts, empty=True)}, ["call_id", "output"]
        ),
        "reasoning": _item({"summary": summary, "content": summary, "encrypted_content": _ANYTHING}, []),
    }
    listed = listing(tagged(items, default="message"), 1, limits.messages)
    return either(_SOMETHING, _within_images(limits, listed))


def prompt(limits: int) -> Rule:
    """Text, or up to ``limits`` texts; lists of token ids are refused."""
    return either(_SOMETHING, listing(_SOMETHING, 1, limits))


def _message(members: dict[str, Rule], required: Iterable[str]) -> Rule:
    return shape({"role": _ANYTHING, "name": text(1, 256), **members}, ["role", *required])


def _block(members: dict[str, Rule], required: Iterable[str]) -> Rule:
    return shape({"type": _ANYTHING, "cache_control": any_object(), **members}, ["type", *required])


def _item(members: dict[str, Rule], required: Iterable[str]) -> Rule:
    status = choice(["in_progress", "completed", "incomplete"])
    return shape({"type": _ANYTHING, "id": _IDENTIFIER, "status": status, **members}, required)


def _content(limits: ContentLimits, parts: dict[str, Rule], *, empty: bool) -> Rule:
    """A string, or a list of parts of known types."""
    return either(_ANYTHING if empty else _SOMETHING, listing(tagged(parts), 0 if empty else 1, limits.parts))


def _spoken(rule: Rule) -> Rule:
    """An assistant's message says something or calls a tool."""

    def judged(message: dict[str, Any]) -> str | None:
        if message.get("content") or message.get("tool_calls") or message.get("reasoning"):
            return rule(message)
        return rule(message) or (None if "content" in message else ".content is required")

    return judged


def _conversation(limits: ContentLimits, message: Rule, plain: frozenset[str]) -> Rule:
    """Messages, with a short way for the usual one: a role of ``plain`` and a text, nothing else."""

    def short(value: Any) -> str | None:
        if type(value) is dict and len(value) == 2:
            content = value.get("content")
            role = value.get("role")
            if type(content) is str and content and type(role) is str and role in plain:
                return None
        return message(value)

    return _within_images(limits, listing(short, 1, limits.messages))


def _media(limits: ContentLimits, rule: Rule) -> Rule:
    return rule if limits.images_pass() else lambda _: _MEDIA_OFF


def _within_images(limits: ContentLimits, rule: Rule) -> Rule:
    """``rule``, and at most ``limits.images`` images in all; counted only where images can pass at all."""
    if not limits.images_pass():
        return rule

    def judged(value: Any) -> str | None:
        found = rule(value)
        if found is None and type(value) is list and count_images(value) > limits.images:
            return f" must hold at most {limits.images} images"
        return found

    return judged


def count_images(messages: list[Any]) -> int:
    """Images among the parts of ``messages``, those within tool results too. The depth is bounded by the body's."""
    total = 0
    level = [node for node in messages if type(node) is dict]
    while level:
        total += sum(1 for node in level if node.get("type") in ("image", "image_url", "input_image"))
        held = (node.get(key) for node in level for key in ("content", "output"))
        level = [part for parts in held if type(parts) is list for part in parts if type(part) is dict]
    return total


def _data_url(limits: ContentLimits) -> Rule:
    """An image as data. Anything that would be fetched is refused by not being this (CVE-2025-6242, CVE-2026-24779).

    Letters of base64 hold no comma: thousands of frames in one address came through further commas.
    """
    fault = f" must be data:image/png, jpeg or webp in base64 of at most {limits.image_bytes} letters"
    image = _image(limits)

    def rule(value: Any) -> str | None:
        start = _DATA_URL.match(value) if type(value) is str else None
        return fault if start is None else image(start[1], value[start.end() :])

    return rule


def _base64_source(limits: ContentLimits) -> Rule:
    image = _image(limits)
    source = shape(
        {"type": choice(["base64"]), "media_type": choice(_IMAGE_TYPES), "data": _SOMETHING},
        ["type", "media_type", "data"],
    )

    def rule(value: Any) -> str | None:
        if (fault := source(value)) is not None:
            return fault
        found = image(value["media_type"], value["data"])
        return None if found is None else f".data{found}"

    return rule


def _image(limits: ContentLimits) -> Callable[[str, str], str | None]:
    """Judges an image given by media type and base64: its letters, its type, and the size that it declares.

    The size is what a decoder would make room for: a few bytes can declare gigabytes (PR 47010).
    """
    letters = f" must be base64 of at most {limits.image_bytes} letters"
    size = f" must be an image of its media type, not animated, of at most {limits.image_pixels} pixels"

    def judge(kind: str, data: str) -> str | None:
        if len(data) > limits.image_bytes or not _BASE64.fullmatch(data):
            return letters
        found = declared_size(kind, data)
        return None if found is not None and found[0] * found[1] <= limits.image_pixels else size

    return judge
