"""When a replica is warm, hung, failing or well again, and when a request is tried twice, as ``routing.yaml`` says.

Frozen values with defaults, so that a folder may say only what it wants otherwise. All times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.policy.document import Document, Option, read_options, size, whole, word
from gateway.policy.reading import number

_HOUR = 3600.0
_DAY = 86_400.0
_MOST_SHAPES = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A warmup request: ``prompt`` tokens in, ``output`` tokens out.

    ``context`` gives the prompt's length as a share of the longest that the engine takes, in place of ``prompt``.
    """

    prompt: int = 0
    context: float = 0.0
    output: int = 16


@dataclass(frozen=True, slots=True)
class Warmup:
    """What a replica answers before it gets traffic, and how its traffic then grows.

    A round is ``concurrency`` copies of each shape at once. It has settled when over ``rounds`` rounds and the one
    before them the first-token time of each shape stays within ``ratio``. After ``limit`` seconds without that,
    ``unsettled`` says whether it serves nevertheless or is held back. Over ``slow_start`` seconds the
    share of a replica that has become ready grows to its full size. Without shapes nothing is warmed up.
    """

    shapes: tuple[Shape, ...] = (
        Shape(prompt=32, output=16),
        Shape(prompt=512, output=32),
        Shape(context=0.9, output=4),
    )
    concurrency: int = 2
    ratio: float = 1.3
    rounds: int = 2
    limit: float = 300.0
    unsettled: str = "serve"
    slow_start: float = 20.0


@dataclass(frozen=True, slots=True)
class Health:
    """When a replica counts as lost or hung.

    ``misses`` probes in a row without an answer, none of them refused, make one lost that shows no progress. Work that
    is pending while nothing moves for ``hang`` makes it hung, ``blind_hang`` where no counter can be read. One that
    idles gets a canary inference each ``canary_interval`` (0: none) and has ``canary_limit`` to answer it.
    """

    misses: int = 3
    hang: float = 30.0
    blind_hang: float = 120.0
    canary_interval: float = 30.0
    canary_limit: float = 15.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """When errors eject a replica, for how long, and how it comes back.

    ``consecutive`` failures in a row do, or a share of ``error_rate`` of those in ``window``, if there were at least
    ``requests``. It is out for ``eject`` the first time and twice as long each time after, up to ``eject_most``. At
    most ``share`` of a pool is out for errors at once (0: none ever). ``probation`` answers in a row make it ready.
    """

    consecutive: int = 5
    error_rate: float = 0.5
    requests: int = 20
    window: float = 30.0
    eject: float = 5.0
    eject_most: float = 300.0
    share: float = 0.5
    probation: int = 3


@dataclass(frozen=True, slots=True)
class Retries:
    """The budget for trying another replica: ``share`` of the active requests, never fewer than ``at_least`` at once.

    It is for failures after which the first engine may still be at work; what one has let go of is not counted. A
    request of ``long_prompt`` bytes or more is not tried again after a timeout: its prefill is paid already.
    """

    share: float = 0.2
    at_least: int = 3
    long_prompt: int = 16 * 1024


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """How replicas are looked after."""

    warmup: Warmup = Warmup()
    health: Health = Health()
    breaker: Breaker = Breaker()
    retries: Retries = Retries()


def _pause(default: float) -> Option:
    """Seconds between two acts; 0 for never. A shorter pause than half a second would be a load of its own."""

    def read(value: Any) -> float | None:
        return float(value) if type(value) in (int, float) and (value == 0 or 0.5 <= value <= _DAY) else None

    return Option(read, f"0 or a number between 0.5 and {_DAY:g}", default)


def _read_list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) and len(value) <= _MOST_SHAPES else None


_SHAPE: Mapping[str, Option] = MappingProxyType(
    {"prompt": whole(1, 10_000_000, 0), "context": number(0.01, 1, 0.0), "output": whole(1, 4096, 16)}
)
_WARMUP: Mapping[str, Option] = MappingProxyType(
    {
        "shapes": Option(_read_list, f"a list of at most {_MOST_SHAPES} shapes, like {{prompt: 512, output: 32}}"),
        "concurrency": whole(1, 256, 2),
        "ratio": number(1.05, 100, 1.3),
        "rounds": whole(1, 20, 2),
        "limit": number(1, 2 * _HOUR, 300.0),
        "unsettled": word(("serve", "hold"), "serve"),
        "slow_start": number(0, _HOUR, 20.0),
    }
)
_HEALTH: Mapping[str, Option] = MappingProxyType(
    {
        "misses": whole(1, 100, 3),
        "hang": number(0.5, _HOUR, 30.0),
        "blind_hang": number(0.5, _DAY, 120.0),
        "canary_interval": _pause(30.0),
        "canary_limit": number(0.1, _HOUR, 15.0),
    }
)
_BREAKER: Mapping[str, Option] = MappingProxyType(
    {
        "consecutive": whole(1, 100_000, 5),
        "error_rate": number(0.01, 1, 0.5),
        "requests": whole(1, 1_000_000, 20),
        "window": number(1, _HOUR, 30.0),
        "eject": number(0.1, _DAY, 5.0),
        "eject_most": number(0.1, _DAY, 300.0),
        "share": number(0, 1, 0.5),
        "probation": whole(1, 1000, 3),
    }
)
_RETRIES: Mapping[str, Option] = MappingProxyType(
    {
        "share": number(0, 1, 0.2),
        "at_least": whole(0, 10_000, 3),
        "long_prompt": size(0, 1 << 30, 16 * 1024),
    }
)

FLEET_SECTIONS = ("warmup", "health", "breaker", "retries")
"""The sections of ``routing.yaml`` that ``read_fleet`` reads."""


def read_fleet(document: Document, top: Mapping[str, Any]) -> FleetPolicy:
    """The policy that the sections of a document say; what they leave out has the default. Faults go to the document.

    A shorter time may not be written as the longer one of its pair: that would be the one which counts.
    """
    health = Health(**read_options(document, top.get("health", {}), "health", _HEALTH))
    if health.blind_hang < health.hang:
        document.fault("health.blind_hang", "expected no less than hang")
    breaker = Breaker(**read_options(document, top.get("breaker", {}), "breaker", _BREAKER))
    if breaker.eject_most < breaker.eject:
        document.fault("breaker.eject_most", "expected no less than eject")
    return FleetPolicy(
        warmup=_warmup(document, top.get("warmup", {})),
        health=health,
        breaker=breaker,
        retries=Retries(**read_options(document, top.get("retries", {}), "retries", _RETRIES)),
    )


def _warmup(document: Document, value: Any) -> Warmup:
    options = read_options(document, value, "warmup", _WARMUP)
    written = options.pop("shapes")
    if written is None:
        return Warmup(**options)
    shapes = tuple(_shape(document, held, f"warmup.shapes[{index}]") for index, held in enumerate(written))
    return Warmup(shapes=shapes, **options)


def _shape(document: Document, value: Any, where: str) -> Shape:
    shape = Shape(**read_options(document, value, where, _SHAPE))
    if isinstance(value, dict) and ("prompt" in value) == ("context" in value):
        document.fault(where, "expected either prompt or context")
    return shape
