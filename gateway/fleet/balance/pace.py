"""How fast a replica is, learned while it works: nothing about an engine is configured. Pure.

What tells most is how long this instance's own requests wait for their first token. The engine's own histograms tell
less: prompts that are computed together are each counted with the time of all, and one scrape sees the end of a request
and another the beginning. So they teach the prefill rate only to the degree that own requests have not.

Rates are learned as logarithms, so that half and twice as fast are equally far away, and each observation is clipped
before it counts: a request that waited for something else moves a rate by a few percent. What is known fades while
nothing is heard, towards what is usual in the pool; else a replica that was slow once, and has got no request for it
since, would be thought slow for ever (dynamo#7836: two of five workers starved).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from gateway.fleet.signals import Reading, Signal

FIRST_PASSES = 1.5
"""Passes through the model before a first token, beside the prefill: half of the one that is under way, and its own."""
PASS_TOKENS = 8192
"""Prompt tokens that one pass computes: vLLM's own default for a server. A longer prompt is computed in several."""

_WELL_KNOWN = 10.0  # observations after which the prior counts no more; also the memory of what is learned
_COUNTED = 1.0  # the same for bytes a token, which an engine counts and does not measure
_CLIP = 0.3  # how far from what is believed an observation counts, as a logarithm, once much is known
_DOUBT = 3.0  # how much further while little is
_FORGET = 60.0  # seconds of silence that halve what is known
_LOST_AT_ONCE = 60.0  # seconds that one silence counts at most: a clock that jumps may not cost all that is known
_FLOW = 5.0  # seconds in which what is known of the flow of prompts loses half of its weight
_LEAST_STEP = 0.1  # share of the time between tokens that is decoding, however much prefill there was between them
_SETTLED = 3  # scrapes in a row that found the same full batch
_PRESSED = 0.9  # KV use from which a batch may be full for want of memory

_SHOWN = 0.2  # from how much a pace tells of its pool

_PREFILL = (1.0, 1e7)
_STEP = (1e-5, 10.0)
_BYTES = (0.5, 16.0)
_MOST_SLOTS = 1 << 20


class Prior(NamedTuple):
    """What a replica of which nothing is known is taken to be.

    ``prefill`` in tokens a second, ``step`` in seconds for a decode step, ``slots`` the sequences of a full batch where
    something has to be assumed (an estimate assumes none).
    """

    prefill: float = 8000.0
    step: float = 0.02
    slots: int = 256
    bytes_per_token: float = 4.0


class _Learned:
    """A positive number that is observed with errors and may drift. ``weight`` says how much has been observed.

    From a weight of ``enough`` on the prior counts no more.
    """

    __slots__ = ("_enough", "_high", "_low", "_mean", "_prior", "value", "weight")

    def __init__(self, prior: float, bounds: tuple[float, float], enough: float = _WELL_KNOWN) -> None:
        self._low, self._high = bounds
        self._enough = enough
        self._mean = self._prior = math.log(self._bounded(prior))
        self.weight = 0.0
        self.value = self._bounded(prior)

    def note(self, value: float, weight: float) -> None:
        """Take in an observation of a weight up to 1. What is not a positive number is no observation."""
        if not (0.0 < value < math.inf and weight > 0.0):
            return
        believed = math.log(self.value)
        reach = _CLIP + _DOUBT / (1.0 + self.weight)
        seen = min(max(math.log(self._bounded(value)), believed - reach), believed + reach)
        weight = min(weight, 1.0)
        self._mean += (seen - self._mean) * weight / (self.weight + weight)
        self.weight = min(self.weight + weight, _WELL_KNOWN)
        self._settle()

    def suppose(self, prior: float) -> None:
        """Another prior, for as much as has not been observed."""
        self._prior = math.log(self._bounded(prior))
        self._settle()

    def fade(self, by: float) -> None:
        """Keep that share of what is known."""
        self.weight *= by
        self._settle()

    def _settle(self) -> None:
        prior = max(1.0 - self.weight / self._enough, 0.0)
        belief = (prior * self._prior + self.weight * self._mean) / (prior + self.weight)
        self.value = self._bounded(math.exp(belief))

    def _bounded(self, value: float) -> float:
        """What is no number counts as the least."""
        return min(value, self._high) if value > self._low else self._low


class Pace:
    """How fast one replica is. Another process at the same place needs a new one.

    ``prefill`` is in prompt tokens a second, ``step`` in seconds for a pass that only decodes; both are positive and
    finite whatever was noted. ``slots`` is how many sequences its batch holds, ``None`` while it was never seen full.
    ``grown``: it was seen to hold more than was thought, and has not been seen full since: it may hold more yet.
    ``returning`` is how many requests a second found their prompts there lately, each by the share that it found, when
    its counters moved last.
    """

    __slots__ = (
        "_counted", "_flow", "_heard", "_most", "_prefill", "_settled", "_step", "grown", "prefill", "returning",
        "slots", "step",
    )  # fmt: skip

    def __init__(self, prior: Prior) -> None:
        self._prefill = _Learned(prior.prefill, _PREFILL)
        self._step = _Learned(prior.step, _STEP)
        self._heard: float | None = None  # when an own request last told something
        self.returning = 0.0
        self._flow = 0.0  # prompt tokens that it computes a second, lately
        self._counted = 0.0  # seconds since then that scrapes have let fade
        self._most = 0.0  # the most sequences that were seen running
        self._settled = 0  # how many scrapes in a row have seen them, with others waiting
        self.slots: int | None = None
        self.grown = False
        self._settle()

    @property
    def known(self) -> float:
        """How much has been observed of the prefill rate, from 0 to 1."""
        return self._prefill.weight / _WELL_KNOWN

    def note_first_token(self, *, uncached: float, ahead: float, seconds: float, now: float) -> None:
        """An own request got its first token, ``seconds`` after it was sent.

        ``uncached`` are the prompt tokens that had to be computed for it and ``ahead`` those of others that had to be
        before, as the estimate had it when the request was sent. One that was sent to a full batch waited for a slot:
        it says nothing of the rate, and is not for here. ``now`` is in seconds of a monotonic clock.
        """
        tokens = uncached + ahead
        if not (0.0 < seconds < math.inf and uncached >= 0.0 and ahead >= 0.0 and tokens < math.inf):
            return
        self._hear(now)
        if seconds < self._step.value:  # there is no first token without a pass
            self._step.note(seconds, 0.5)
        passes = self._step.value * (FIRST_PASSES + tokens / PASS_TOKENS)
        self._note_prefill(tokens, max(seconds - passes, seconds / 4), 1.0)
        self._settle()

    def note_scrape(self, before: Reading, after: Reading, seconds: float) -> None:
        """The engine's counters moved from one reading to the other in so many seconds.

        Counters that went back are of another process, and those that stood still say nothing.
        """
        if not 0.0 < seconds < math.inf:
            return
        self._fade(seconds)
        self._counted += seconds
        grown = _Growth(before.values, after.values)
        computed = max(grown.of(Signal.PROMPT_TOKENS) - grown.of(Signal.CACHE_HITS), 0.0)
        newer = 1.0 - 0.5 ** (seconds / _FLOW)
        self._flow += (computed / seconds - self._flow) * newer
        asked = grown.of(Signal.CACHE_QUERIES)
        found = min(grown.of(Signal.CACHE_HITS) / asked, 1.0) if asked > 0.0 else 0.0
        self.returning += (grown.of(Signal.TTFT_COUNT) * found / seconds - self.returning) * newer
        busy = self._prefill_seconds(grown, seconds)
        if busy > 0.0:
            self._note_prefill(computed, busy, 0.5 * (1.0 - self.known))
        gaps = grown.of(Signal.ITL_COUNT)
        if gaps > 0.0:
            # The time between tokens is that of the passes, and what is not prefill of it is decoding. The less that
            # is, the less can be seen of it.
            decoding = max(1.0 - self._flow / self._prefill.value, _LEAST_STEP)
            self._step.note(grown.of(Signal.ITL_SUM) / gaps * decoding, decoding * decoding * gaps / (gaps + 16.0))
        if grown.of(Signal.TTFT_COUNT) >= 1.0:
            self._note_batch(after.values)
        self._settle()

    def suppose(self, prior: Prior) -> None:
        """What is usual in its pool, for as much as this replica has not shown itself."""
        self._prefill.suppose(prior.prefill)
        self._step.suppose(prior.step)
        self._settle()

    def _settle(self) -> None:
        self.prefill, self.step = self._prefill.value, self._step.value

    def _note_prefill(self, tokens: float, seconds: float, weight: float) -> None:
        """``seconds`` of prefill for so many tokens. A few tokens drown in whatever else takes time."""
        if tokens > 0.0:
            work = tokens / self._prefill.value
            share = work / (work + FIRST_PASSES * self._step.value)
            self._prefill.note(tokens / seconds, weight * share * share)

    def _prefill_seconds(self, grown: _Growth, seconds: float) -> float:
        """For how long the engine computed prompts; 0 if it does not tell.

        Each prompt is counted with its whole time, also where some were computed together, so the sum may be too long,
        but all of them took no longer than there was time, and no less than one takes. The times are told when a
        request ends and the tokens when its prefill does: the mean of the ones stands for that of the others.
        """
        begun, ended = grown.of(Signal.TTFT_COUNT), grown.of(Signal.PREFILL_COUNT)
        if ended > 0.0:
            mean = grown.of(Signal.PREFILL_SUM) / ended
            begun = begun or ended
            busy = max(min(mean * begun, seconds), mean)
        else:  # the next best, with the waiting in it
            busy = min(grown.of(Signal.TTFT_SUM), seconds)
        return max(busy - begun * self._step.value, busy / 2)

    def _note_batch(self, values: Mapping[Signal, float]) -> None:
        """A batch is full when it holds the most that was ever seen, again and again, while others wait and some enter.

        Others may also wait for a long prefill, during which nobody enters, or for memory; then it holds any number.
        """
        running = values.get(Signal.RUNNING, 0.0)
        if not 1.0 <= running <= _MOST_SLOTS:
            self._settled = 0
            return
        if running > self._most:
            self._most, self._settled = running, 0
            if self.slots is not None:
                self.slots = int(running)  # it holds more than was thought; to forget all would lift every limit
                self.grown = True
        full = values.get(Signal.WAITING, 0.0) >= 1.0 and values.get(Signal.KV_USE, 0.0) < _PRESSED
        if running < self._most or not full:
            self._settled = 0
            return
        self._settled += 1
        if self._settled >= _SETTLED:
            self.slots = int(running)
            self.grown = False

    def _hear(self, now: float) -> None:
        if self._heard is not None:
            self._fade(now - self._heard - self._counted)
        self._heard, self._counted = now, 0.0

    def _fade(self, seconds: float) -> None:
        if seconds > 0.0:
            by = 0.5 ** (min(seconds, _LOST_AT_ONCE) / _FORGET)
            self._prefill.fade(by)
            self._step.fade(by)


class BytesPerToken:
    """How many bytes of a prompt make a token of one model, from what engines said they counted.

    ``value`` is between 0.5 and 16. A template adds some tokens to each prompt, so a long one tells more.
    """

    __slots__ = ("_learned", "value")

    def __init__(self, prior: float = Prior().bytes_per_token) -> None:
        self._learned = _Learned(prior, _BYTES, _COUNTED)
        self.value = self._learned.value

    @property
    def known(self) -> bool:
        """Whether engines have told enough of it: what is counted in tokens before is of the prior's making."""
        return self._learned.weight >= _COUNTED

    def note(self, size: float, tokens: float) -> None:
        """A prompt of ``size`` bytes was so many tokens."""
        if 0.0 < size < math.inf and 0.0 < tokens < math.inf:
            self._learned.note(size / tokens, tokens / (tokens + 256.0))
            self.value = self._learned.value


def usual(paces: Iterable[Pace], prior: Prior) -> Prior:
    """What is to be supposed of the replicas of a pool: the middle of those that have shown themselves."""
    shown = [pace for pace in paces if pace.known >= _SHOWN]
    if not shown:
        return prior
    return prior._replace(
        prefill=median(pace.prefill for pace in shown),
        step=median(pace.step for pace in shown),
    )


class _Growth:
    """How much counters grew between two readings; 0 for what is missing, stood still or went back."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: Mapping[Signal, float], after: Mapping[Signal, float]) -> None:
        self._before, self._after = before, after

    def of(self, signal: Signal) -> float:
        """Growth of one counter."""
        before, after = self._before.get(signal), self._after.get(signal)
        if before is None or after is None:
            return 0.0
        grown = after - before
        return grown if 0.0 <= grown < math.inf else 0.0
