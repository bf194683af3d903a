"""The policy in force: read from a folder, and replaced whole or not at all when the files there change.

Files are read whole at each look and compared by their bytes. They are a few kilobytes, and times and sizes cannot
tell an editor that keeps them, or two writes within one tick of a file system's clock, from no change.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from gateway.policy.access import Access, parse_access
from gateway.policy.document import Fault, PolicyFault
from gateway.policy.guards import Guards, parse_guards
from gateway.policy.routing import Routing, parse_routing

_MAX_BYTES = 1 << 20
_SETTLE = 0.25
_LOOKS = 8
_MAX_REPORTED = 50
_PARSERS: Mapping[str, Callable[[str, str], Any]] = MappingProxyType(
    {"guards": parse_guards, "access": parse_access, "routing": parse_routing}
)
"""How each part of a policy is read; its file has its name."""

_OPTIONAL = frozenset({"routing"})  # parts that have sound defaults: a missing file is an empty one

Found: TypeAlias = Mapping[str, bytes | Fault]
"""What a look found in the file of each part; a fault where it could not be read."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All policy files at one moment. Replaced whole; a request keeps the one it began with."""

    guards: Guards
    access: Access
    routing: Routing = field(default_factory=Routing)


class FolderFault(PolicyFault):
    """Policy files are not valid. ``faults`` are those of all files; the text names the file in each line."""

    def __init__(self, folder: Path, found: Iterable[PolicyFault]) -> None:
        each = tuple(found)
        super().__init__(str(folder), [fault for one in each for fault in one.faults])
        self.args = ("\n".join(map(str, each)),)


def load_policy(folder: Path) -> Policy:
    """The policy of a folder. Raises ``PolicyFault`` with every fault of every file, missing ones included."""
    return _judge(folder, _look(folder))


def open_policies(folder: Path, report: Callable[[str], None]) -> Policies:
    """The policy of a folder, ready to be looked at again. Raises ``PolicyFault``: nothing starts without a policy."""
    found = _look(folder)
    return Policies(folder, found, _judge(folder, found), report)


class Policies:
    """The policy in force and its successors.

    ``policy`` is the current one and ``epoch`` moves when it is replaced. While the files are not valid the last valid
    policy stands, ``valid`` is false, and ``faults`` has counted each content that was refused. ``report`` gets the
    text of the faults, which quotes no value.
    """

    def __init__(
        self,
        folder: Path,
        found: Found,
        policy: Policy,
        report: Callable[[str], None],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.policy = policy
        self.epoch = 0
        self.faults = 0
        self.valid = True
        self._folder = folder
        self._applied = self._judged = found
        self._report = report
        self._sleep = sleep
        self._listeners: list[Callable[[Policy], None]] = []
        self._turn = asyncio.Lock()

    def on_change(self, listener: Callable[[Policy], None]) -> None:
        """Call ``listener`` with each new policy, on the event loop, once it is in force. It may not raise."""
        self._listeners.append(listener)

    async def reload(self, *, force: bool = False) -> bool:
        """Look at the files and put what they say in force; whether the policy was replaced.

        A content that was refused before is left alone, unless ``force`` (somebody asks) has it judged and reported
        once more.
        """
        async with self._turn:
            found = await self._settled(force=force)
            if found is None:
                return False
            if found == self._applied:
                self._judged, self.valid = found, True
                return False
            try:
                policy = await asyncio.to_thread(_judge, self._folder, found, self._applied, self.policy)
            except PolicyFault as fault:
                self._judged, self.valid = found, False
                self.faults += 1
                self._report(_shortened(str(fault)))
                return False
            self._applied = self._judged = found
            self.policy, self.valid = policy, True
            self.epoch += 1
            for listener in self._listeners:
                listener(policy)
            return True

    async def _settled(self, *, force: bool) -> Found | None:
        """What two looks in a row agree on, or ``None``: it is known, or still changing.

        Half a file may well be valid, and say less than the whole: a tenant's narrowing may stand in the other half.
        The same wait bridges the moment in which an editor or a symlink swap has taken one file away.
        """
        found = await asyncio.to_thread(_look, self._folder)
        if found == self._judged and not force:
            return None
        for _ in range(_LOOKS):
            await self._sleep(_SETTLE)
            again = await asyncio.to_thread(_look, self._folder)
            if again == found:
                return found if force or found != self._judged else None
            found = again
        return None


def _look(folder: Path) -> Found:
    return {part: _read(_file(folder, part), optional=part in _OPTIONAL) for part in _PARSERS}


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.yaml"


def _read(path: Path, *, optional: bool) -> bytes | Fault:
    try:
        if not path.is_file() and path.exists():  # a pipe would never end
            return Fault("file", 0, "expected a plain file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return b"" if optional else Fault("file", 0, _missing(path))
    except OSError:
        return Fault("file", 0, "expected a file that can be read")
    return data if len(data) <= _MAX_BYTES else Fault("file", 0, f"expected at most {_MAX_BYTES} bytes")


def _missing(path: Path) -> str:
    shipped = shlex.quote(str(resources.files("policies").joinpath(path.name)))
    older = "; a folder made for a version without access control has none" if path.stem == "access" else ""
    return f"expected this file{older}; start from the shipped one: cp {shipped} {shlex.quote(str(path.parent))}"


def _judge(folder: Path, found: Found, applied: Found | None = None, policy: Policy | None = None) -> Policy:
    """The policy that was found. A part whose file is as it was ``applied`` is taken from ``policy``."""
    parsed: dict[str, Any] = {}
    faults: list[PolicyFault] = []
    for part, parse in _PARSERS.items():
        if applied is not None and applied[part] == found[part]:
            parsed[part] = getattr(policy, part)
            continue
        try:
            parsed[part] = _parse(parse, found[part], str(_file(folder, part)))
        except PolicyFault as fault:
            faults.append(fault)
    if faults:
        raise FolderFault(folder, faults)
    return Policy(**parsed)


def _parse(parse: Callable[[str, str], Any], held: bytes | Fault, source: str) -> Any:
    if isinstance(held, Fault):
        raise PolicyFault(source, [held])
    try:
        return parse(held.decode("utf-8"), source)
    except UnicodeDecodeError:
        raise PolicyFault(source, [Fault("file", 0, "expected UTF-8")]) from None
    except RecursionError:  # brackets without end: the YAML reader calls itself for each
        raise PolicyFault(source, [Fault("file", 0, "expected fewer levels")]) from None


def _shortened(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _MAX_REPORTED
    return "\n".join(lines[:_MAX_REPORTED] + ([f"and {more} more"] if more > 0 else []))
