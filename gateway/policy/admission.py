"""How many requests engines get at once, and who waits for how long: the section ``admission`` of ``routing.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.model import Priority
from gateway.policy.document import Document, Option, read_options, size, whole
from gateway.policy.reading import number

_AUTO = "auto"
_HOUR = 3600.0
_MOST_IN_FLIGHT = 1_000_000


class PerClass(NamedTuple):
    """A figure for each priority class."""

    interactive: float
    standard: float
    bulk: float

    def of(self, priority: Priority) -> float:
        """The figure of a class."""
        return self[priority.rank]


_WAIT = PerClass(10.0, 30.0, 300.0)
_SHARE = PerClass(1.0, 1.0, 0.7)
_STARVE = PerClass(0.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Admission:
    """What bounds the requests at the engines, and those that wait for a place there.

    ``in_flight`` is how many a replica may have (``None``: learned). Of each alias ``queue`` requests with together
    ``queue_bytes`` of bodies may wait, each for the seconds of its class in ``wait``. A part of both is for each class
    below the highest. ``share`` is how much of all places of a model may be taken, at least, for one more of a class to
    be let in, so that the classes above find some free, as far as they come at all. Once one of a class has waited for
    the seconds of ``starve`` (0: never), its class gets some places whatever waits above it. A stream that waits is
    sent a comment each ``comments`` seconds (0: none).
    """

    in_flight: int | None = None
    queue: int = 1_000
    queue_bytes: int = 256 * 1024 * 1024
    wait: PerClass = _WAIT
    share: PerClass = _SHARE
    starve: PerClass = _STARVE
    comments: float = 0.0


def _read_in_flight(value: Any) -> int | None:
    if value == _AUTO:
        return 0
    return value if type(value) is int and 1 <= value <= _MOST_IN_FLIGHT else None


def _pause(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and (value == 0 or 1 <= value <= _HOUR) else None


_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "in_flight": Option(_read_in_flight, f"{_AUTO} or a whole number between 1 and {_MOST_IN_FLIGHT}", 0),
        "queue": whole(0, 1_000_000, Admission().queue),
        "queue_bytes": size(0, 1 << 40, Admission().queue_bytes),
        "wait": Option(lambda value: value, "seconds for each class", {}),
        "share": Option(lambda value: value, "a share for each class", {}),
        "starve": Option(lambda value: value, "seconds for each class", {}),
        "comments": Option(_pause, f"0 or a number between 1 and {_HOUR:g}", 0.0),
    }
)


def _each(low: float, high: float, default: PerClass, *names: str) -> Mapping[str, Option]:
    return MappingProxyType({name: number(low, high, getattr(default, name)) for name in names or PerClass._fields})


_WAITS = _each(0.1, _HOUR, _WAIT)
_SHARES = _each(0.01, 1, _SHARE)
_STARVES = _each(0, _HOUR, _STARVE, "standard", "bulk")


def read_admission(document: Document, value: Any) -> Admission:
    """The policy that the section says. Faults go to the document.

    A class may not be left more than one above it: then what is held back would be held from the wrong one.
    """
    options = read_options(document, value, "admission", _OPTIONS)
    wait = PerClass(**read_options(document, options["wait"], "admission.wait", _WAITS))
    share = PerClass(**read_options(document, options["share"], "admission.share", _SHARES))
    starve = read_options(document, options["starve"], "admission.starve", _STARVES)
    for above, below in (("interactive", "standard"), ("standard", "bulk")):
        if getattr(share, above) < getattr(share, below):
            document.fault(f"admission.share.{below}", f"expected no more than {above}")
    return Admission(
        in_flight=options["in_flight"] or None,
        queue=options["queue"],
        queue_bytes=options["queue_bytes"],
        wait=wait,
        share=share,
        starve=PerClass(interactive=0.0, **starve),
        comments=options["comments"],
    )
