"""How long a request would wait for its first token at one replica, and make others wait. Pure; all times are seconds.

Two sources say how loaded a replica is: the engine, as last scraped, knows about everybody's requests but not about
those since; this instance knows its own, and they are exact. Scraped figures lose weight with their age, by half every
two seconds, so that an old scrape leaves the own counts, and there is no age at which anything jumps (one late scrape
emptied a pool: llm-d-router#2408). Scraped prompts are also taken to be computed meanwhile. What was sent since the
scrape counts in full: it is what keeps requests from all running to the replica that looked idle a moment ago.

Every term only grows with the load that it is made of, and every input is bounded before it counts, so an engine's
gauges, whatever they say, can make its replica look bad or good but never break the choice.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple, Protocol

from gateway.fleet.balance.pace import FIRST_PASSES, PASS_TOKENS

HALF_LIFE = 2.0
"""Seconds in which a scraped figure loses half of its weight."""
FRESH = 0.25
"""Seconds for which a quote holds if nothing happens at its replica."""
AHEAD = 2 * FRESH
"""One that would hold for longer is of a clock that was set back."""

_CROWD = 256.0  # sequences that make a decode step twice as long as one does
_REDO = 0.1  # seconds of work that each preemption makes anew
_PROGRESS = 0.75  # share of the unanswered tokens that may be taken as computed without a first token to prove it

_TOKENS = (0.0, 1e12)
_REQUESTS = (0.0, 1e9)
_SECONDS = (0.0, 1e6)
_RATE = (0.0, 1e6)


class Rates(Protocol):
    """What is needed of a replica's pace. All positive and finite."""

    @property
    def prefill(self) -> float:
        """Prompt tokens a second."""
        ...

    @property
    def step(self) -> float:
        """Seconds of a decode step."""
        ...


class Load(NamedTuple):
    """What a replica has to do. Tokens are prompt tokens that have to be computed: those in its prefix cache are not.

    Scraped ``age`` seconds ago: ``queued`` tokens that wait or are in prefill there (0 if not known), requests
    ``running`` and ``waiting``, ``used`` tokens of the KV cache, which are those that were in use or waited for and
    what has come or gone since, of ``room`` (0: not known), and ``preempting``, preemptions a second lately. Counted by
    instances: ``sent``, tokens sent there since that scrape that have had no first token yet; ``unanswered``, all such
    tokens of this instance, whenever sent, and ``quiet``, seconds since it last gave one of them a first token, or
    since they were sent where that is less; ``others``, all such tokens of other instances; ``in_flight``, everybody's
    requests there. ``slots`` bounds a batch, ``mean_left`` is how long a running request still takes, and ``share``
    from 0 to 1 is what it is to get beside a full replica. ``returning`` are the requests a second that come for what
    its cache holds, each by the share of its prompt that is there; that has room for ``spare`` more tokens, and what it
    drops for others is asked for again with a chance of ``wanted``.
    """

    queued: float = 0.0
    sent: float = 0.0
    others: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    in_flight: int = 0
    slots: int | None = None
    used: float = 0.0
    room: float = 0.0
    preempting: float = 0.0
    age: float = 0.0
    share: float = 1.0
    mean_left: float = 0.0
    unanswered: float = 0.0
    quiet: float = 0.0
    returning: float = 0.0
    spare: float = 0.0
    wanted: float = 0.0


# Of each field of a load, in their order. A share of 0 would cost for ever.
_BOUNDS: tuple[tuple[float, float], ...] = (
    *(_TOKENS, _TOKENS, _TOKENS),
    *(_REQUESTS, _REQUESTS, _REQUESTS, _REQUESTS),
    *(_TOKENS, _TOKENS),
    (0.0, 1e3),
    _SECONDS,
    (0.01, 1.0),
    *(_SECONDS, _TOKENS, _SECONDS, _RATE, _TOKENS, (0.0, 1.0)),
)


class Terms(NamedTuple):
    """What an estimate is made of, in seconds: ``total`` is the sum of the first six, times ``factor``.

    ``queue``: the prompts before it. ``prefill``: its own. ``slot``: until the batch has a place. ``decode``: the steps
    of those running, which prefill shares with them. ``pressure``: until the KV cache has
    room for its prompt, and what preemptions make anew. ``burden``: what it makes others wait. ``factor``: more for a
    replica that is to get less.

    Burden: for ``S`` seconds the replica computes this prompt and nothing that comes after it. Meanwhile ``returning``
    times ``S`` requests come for what its cache holds, each to wait for half of ``S`` on average, and at half load they
    make about as many wait in turn (a busy period is longer by 1 / (1 - load)): ``returning * S * S`` seconds in all.
    Who could go elsewhere as well does not wait, and does not count. Without this all conversations begin where the
    first one did, whose system prompt is there, until that replica is busy enough to cost more than computing it anew.
    To that comes what has to be computed again of what its tokens push out of a full cache.

    Room: a request lacks ``used + uncached - room`` tokens of the cache. Sequences that run end evenly over the time
    that the longest of them takes, which is twice what they have left on average; so a full cache frees
    ``room / (2 mean_left)`` tokens a second, and the wait is what is lacking over that rate. It grows with what this
    request lacks and not with the cache's use alone: a full cache costs one that finds its prompt there nothing.
    """

    queue: float
    prefill: float
    slot: float
    decode: float
    pressure: float
    burden: float
    factor: float
    total: float


class Quoted(NamedTuple):
    """What a quote was worked out from, and when: enough to tell afterwards what made up an estimate."""

    load: Load
    prefill: float
    step: float
    at: float


def estimate(load: Load, uncached: float, pace: Rates, passed: float = 0.0) -> Terms:
    """Seconds until the first token of a request with so many ``uncached`` prompt tokens, and what makes them up.

    ``passed`` seconds ago the load was so; meanwhile the prompts before it have got shorter, as a quote has it.
    """
    ahead, step, passes, slot, pressure, factor, free, hold, back, spare, again = _standing(load, pace)
    uncached = _bounded(uncached, _TOKENS)
    if passed > 0.0:
        ahead = max(ahead - passed / ((1.0 / pace.prefill + step / PASS_TOKENS) * factor), 0.0)
    pressure += max(uncached - free, 0.0) * hold
    queue, prefill = ahead / pace.prefill, uncached / pace.prefill
    decode = step * (passes + (ahead + uncached) / PASS_TOKENS)
    busy = uncached * (1.0 / pace.prefill + step / PASS_TOKENS)
    burden = back * busy * busy + max(uncached - spare, 0.0) * again
    total = (queue + prefill + slot + decode + pressure + burden) * factor
    return Terms(queue, prefill, slot, decode, pressure, burden, factor, total)


class Quote:
    """What a replica would take, ready for many requests: what does not depend on the request is worked out once.

    A choice among hundreds has a quarter of a microsecond for each. So a replica keeps its quote until something
    happens there (``void``) or ``FRESH`` seconds are over; meanwhile the prompts before a request get shorter by a
    second each second. ``until`` is when that is, ``clear`` when they would be gone; ``base`` is the rest of an
    estimate, and ``token`` what each uncached token adds to it; the square of what all of them add is added too,
    ``crowd`` times, for others; and each beyond ``free``, for which the KV cache has no room, adds ``hold``, and each
    beyond ``spare``, for which the prefix cache drops another, ``evict``. ``said`` is what all that comes from, as
    ``Quoted`` names it; it is replaced, never changed, so that whoever keeps it knows how things stood.
    """

    __slots__ = ("base", "clear", "crowd", "evict", "free", "hold", "said", "spare", "token", "until")

    def __init__(self) -> None:
        self.base = self.clear = self.token = self.crowd = self.hold = 0.0
        self.evict = self.spare = 0.0
        self.free = inf
        self.until = -inf
        self.said: tuple[Load, float, float, float] | None = None

    def void(self) -> None:
        """Something changed: a request came, was answered or went, or a scrape came."""
        self.until = -inf

    def holds(self, now: float) -> bool:
        """Whether it is of now. A clock that was set back ends it too."""
        return 0.0 < self.until - now < AHEAD

    def renew(self, load: Load, pace: Rates, now: float) -> None:
        """Work it out anew."""
        ahead, step, passes, slot, pressure, factor, self.free, hold, back, self.spare, again = _standing(load, pace)
        rate = pace.prefill
        self.token = token = (1.0 / rate + step / PASS_TOKENS) * factor
        self.crowd = back / factor  # the factor is in a token's time already, which will be squared
        self.evict = again * factor
        self.clear = now + ahead * token
        self.base = (step * passes + slot + pressure) * factor
        self.hold = hold * factor
        self.until = now + FRESH
        self.said = (load, rate, pace.step, now)

    def seconds(self, uncached: float, now: float) -> float:
        """What ``estimate`` says as its total, when it was just renewed."""
        ahead, lack, pushed = self.clear - now, uncached - self.free, uncached - self.spare
        wait = lack * self.hold if lack > 0.0 else 0.0
        busy = uncached * self.token
        burden = busy * busy * self.crowd
        if pushed > 0.0:
            burden += pushed * self.evict
        return (ahead if ahead > 0.0 else 0.0) + self.base + busy + burden + wait


_Standing = tuple[float, float, float, float, float, float, float, float, float, float, float]


def _standing(load: Load, pace: Rates) -> _Standing:
    """Tokens ahead, seconds of a step, passes before a first token, seconds for slot and preemptions, and the factor;
    tokens of the KV cache that are free (below 0: others wait for some), and seconds for each that is lacking; requests
    a second that come for what is held; tokens that push nothing out, and seconds for each that does.
    """
    (queued, sent, others, running, waiting, mine, slots, used, room, preempting, age, share, left, own, quiet, back,
     spare, wanted) = load  # fmt: skip
    if not (
        # All within ``_BOUNDS``: nearly always, so it has to be quick. Counts are whole, and so are their bounds: it
        # takes three times as long to compare one with a fraction.
        0.0 <= queued <= 1e12
        and 0 <= sent <= 1_000_000_000_000
        and 0 <= others <= 1_000_000_000_000
        and 0.0 <= running <= 1e9
        and 0.0 <= waiting <= 1e9
        and 0 <= mine <= 1_000_000_000
        and (slots is None or 0 <= slots <= 1_000_000_000)
        and 0.0 <= used <= 1e12
        and 0.0 <= room <= 1e12
        and 0.0 <= preempting <= 1e3
        and 0.0 <= age <= 1e6
        and 0.01 <= share <= 1.0
        and 0.0 <= left <= 1e6
        and 0 <= own <= 1_000_000_000_000
        and 0.0 <= quiet <= 1e6
        and 0.0 <= back <= 1e6
        and 0.0 <= spare <= 1e12
        and 0.0 <= wanted <= 1.0
    ):
        return _standing(Load._make(map(_bounded, load, _BOUNDS)), pace)
    weight = 0.5 ** (age / HALF_LIFE)
    rate = pace.prefill

    still = queued - age * rate if queued else 0.0
    scraped = weight * still + sent if still > 0.0 else sent
    known = others
    if own:
        computed, most = quiet * rate, own * _PROGRESS
        known += own - (computed if computed < most else most)
    ahead = scraped if scraped > known else known

    seen = weight * (running + waiting) + (1.0 - weight) * mine
    there = seen if seen > mine else mine
    slot, batch = 0.0, there
    if slots is not None and slots > 0:
        slot = max(there + 1.0 - slots, 0.0) * left / slots
        batch = there if there < slots else slots

    free, hold = inf, 0.0
    if room >= 1.0:
        # It is the wait that loses weight: of a full cache that counted for a little less, all would be gone at once.
        free, hold = room - used, weight * 2.0 * left / room
    pressure = weight * preempting * _REDO
    step = pace.step * (1.0 + batch / _CROWD)
    passes = FIRST_PASSES if batch >= 1.0 else 1.0 + (FIRST_PASSES - 1.0) * batch
    return ahead, step, passes, slot, pressure, 1.0 / share, free, hold, back, spare, wanted / rate


def _bounded(value: float | None, bounds: tuple[float, float]) -> Any:
    """A value that is no number counts as the least, as what is below it."""
    least, most = bounds
    return value if value is None or least <= value <= most else most if value > most else least
