"""What becomes of a request that has to wait for a place at an engine: a closed set, and a metric label. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from gateway.errors import GatewayError, Refusal, Unavailable

_STOPPED_FOR = 5  # seconds until another instance, or the next process, may serve


class Outcome(StrEnum):
    """How a wait ended.

    | outcome    | what happened                                                             |
    |------------|---------------------------------------------------------------------------|
    | dispatched | it got a place                                                            |
    | full       | as many wait as may, and nobody has to give way to it                     |
    | evicted    | it waited, and gave way to a class or alias that has less than its part,  |
    |            | to a higher class, or to a tenant with less                               |
    | expired    | it has waited for as long as its class may                                |
    | hopeless   | it would have: what is before it takes longer                             |
    | no_replica | the same, and no replica of its model is ready                            |
    | gone       | its client left                                                           |
    | stopped    | this instance stops                                                       |
    """

    DISPATCHED = "dispatched"
    FULL = "full"
    EVICTED = "evicted"
    EXPIRED = "expired"
    HOPELESS = "hopeless"
    NO_REPLICA = "no_replica"
    GONE = "gone"
    STOPPED = "stopped"

    __hash__ = str.__hash__


def failure(outcome: Outcome, retry_after: int) -> GatewayError:
    """The error of a request that got no place; ``retry_after`` are whole seconds, by how fast places become free.

    When a replica will be ready is for the fleet to say, so that one without has no time.
    """
    return _FAILURES[outcome](retry_after)


_FAILURES: Mapping[Outcome, Callable[[int], GatewayError]] = MappingProxyType(
    {
        Outcome.FULL: lambda seconds: Refusal("queue_full", retry_after=seconds),
        Outcome.EVICTED: lambda seconds: Refusal("queue_full", retry_after=seconds),
        Outcome.EXPIRED: lambda seconds: Unavailable("queue_timeout", retry_after=seconds),
        Outcome.HOPELESS: lambda seconds: Unavailable("queue_timeout", retry_after=seconds),
        Outcome.NO_REPLICA: lambda _: Unavailable("no_ready_replica"),
        Outcome.STOPPED: lambda _: Unavailable("draining", retry_after=_STOPPED_FOR, close=True),
    }
)
