"""The oldest engine that a fleet takes, since some attacks have no answer but a newer engine.

What an engine says of itself is another process's word: it is compared, and only figures of it are ever shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.policy.document import Document, Option, read_options, word

_VERSION = re.compile(r"(\d{1,6}(?:\.\d{1,6}){1,3})(?!\d)", re.ASCII)
_KNOWN = ("vllm",)  # engines that can be asked for their version


@dataclass(frozen=True, slots=True)
class Floor:
    """The oldest version, and whether an older engine is refused or only reported."""

    minimum: str
    refuse: bool


class Verdict(NamedTuple):
    """Whether an engine may serve, and what operators should know of it (empty: nothing)."""

    refused: bool = False
    reason: str = ""


TAKEN = Verdict()


def judge_engine(floors: Mapping[str, Floor], engine: str | None, version: str | None) -> Verdict:
    """Whether ``engine`` (as its model list names the owner) of ``version`` may serve.

    An engine without a floor may. A version that is not known is reported and not refused: it may be a build of one's
    own. Development and post releases count as the release whose numbers they carry.
    """
    floor = floors.get(engine) if engine is not None else None
    if floor is None:
        return TAKEN
    found = _VERSION.match(version) if version is not None else None
    if found is None:
        return Verdict(False, f"{engine} does not say its version; {floor.minimum} or newer is expected")
    if _numbers(found[1]) >= _numbers(floor.minimum):
        return TAKEN
    return Verdict(floor.refuse, f"{engine} {found[1]} is older than {floor.minimum}, the oldest that policy takes")


def read_floors(document: Document, value: Any) -> Mapping[str, Floor]:
    """The section ``engines``. What it does not mention has the default: an older vLLM is refused."""
    written = document.mapping(value, "engines", _KNOWN)
    floors: dict[str, Floor] = {}
    for engine in _KNOWN:
        options = read_options(document, written.get(engine, {}), f"engines.{engine}", _OPTIONS)
        floors[engine] = Floor(options["minimum"], options["below"] == "refuse")
    return MappingProxyType(floors)


def _read_version(value: Any) -> str | None:
    """Only text: 0.20 without quotes is the number 0.2."""
    return value if type(value) is str and _VERSION.fullmatch(value) else None


_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "minimum": Option(_read_version, 'a version in quotes, like "0.23.1"', "0.23.1"),
        "below": word(("refuse", "warn"), "refuse"),
    }
)


def _numbers(version: str) -> tuple[int, ...]:
    """The figures, with as many zeros as make 0.23 the same as 0.23.0."""
    numbers = tuple(int(part) for part in version.split("."))
    return numbers + (0,) * (4 - len(numbers))
