"""What the gateway must know of a kind of engine, as one value that the engine's own module fills in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.fleet.signals import Signal, Source


@dataclass(frozen=True, slots=True)
class Adapter:
    """A kind of engine: its names for signals, its paths, and how it differs from others.

    ``owners`` is what its model list says in ``owned_by``. ``signals`` stand in the order of its page, which makes
    reading fastest; ``expected`` are those that every version in its normal configuration gives once it has answered
    a request, so that one missing is worth an alarm. ``progress`` are those that change while it computes, and not only
    when a request ends, and that freeze with it; where none of them is there, nothing can be said of progress. Counters
    first, but a gauge may be among them: it is change that counts, not growth.

    ``health_patience``: seconds that an answer of ``health_path`` may take. ``cache_salt``: whether it keeps apart the
    cached prefixes of bodies with different ``cache_salt``. What its error answers say is in ``wire.trouble``.
    """

    name: str
    owners: frozenset[str]
    signals: Mapping[Signal, Source]
    expected: frozenset[Signal]
    progress: tuple[Signal, ...]
    metrics_path: str = "/metrics"
    health_path: str = "/health"
    version_path: str | None = "/version"
    health_patience: float = 3.5
    cache_salt: bool = False
