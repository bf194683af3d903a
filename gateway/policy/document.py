"""A policy file as plain values that remember where they stood, and the one fault that reports all faults.

YAML is read as nodes, because a loaded mapping has already lost a key that was written twice, and with it perhaps
the rule that somebody relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gateway.configvalues import size_of

_MAX_NESTING = 24
_MAX_VALUES = 50_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``where`` is a dotted path, ``line`` counts from 1 (0: not known), ``expected`` says what was."""

    where: str
    line: int
    expected: str


class PolicyFault(Exception):
    """A policy file is not valid. ``faults`` holds all that was found; the text is one line for each."""

    def __init__(self, source: str, faults: Iterable[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{source}:{fault.line}: {fault.where}: {fault.expected}" for fault in self.faults))


class Document:
    """A parsed policy file: its tree of plain values, the line of each path, and the faults found so far."""

    def __init__(self, text: str, source: str) -> None:
        """Raises ``PolicyFault`` for what is no YAML."""
        self.source = source
        self.faults: list[Fault] = []
        self._lines: dict[str, int] = {}
        self._values = 0
        self._overflowed = False
        self.tree = self._read(text)

    def fault(self, where: str, expected: str) -> None:
        """Note that ``where`` is not as ``expected``; the nearest line known above it is reported."""
        path = where
        while path and path not in self._lines:
            path = path.rpartition(".")[0]
        self.faults.append(Fault(where or "file", self._lines.get(path, 0), expected))

    def finish(self) -> None:
        """Raise ``PolicyFault`` if anything was found."""
        if self.faults:
            raise PolicyFault(self.source, self.faults)

    def mapping(self, value: Any, where: str, known: Iterable[str] | None = None) -> dict[str, Any]:
        """``value`` as a mapping (empty for anything else, which is a fault) without names outside ``known``."""
        if not isinstance(value, dict):
            self.fault(where, "expected a mapping")
            return {}
        if known is None:
            return value
        allowed = tuple(known)
        for name in value:
            if name not in allowed:
                self.fault(_join(where, name), f"not known; expected one of {', '.join(sorted(allowed))}")
        return {name: held for name, held in value.items() if name in allowed}

    def names(self, value: Any, where: str) -> tuple[str, ...]:
        """``value`` as a list of strings."""
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return tuple(value)
        self.fault(where, "expected a list of names")
        return ()

    def _read(self, text: str) -> Any:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            words = f"expected YAML: {problem}" if problem and problem.isprintable() else "expected YAML"
            # Without a tree every setting that has to be there would be missed: that would hide this.
            raise PolicyFault(self.source, [Fault("file", mark.line + 1 if mark else 0, words)]) from None
        return {} if node is None else self._value(node, "", 0)

    def _value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._lines[path] = node.start_mark.line + 1
        # An alias is read again wherever it stands, so that one which holds itself or many others never ends.
        self._values += 1
        if not self._overflowed and (depth > _MAX_NESTING or self._values > _MAX_VALUES):
            self._overflowed = True
            self.fault(path, f"expected at most {_MAX_NESTING} levels and {_MAX_VALUES} values, aliases included")
        if self._overflowed:
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError):
            self.fault(path, "expected a plain value")
            return None
        finally:
            loader.dispose()

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        held: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                self.fault(path, "expected names as keys")
                continue
            where = _join(path, key)
            if key in held:
                self.fault(where, "written twice; expected once")
            held[key] = self._value(value_node, where, depth + 1)
        return held


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``read`` turns a value into the one to use or ``None`` if it is not as ``expected``."""

    read: Callable[[Any], Any]
    expected: str
    default: Any = None
    required: bool = False


def read_options(document: Document, value: Any, where: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """All ``options`` by name, with defaults for those not written; faults go to the document."""
    written = document.mapping(value, where, options)
    result: dict[str, Any] = {}
    for name, option in options.items():
        result[name] = option.default
        if name in written:
            read = option.read(written[name])
            if read is None:
                document.fault(_join(where, name), f"expected {option.expected}")
            else:
                result[name] = read
        elif option.required:
            document.fault(where, f"expected {name}: {option.expected}")
    return result


def whole(low: int, high: int, default: int | None = None) -> Option:
    """A whole number; required unless it has a default."""

    def read(value: Any) -> int | None:
        return value if type(value) is int and low <= value <= high else None

    return Option(read, f"a whole number between {low} and {high}", default, default is None)


def real(default: float | None = None) -> Option:
    """A number; required unless it has a default."""

    def read(value: Any) -> float | None:
        return value if type(value) in (int, float) else None

    return Option(read, "a number", default, default is None)


def size(low: int, high: int, default: int) -> Option:
    """Bytes: a whole number, or text like ``8 MiB``."""

    def read(value: Any) -> int | None:
        octets = size_of(value)
        return octets if octets is not None and low <= octets <= high else None

    return Option(read, f"a size between {low} and {high} bytes, like 8 MiB", default)


def flag(default: bool) -> Option:
    """true or false."""
    return Option(lambda value: value if isinstance(value, bool) else None, "true or false", default)


def word(values: Iterable[str], default: str) -> Option:
    """One of a closed set of words."""
    allowed = tuple(values)
    return Option(lambda value: value if value in allowed else None, f"one of {', '.join(allowed)}", default)


def entries(kinds: tuple[type, ...]) -> Option:
    """A required list, not empty, of values of these types."""

    def read(value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, list) and value and all(type(entry) in kinds for entry in value):
            return tuple(value)
        return None

    return Option(read, "a list of values", required=True)


def strings(*, required: bool = False) -> Option:
    """A list of strings; not empty where it is required."""

    def read(value: Any) -> tuple[str, ...] | None:
        if isinstance(value, list) and all(type(entry) is str for entry in value) and (value or not required):
            return tuple(value)
        return None

    return Option(read, "a list of names", None if required else (), required)


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
