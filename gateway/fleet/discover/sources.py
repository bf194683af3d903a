"""What a source of engines is, and the simplest of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gateway.model import EngineSpec

MAX_ENGINES = 1_024
"""How many engines one source may name."""


class Origin(StrEnum):
    """The closed set of kinds of sources: a metric label and a column of ``fleet list``."""

    CONFIGURATION = "configuration"
    FILE = "file"
    DNS = "dns"
    KUBERNETES = "kubernetes"
    ORDERS = "orders"

    __hash__ = str.__hash__


class DiscoveryFault(Exception):
    """A source cannot be believed or has not answered. ``reason`` says why in words of ours; it quotes no answer."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Found(NamedTuple):
    """An engine and the kind of source that named it."""

    spec: EngineSpec
    origin: str


class Source(Protocol):
    """Something that names engines.

    ``name`` is its kind, of ``Origin``; ``place`` tells it from others of its kind, in words that may be printed.
    ``believes_empty`` says whether no engines at all is taken at its word: a file is an operator's own act, while DNS
    or an API that suddenly knows of nobody has more likely lost its memory than the fleet all its engines.
    """

    @property
    def name(self) -> str:
        """Its kind."""
        ...

    @property
    def place(self) -> str:
        """Which one of its kind."""
        ...

    @property
    def believes_empty(self) -> bool:
        """Whether no engines at all is taken at its word."""
        ...

    async def look(self) -> Sequence[EngineSpec]:
        """The engines that it names now, each once, in an order that does not change by itself.

        Raises ``DiscoveryFault``. May be cancelled at any moment and asked again.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds. Idempotent."""
        ...


Tell = Callable[[Sequence[EngineSpec]], None]


@runtime_checkable
class Following(Protocol):
    """A source that also tells of changes by itself."""

    def follow(self, tell: Tell) -> Coroutine[Any, Any, None]:
        """Call ``tell`` with all engines after each change, until cancelled."""
        ...


class ConfiguredSource:
    """The engines of the configuration."""

    name = Origin.CONFIGURATION
    place = "engines"
    believes_empty = True

    def __init__(self, engines: Sequence[EngineSpec]) -> None:
        self._engines = tuple(engines)

    async def look(self) -> Sequence[EngineSpec]:
        """They are always the same."""
        return self._engines

    async def close(self) -> None:
        """It holds nothing."""
