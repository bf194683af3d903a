"""A YAML file as values that know which line they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it was given: ``file:line``, a variable or a flag.

    ``value`` is a scalar, a ``list`` of ``Given`` or a ``dict`` from text to ``Given``. ``base`` is the folder that
    relative paths start from.
    """

    value: Any
    where: str
    base: Path = Path()


class YamlFault(Exception):
    """The file cannot be read as YAML. ``faults`` has one line for each reason."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def read_yaml(path: Path) -> Given:
    """The one document of a file; an empty file is an empty mapping. Raises ``YamlFault``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlFault([f"{path}: cannot be read: {error.strerror}"]) from None
    return parse_yaml(data, path)


def parse_yaml(data: bytes, path: Path) -> Given:
    """The one document in the bytes that ``path`` held. Raises ``YamlFault``."""
    if len(data) > MAX_BYTES:
        raise YamlFault([f"{path}: expected at most {MAX_BYTES} bytes"])
    try:
        return _document(data.decode(), path)
    except UnicodeDecodeError:
        raise YamlFault([f"{path}: expected UTF-8 text"]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise YamlFault([f"{path}{line}: expected YAML: {error.problem}"]) from None
    except yaml.YAMLError:
        raise YamlFault([f"{path}: expected YAML: a character that YAML does not allow"]) from None


def _document(text: str, path: Path) -> Given:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, path)
        given = Given({}, f"{path}:1", path.parent) if node is None else reader.given(node)
    finally:
        loader.dispose()
    if reader.faults:
        raise YamlFault(reader.faults)
    return given


class _Reader:
    """Walks one document. Every node is visited once: a shared node (an alias) is a fault, so nothing can multiply."""

    def __init__(self, loader: yaml.SafeLoader, path: Path) -> None:
        self.faults: list[str] = []
        self._loader = loader
        self._path = path
        self._seen: set[int] = set()

    def given(self, node: yaml.Node) -> Given:
        where = f"{self._path}:{node.start_mark.line + 1}"
        if id(node) in self._seen:
            self.faults.append(f"{where}: expected no YAML aliases")
            return Given(None, where, self._path.parent)
        self._seen.add(id(node))
        return Given(self._value(node, where), where, self._path.parent)

    def _value(self, node: yaml.Node, where: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.given(item) for item in node.value]
        try:
            return self._loader.construct_object(node)
        except ValueError:  # such as a date in month 13
            self.faults.append(f"{where}: expected a plain value")
            return None

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, Given]]:
        names: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in names:
                self.faults.append(f"{self._path}:{key.start_mark.line + 1}: expected {name} only once")
            names.add(name)
            yield name, self.given(value)
