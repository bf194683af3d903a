"""What an engine's metrics say, in one vocabulary for all engines. Pure.

Each engine has its own names for the same thing, and renames them between versions; a reader that only knows one name
reads nothing and calls it 0. So a table per engine says under which names a signal may stand, and a signal that should
be there and is not counts as missing, never as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, nan
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gateway.wire.exposition import Exposition, label, number, value
from gateway.wire.layout import Layout, Lines

_UNSET = "None"  # what vLLM writes in a label for what is not set


class Signal(StrEnum):
    """What may be known of an engine. A closed set: also the values of the metric label ``signal``.

    Counters grow from the engine's start on. Sums are in seconds.
    """

    RUNNING = "running"  # requests in batches
    WAITING = "waiting"  # requests in the engine's queue
    KV_USE = "kv_use"  # share of the KV cache in use, 0 to 1
    PROMPT_TOKENS = "prompt_tokens"  # counter, cached ones included
    GENERATION_TOKENS = "generation_tokens"  # counter
    STEPS = "steps"  # counter of whatever proves that the engine computes
    PREEMPTIONS = "preemptions"  # counter
    CACHE_QUERIES = "cache_queries"  # counter of prompt tokens looked for in the prefix cache
    CACHE_HITS = "cache_hits"  # counter of those found
    TTFT_SUM = "ttft_sum"
    TTFT_COUNT = "ttft_count"
    PREFILL_SUM = "prefill_sum"
    PREFILL_COUNT = "prefill_count"
    QUEUE_SUM = "queue_sum"
    QUEUE_COUNT = "queue_count"
    ITL_SUM = "itl_sum"
    ITL_COUNT = "itl_count"
    SLEEPING = "sleeping"  # 1 while the engine has given its weights away
    STARTED_AT = "started_at"  # Unix seconds of the process's start
    KV_TOKENS = "kv_tokens"  # capacity of the KV cache, all ranks together
    BLOCK_SIZE = "block_size"  # tokens in a block of the prefix cache


@dataclass(frozen=True, slots=True)
class Source:
    """Where a signal stands.

    ``names`` are those of one thing in different versions, newest first: the first that is present is read, whole.
    Its series (one for each data-parallel rank, or kind of request) are folded into one number, times ``scale``, which
    may not be more than ``most``. ``where`` keeps a series only if each label named there has one of the given values;
    a series without that label is kept, since older versions lack some. With ``label``, the number is read from that
    label instead of the value, and multiplied by the one in the label ``times``; where no series has the label, or only
    the ``None`` of what is not set, nothing is present. Where nothing is present, ``otherwise``.
    """

    names: tuple[str, ...]
    fold: Callable[[Iterable[float]], float] = sum
    label: str | None = None
    times: str | None = None
    where: tuple[tuple[str, frozenset[str]], ...] = ()
    scale: float = 1.0
    most: float = inf
    otherwise: Source | None = None


class Reading(NamedTuple):
    """What one page said.

    ``values`` are finite and not negative. ``missing`` are the signals that the engine should have given and did not,
    or gave as NaN, infinite, negative or as something else that is no such number.
    """

    values: Mapping[Signal, float]
    missing: frozenset[Signal]


class SignalTable(Protocol):
    """What is needed of an engine's adapter."""

    @property
    def signals(self) -> Mapping[Signal, Source]:
        """Where each signal stands, in the order of the engine's page."""

    @property
    def expected(self) -> frozenset[Signal]:
        """Those that every engine of this kind gives."""


class Memory:
    """What the pages of one engine have in common, so that the next is read faster. It changes no reading."""

    def __init__(self) -> None:
        self._table: SignalTable | None = None
        self._readers: Mapping[str, Sequence[Signal]] = {}
        self._layout = Layout()
        self._values: dict[Signal, float] = {}
        self._last: Reading | None = None

    def read(self, table: SignalTable, text: bytes) -> Reading:
        """The next page; the same reading as before where all that is wanted of it has stayed as it was."""
        if table is not self._table:
            self._table, self._readers, self._layout, self._last = table, _readers(table), Layout(), None
        page, reading = self._layout.page(text), self._last
        changed = self._layout.changed
        if reading is None or changed is None:
            self._values = _read_some(table, page, table.signals, {})
        elif changed:
            signals = {signal for name in changed for signal in self._readers[name]}
            self._values = _read_some(table, page, signals, self._values)
        else:
            return reading
        self._last = _reading(table, self._values)
        return self._last


def read_signals(adapter: SignalTable, text: bytes, memory: Memory | None = None) -> Reading:
    """Read a page of metrics. Never raises, whatever the text. ``memory`` is of earlier pages of the same engine."""
    if memory is not None:
        return memory.read(adapter, text)
    return _reading(adapter, _read_some(adapter, Exposition(text), adapter.signals, {}))


def _readers(table: SignalTable) -> Mapping[str, Sequence[Signal]]:
    """Which signals are read from the lines of a name, or may be."""
    readers: dict[str, list[Signal]] = {}
    for signal, first in table.signals.items():
        source: Source | None = first
        while source is not None:
            for name in source.names:
                readers.setdefault(name, []).append(signal)
            source = source.otherwise
    return readers


def _reading(table: SignalTable, values: dict[Signal, float]) -> Reading:
    return Reading(MappingProxyType(values), table.expected.difference(values))


def _read_some(
    table: SignalTable, page: Lines, signals: Iterable[Signal], before: dict[Signal, float]
) -> dict[Signal, float]:
    """The values of the page before, with those of some signals read from this one."""
    values = before.copy()
    for signal in signals:
        source = table.signals[signal]
        found = _read(page, source)
        if found is not None and 0.0 <= found <= source.most and found < inf:
            values[signal] = found
        else:
            values.pop(signal, None)
    return values


def _read(page: Lines, source: Source) -> float | None:
    """One number, NaN if any series of it is garbage: a sum without one rank would be a lie. ``None`` if absent."""
    for name in source.names:
        lines = page.lines(name)
        if lines and (found := _folded(lines, source)) is not None:
            return found
    return None if source.otherwise is None else _read(page, source.otherwise)


def _folded(lines: list[bytes], source: Source) -> float | None:
    numbers = _chosen(lines, source) if source.where or source.label else [value(line) for line in lines]
    if not numbers:
        return None
    whole = len(numbers) == 1 or all(0.0 <= each < inf for each in numbers)
    return source.fold(numbers) * source.scale if whole else nan


def _chosen(lines: list[bytes], source: Source) -> list[float]:
    kept = [line for line in lines if _kept(line, source)]
    if source.label is None:
        return [value(line) for line in kept]
    texts = [label(line, source.label) for line in kept]
    if all(text is None or text == _UNSET for text in texts):
        return []
    return [_in_label(text, line, source.times) for text, line in zip(texts, kept, strict=True)]


def _kept(line: bytes, source: Source) -> bool:
    for name, wanted in source.where:
        found = label(line, name)
        if found is not None and found not in wanted:
            return False
    return True


def _in_label(text: str | None, line: bytes, times: str | None) -> float:
    found = number((text or "").encode())
    return found if times is None else found * number((label(line, times) or "").encode())
