"""What requests to one alias may not ask for, beyond what the rules of their endpoint refuse.

A mask only narrows: it is judged after the endpoint's rules and has no way to let anything pass. Of several that match
an alias all hold, so that no entry of the file can be undone by one that stands above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from gateway.errors import Refusal
from gateway.model import Endpoint, InferenceRequest
from gateway.policy.content import count_images
from gateway.policy.context import output_limit
from gateway.policy.document import Document, Option, read_options, strings, whole, word
from gateway.policy.globs import EXPECTED_GLOB, Globs, compile_globs, is_glob
from gateway.policy.reading import optional
from gateway.policy.rules import unknown_member

_REMEMBERED = 16_384  # aliases whose mask is known without looking for it
_HERE = " for this model"
_TOOLS = frozenset({"tools", "tool_choice"})
_FREE_CHOICES = ("none", "auto")  # tool choices that constrain no output
# What a request that states no limit gets: these endpoints would give it all the room that is left.
_OPEN_ENDED: Mapping[Endpoint, str] = MappingProxyType(
    {Endpoint.CHAT: "max_tokens", Endpoint.RESPONSES: "max_output_tokens"}
)


@dataclass(frozen=True, slots=True)
class Mask:
    """Narrower rules of one alias; ``None`` is no bound of its own.

    ``forbid`` are members that must be absent or null. ``switches`` are the template switches that may be set.
    ``vocabulary`` is how many token ids there are, ``max_tokens`` and ``n`` are the most that may be asked for.
    """

    forbid: frozenset[str] = frozenset()
    images: bool = True
    structured_output: bool = True
    switches: frozenset[str] | None = None
    max_tokens: int | None = None
    vocabulary: int | None = None
    n: int | None = None

    def judge(self, request: InferenceRequest) -> None:
        """Raise ``Refusal`` (400) for the first member that asks for more; the endpoint's rules have been judged."""
        for check in _CHECKS:
            if (fault := check(self, request)) is not None:
                name, text = fault
                raise Refusal("invalid_request", f"{name}{text}.", param=name)

    def bound(self, request: InferenceRequest) -> InferenceRequest:
        """``request`` with this mask's output limit if it stated none and would be given all the room that is left."""
        name = _OPEN_ENDED.get(request.route.endpoint)
        if self.max_tokens is None or request.max_tokens is not None or name is None:
            return request
        payload = {**request.payload, name: self.max_tokens}
        return request._replace(payload=payload, max_tokens=self.max_tokens)

    def narrowed(self, other: Mask) -> Mask:
        """What passes both."""
        return Mask(
            forbid=self.forbid | other.forbid,
            images=self.images and other.images,
            structured_output=self.structured_output and other.structured_output,
            switches=_common(self.switches, other.switches),
            max_tokens=_smaller(self.max_tokens, other.max_tokens),
            vocabulary=_smaller(self.vocabulary, other.vocabulary),
            n=_smaller(self.n, other.n),
        )


class Masks:
    """All masks of the policy, each with the aliases that it covers."""

    def __init__(self, entries: Iterable[tuple[Globs, Mask]] = ()) -> None:
        self._entries = tuple(entries)
        self._known = lru_cache(maxsize=_REMEMBERED)(self._find)

    def of(self, alias: str) -> Mask | None:
        """All that matches ``alias``, as one mask; ``None`` if nothing does."""
        return self._known(alias) if self._entries else None

    def _find(self, alias: str) -> Mask | None:
        found: Mask | None = None
        for globs, mask in self._entries:
            if globs.covers(alias):
                found = mask if found is None else found.narrowed(mask)
        return found


# --- what is checked

_Fault = tuple[str, str]


def _forbidden(mask: Mask, request: InferenceRequest) -> _Fault | None:
    for name, value in request.payload.items():
        if value is not None and name in mask.forbid:
            return name, f" is not allowed{_HERE}"
    for part in request.parts:
        if part.name in mask.forbid:
            return part.name, f" is not allowed{_HERE}"
    return None


def _too_long(mask: Mask, request: InferenceRequest) -> _Fault | None:
    limit = output_limit(request.route.endpoint, request.payload) if mask.max_tokens is not None else None
    if limit is None or mask.max_tokens is None or limit[1] <= mask.max_tokens:
        return None
    return limit[0], f" must be at most {mask.max_tokens}{_HERE}"


def _too_many(mask: Mask, request: InferenceRequest) -> _Fault | None:
    wanted = request.payload.get("n")
    if mask.n is None or wanted is None or wanted <= mask.n:
        return None
    return "n", f" must be at most {mask.n}{_HERE}"


def _switched(mask: Mask, request: InferenceRequest) -> _Fault | None:
    if mask.switches is None:
        return None
    for name in request.payload.get("chat_template_kwargs") or ():
        if name not in mask.switches:
            return "chat_template_kwargs", unknown_member(name) + _HERE
    return None


def _outside_vocabulary(mask: Mask, request: InferenceRequest) -> _Fault | None:
    """Token ids past the end of the vocabulary end an engine in a CUDA assertion (PR 54721)."""
    size = mask.vocabulary
    if size is None:
        return None
    bias = request.payload.get("logit_bias")
    if bias and any(int(token) >= size for token in bias):
        return "logit_bias", f" must have token ids below {size}{_HERE}"
    tokens = request.payload.get("tokens")
    if tokens and max(tokens) >= size:
        return "tokens", f" must be token ids below {size}{_HERE}"
    return None


def _pictured(mask: Mask, request: InferenceRequest) -> _Fault | None:
    if mask.images:
        return None
    for name in ("messages", "input"):
        held = request.payload.get(name)
        if type(held) is list and count_images(held):
            return name, f" must not hold images{_HERE}"
    return None


def _structured(mask: Mask, request: InferenceRequest) -> _Fault | None:
    """Whatever makes an engine compile a grammar: formats, strict tools, tools that must be called."""
    if mask.structured_output:
        return None
    payload = request.payload
    for name, path in _FORMATS:
        held = payload.get(name)
        if path is not None and held is not None:
            held = held.get(path)
        if held is not None and held.get("type") != "text":
            return name, f" must not ask for structured output{_HERE}"
    if any(_is_strict(tool) for tool in payload.get("tools") or ()):
        return "tools", f" must not be strict{_HERE}"
    choice = payload.get("tool_choice")
    if choice is not None and (choice.get("type") if type(choice) is dict else choice) not in _FREE_CHOICES:
        return "tool_choice", f" must be none or auto{_HERE}"
    return None


_FORMATS = (
    ("response_format", None),
    ("structured_outputs", None),
    ("text", "format"),
    ("output_config", "format"),
)
_CHECKS: tuple[Callable[[Mask, InferenceRequest], _Fault | None], ...] = (
    _forbidden,
    _too_long,
    _too_many,
    _switched,
    _outside_vocabulary,
    _pictured,
    _structured,
)


def _is_strict(tool: Mapping[str, Any]) -> bool:
    return tool.get("strict") is True or (tool.get("function") or {}).get("strict") is True


# --- how it is read

_MAX = 1 << 31
_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "match": strings(required=True),
        "forbid": strings(),
        "tools": word(("allow", "refuse"), "allow"),
        "media": word(("none", "data"), "data"),
        "structured_output": word(("allow", "refuse"), "allow"),
        "logit_bias": word(("allow", "refuse"), "allow"),
        "switches": optional(strings()),
        "max_tokens": optional(whole(1, _MAX)),
        "vocabulary": optional(whole(1, _MAX)),
        "n": optional(whole(1, _MAX)),
    }
)


def read_masks(document: Document, value: Any, known: frozenset[str]) -> Masks:
    """The section ``aliases``; ``known`` are the members that some endpoint's rules let pass."""
    if not isinstance(value, list):
        document.fault("aliases", "expected a list")
        return Masks()
    return Masks(_read_entry(document, held, f"aliases[{index}]", known) for index, held in enumerate(value))


def _read_entry(document: Document, value: Any, where: str, known: frozenset[str]) -> tuple[Globs, Mask]:
    options = read_options(document, value, where, _OPTIONS)
    if not all(map(is_glob, options["match"] or ())):
        document.fault(f"{where}.match", f"expected {EXPECTED_GLOB}")
    forbid = frozenset(options["forbid"])
    for name in sorted(forbid - known):
        document.fault(f"{where}.forbid", f"expected members that an endpoint lets pass; {name} is not among them")
    if options["tools"] == "refuse":
        forbid |= _TOOLS
    if options["logit_bias"] == "refuse":
        forbid |= {"logit_bias"}
    mask = Mask(
        forbid=forbid,
        images=options["media"] == "data",
        structured_output=options["structured_output"] == "allow",
        switches=None if options["switches"] is None else frozenset(options["switches"]),
        max_tokens=options["max_tokens"],
        vocabulary=options["vocabulary"],
        n=options["n"],
    )
    return compile_globs(options["match"] or ()), mask


def _common(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
