"""Which instances a store remembers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.model import Instance

MEMORY = 3_600.0
"""Seconds for which an instance is remembered behind the newest heartbeat of all: clocks of stores are not asked."""


def remembered(found: Iterable[Instance]) -> tuple[Instance, ...]:
    """Those heard of within ``MEMORY`` seconds of the newest heartbeat, the oldest start first."""
    known = sorted(found, key=lambda instance: (instance.started_at, instance.id))
    newest = max((instance.seen_at for instance in known), default=0.0)
    return tuple(instance for instance in known if instance.seen_at >= newest - MEMORY)
