"""What the admin plane refuses beside what the inference plane does; so does whoever acts on a store directly."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.errors import PLAIN_NAME, ErrorSpec, Refusal

_INVALID = "invalid_request_error"
_DENIED = "permission_error"
ADMIN_CODES: Mapping[str, ErrorSpec] = MappingProxyType(
    {
        "verb_forbidden": ErrorSpec("verb_forbidden", 403, _DENIED, _DENIED, "This needs an admin verb that you lack."),
        "grant_too_wide": ErrorSpec("grant_too_wide", 403, _DENIED, _DENIED, "Nobody gives more than it has."),
        "no_such_object": ErrorSpec("no_such_object", 404, _INVALID, "not_found_error", "No such key or alias."),
        "conflict": ErrorSpec("conflict", 409, _INVALID, _INVALID, "Somebody else was first."),
        "model_not_served": ErrorSpec("model_not_served", 409, _INVALID, _INVALID, "No replica serves that model now."),
        "alias_in_use": ErrorSpec("alias_in_use", 409, _INVALID, _INVALID, "The alias is in use."),
        "change_refused": ErrorSpec("change_refused", 409, _INVALID, _INVALID, "The alias does not stand so."),
    }
)

# Kinds of validation errors whose message is made from our own rules. Others could quote what was sent.
_OWN_WORDS = frozenset(
    {
        "bool_type",
        "extra_forbidden",
        "float_type",
        "greater_than_equal",
        "int_parsing",
        "int_type",
        "less_than_equal",
        "list_type",
        "literal_error",
        "missing",
        "model_attributes_type",
        "string_pattern_mismatch",
        "string_type",
        "too_long",
        "too_short",
        "value_error",
    }
)


class AdminRefusal(Refusal):
    """A refusal with a row of ``ADMIN_CODES``."""

    def __init__(self, code: str, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__("invalid_request", message or ADMIN_CODES[code].message, param=param)
        self.spec = ADMIN_CODES[code]


def validation_refusal(kind: str, place: tuple[int | str, ...], words: str) -> Refusal:
    """A validation error in words that never quote what was sent: a field name only when it is a plain one."""
    if kind == "missing" and place == ("body",):
        return Refusal("invalid_request", "The request has no body: a JSON object is expected.")
    names = [str(part) for part in place[1:]]
    param = ".".join(names) if names and all(PLAIN_NAME.match(name) or name.isdecimal() for name in names) else None
    text = words.removeprefix("Value error, ") if kind in _OWN_WORDS else "Not valid"
    return Refusal("invalid_request", f"{param}: {text}." if param else f"{text}.", param=param)
