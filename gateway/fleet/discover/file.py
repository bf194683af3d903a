"""Engines listed in a file, which is read again at each look and believed again when its bytes have changed.

The file holds a YAML list as ``engines`` of ``gateway.yaml`` does, under the same rules: http on loopback only, https
only to hosts that are listed in ``remote_engines``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

from gateway import configvalues
from gateway.configfile import Given, YamlFault, parse_yaml
from gateway.configvalues import engine_fault
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault, Origin
from gateway.model import EngineSpec

_MAX_FILE = 256 * 1024
_SETTLE = 0.25
_LOOKS = 4
_MAX_REPORTED = 5
_MAX_LINE = 300


class FileSource:
    """The engines listed in a file; ``remote`` is ``remote_engines``."""

    name = Origin.FILE
    believes_empty = True

    def __init__(
        self,
        path: Path,
        remote: Collection[str],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.place = str(path)
        self._path = path
        self._remote = remote
        self._sleep = sleep
        self._data: bytes | None = None
        self._judged: Sequence[EngineSpec] | DiscoveryFault = ()

    async def look(self) -> Sequence[EngineSpec]:
        """The engines that the file lists now. Raises ``DiscoveryFault``."""
        data = await self._settled()
        if data != self._data:
            self._judged = await asyncio.to_thread(judged, data, Path(self._path.name), self._remote)
            self._data = data
        if isinstance(self._judged, DiscoveryFault):
            raise DiscoveryFault(self._judged.reason)
        return self._judged

    async def _settled(self) -> bytes:
        """The bytes that were known, or that two looks in a row agree on: half a file may be a valid, shorter list."""
        data = await asyncio.to_thread(_read, self._path)
        if data == self._data:
            return data
        for _ in range(_LOOKS):
            await self._sleep(_SETTLE)
            again = await asyncio.to_thread(_read, self._path)
            if again == data:
                return data
            data = again
        raise DiscoveryFault("does not stop changing")

    async def close(self) -> None:
        """It holds nothing open."""


def _read(path: Path) -> bytes:
    try:
        if not path.is_file() and path.exists():  # a pipe would never end
            raise DiscoveryFault("expected a plain file")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        raise DiscoveryFault("there is no such file") from None
    except OSError:
        raise DiscoveryFault("cannot be read") from None
    if len(data) > _MAX_FILE:
        raise DiscoveryFault(f"expected at most {_MAX_FILE} bytes")
    return data


def judged(data: bytes, path: Path, remote: Collection[str]) -> Sequence[EngineSpec] | DiscoveryFault:
    """The engines that the bytes of a file list, or what is wrong with them. ``path`` is what faults call the file."""
    faults: list[str] = []
    try:
        given = parse_yaml(data, path)
    except YamlFault as fault:
        return _fault(fault.faults)
    except RecursionError:  # brackets without end: the YAML reader calls itself for each
        return _fault([f"{path}: expected fewer levels"])
    if not isinstance(given.value, list):  # an empty file is half of a write more often than a wish
        return _fault([f"{given.where}: expected a list of engines; [] for none"])
    if len(given.value) > MAX_ENGINES:
        return _fault([f"{given.where}: expected at most {MAX_ENGINES} engines"])

    def report(at: Given, expected: str) -> None:
        faults.append(f"{at.where}: expected {expected}")

    found = configvalues.engines(given, report)
    seen = Counter(spec.url for _, spec in found)
    for at, spec in found:
        if seen[spec.url] > 1:
            report(at, "each URL only once")
        expected = engine_fault(spec, remote)
        if expected is not None:
            report(at, expected)
    return _fault(faults) if faults else tuple(spec for _, spec in found)


def _fault(faults: Sequence[str]) -> DiscoveryFault:
    """A few of the faults in one line; what is not printable in a file stays there."""
    lines = ["".join(c if c.isprintable() else "?" for c in fault)[:_MAX_LINE] for fault in faults[:_MAX_REPORTED]]
    more = len(faults) - len(lines)
    return DiscoveryFault("; ".join(lines + ([f"and {more} more"] if more else [])))
