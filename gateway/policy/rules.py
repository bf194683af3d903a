"""Rules over parsed JSON values, as closures built once.

A ``Rule`` takes a value and answers ``None`` when it is in order, else a text that continues the name of the member at
fault: `` must be between 1 and 8``, or ``[2].role must be ...``. The text states the rule and never holds the value; a
member's name stands in it only if it is plain, because keys are input too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.errors import PLAIN_NAME

Rule = Callable[[Any], str | None]

_NOT_OBJECT = " must be an object"


def boolean() -> Rule:
    """true or false."""
    return lambda value: None if value is True or value is False else " must be true or false"


def integer(low: int, high: int) -> Rule:
    """A whole number in ``low..high``; a boolean or a float is none, whatever its value."""
    fault = f" must be a whole number between {low} and {high}"
    return lambda value: None if type(value) is int and low <= value <= high else fault


def number(low: float, high: float) -> Rule:
    """A number in ``low..high``."""
    fault = f" must be a number between {low:g} and {high:g}"

    def rule(value: Any) -> str | None:
        kind = type(value)
        return None if (kind is float or kind is int) and low <= value <= high else fault

    return rule


def text(low: int, high: int | None = None) -> Rule:
    """A string of ``low..high`` characters (``None``: as long as the body allows)."""
    fault = f" must be a string{_of(low, high, 'characters')}"
    if high is None:
        return lambda value: None if type(value) is str and len(value) >= low else fault
    return lambda value: None if type(value) is str and low <= len(value) <= high else fault


def _of(low: int, high: int | None, things: str) -> str:
    """The bounds in words: nothing, `` and not empty``, `` of at most 4 items``, `` of 1 to 4 items``."""
    if high is None:
        return ("", " and not empty")[low] if low < 2 else f" of at least {low} {things}"
    return f" of at most {high} {things}" if low == 0 else f" of {low} to {high} {things}"


def matching(pattern: str, described: str) -> Rule:
    """A string that ``pattern`` matches whole; ``described`` says in words what that is."""
    compiled = re.compile(pattern)
    return lambda value: None if type(value) is str and compiled.fullmatch(value) else f" must be {described}"


def choice(values: Iterable[str | bool]) -> Rule:
    """One of a closed set of strings and booleans."""
    allowed = tuple(values)
    texts = frozenset(value for value in allowed if type(value) is str)
    flags = tuple(value for value in allowed if type(value) is bool)
    shown = ", ".join(str(value).lower() if type(value) is bool else str(value) for value in allowed)
    fault = f" must be {shown}" if len(allowed) == 1 else f" must be one of {shown}"

    def rule(value: Any) -> str | None:
        if type(value) is str:
            return None if value in texts else fault
        return None if any(value is flag for flag in flags) else fault

    return rule


def refused(why: str) -> Rule:
    """Nothing but null; ``why`` continues the name."""
    return lambda value: None if value is None else f" {why}"


def listing(item: Rule, low: int, high: int) -> Rule:
    """A list of ``low..high`` items, each in order."""
    fault = f" must be a list{_of(low, high, 'items')}"

    def rule(value: Any) -> str | None:
        if type(value) is not list or not low <= len(value) <= high:
            return fault
        for index, element in enumerate(value):
            if (found := item(element)) is not None:
                return f"[{index}]{found}"
        return None

    return rule


def either(single: Rule, many: Rule) -> Rule:
    """A string that ``single`` judges, or anything else, which ``many`` judges."""
    return lambda value: single(value) if type(value) is str else many(value)


def shape(members: Mapping[str, Rule], required: Iterable[str] = ()) -> Rule:
    """An object of known members only. A null member counts as one that is not there."""
    known = dict(members)
    needed = tuple(required)

    def rule(value: Any) -> str | None:
        if type(value) is not dict:
            return _NOT_OBJECT
        for name, member in value.items():
            if (check := known.get(name)) is None:
                return unknown_member(name)
            if member is not None and (found := check(member)) is not None:
                return f".{name}{found}"
        for name in needed:
            if value.get(name) is None:
                return f".{name} is required"
        return None

    return rule


def tagged(variants: Mapping[str, Rule], key: str = "type", default: str | None = None) -> Rule:
    """An object that is judged by the rule its member ``key`` names; ``default`` stands for an absent one."""
    known = dict(variants)
    fault = f".{key} must be one of {', '.join(known)}"

    def rule(value: Any) -> str | None:
        if type(value) is not dict:
            return _NOT_OBJECT
        tag = value.get(key, default)
        check = known.get(tag) if type(tag) is str else None
        return fault if check is None else check(value)

    return rule


def mapping(keys: str, described: str, member: Rule, high: int) -> Rule:
    """An object of at most ``high`` members whose names are data: each matches ``keys``, each value ``member``."""
    compiled = re.compile(keys)

    def rule(value: Any) -> str | None:
        if type(value) is not dict:
            return _NOT_OBJECT
        if len(value) > high:
            return f" must have at most {high} members"
        for name, held in value.items():
            if not compiled.fullmatch(name):
                return f" must have keys that are {described}"
            if (found := member(held)) is not None:
                return f" has a value that{found}"
        return None

    return rule


def any_object() -> Rule:
    """Any object; its depth and size are bounded with the body's."""
    return lambda value: None if type(value) is dict else _NOT_OBJECT


def unknown_member(name: str) -> str:
    """The fault of a member outside a closed set."""
    return f".{name} is not allowed" if PLAIN_NAME.match(name) else " has a member that is not allowed"
