"""What one replica has to do, by its newest scrape and by what instances have sent there since. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gateway.fleet.balance.estimate import HALF_LIFE, Load, Quote
from gateway.fleet.balance.pace import Pace, Prior
from gateway.fleet.balance.reuse import Reuse
from gateway.fleet.signals import Reading, Signal

_MEMORY = 0.1  # weight of the newest request in what is usual of one
_loading = tuple.__new__  # a named tuple's own constructor takes twice as long
_LATELY = 5.0  # seconds over which it is counted how many requests come


class Workload:
    """Counts of one replica, and its pace. ``now`` is seconds of a monotonic clock.

    Whoever sends a request says so with ``began`` and ends it with exactly one of ``answered`` (its first token came)
    and ``dropped``, and says with ``left`` when it is gone; ``epoch`` as of ``began`` tells which scrape knows of it,
    and which process. Tokens are counted whole: sums of fractions do not come back to 0, and what is left of them would
    pass for a request that waits.

    A request that is not ``streamed`` shows no first token: when it ends it has long been computed. So it counts only
    until the next scrape, which tells better; else prompts would seem to wait for as long as their answers take, and
    the pace to be that of computing them all at once.

    ``others_in_flight`` are the requests that other instances have there, as far as they have told.
    """

    __slots__ = (
        "_bound", "_bound_at", "_each", "_elsewhere_then", "_first_epoch", "_in_use", "_mean_left", "_mean_prompt",
        "_moved_at", "_oldest", "_others", "_others_then", "_preempting", "_prior", "_quiet_from", "_read_at",
        "_reading", "_resident", "_resident_then", "_reuse", "_room", "_running", "_sent", "_spare", "_unanswered",
        "_unshown", "_waiting", "epoch", "others_in_flight", "pace", "quote",
    )  # fmt: skip

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self.quote = Quote()
        self.epoch = 0
        self.reset()

    def reset(self) -> None:
        """Another process answers there: nothing of the one before holds."""
        self.pace = Pace(self._prior)
        self._reading: Reading | None = None
        self._read_at = self._moved_at = -math.inf
        self._read({})
        self._preempting = 0.0
        self._unanswered = self._unshown = self._sent = 0
        self._resident = self._resident_then = self._elsewhere_then = 0
        self._others = self._others_then = self.others_in_flight = 0
        self._quiet_from = -math.inf
        self._mean_left = self._mean_prompt = 0.0
        self._bound, self._bound_at = 0.0, -math.inf
        self._spare = self._oldest = 0.0
        self._reuse: Reuse | None = None
        self.epoch += 1
        self._first_epoch = self.epoch
        self.quote.void()

    def suppose(self, prior: Prior) -> None:
        """What is usual in its pool, for what it has not shown itself; another process there begins with it."""
        self._prior = prior
        self.pace.suppose(prior)

    def scraped(self, reading: Reading, now: float) -> None:
        """A scrape came. Those of an idle engine all say the same, and are told with the next one that differs."""
        before, seconds = self._reading, now - self._moved_at
        if before is not reading and (before is None or before.values != reading.values):
            if before is not None and seconds > 0:
                self.pace.note_scrape(before, reading, seconds)
            self._preempting = self._preemptions(before, reading, now - self._read_at)
            self._moved_at = now
        else:
            self._preempting = 0.0
        self._reading, self._read_at = reading, now
        self._read(reading.values)
        self._sent = self._unshown = 0
        self._others_then, self._elsewhere_then = self._others, self.others_in_flight
        self._resident_then = self._resident
        self.epoch += 1
        self.quote.void()

    def _read(self, values: Mapping[Signal, float]) -> None:
        """What a load takes of a scrape: it is made often."""
        self._running, self._waiting = values.get(Signal.RUNNING, 0.0), values.get(Signal.WAITING, 0.0)
        self._room = values.get(Signal.KV_TOKENS, 0.0)
        self._in_use = min(values.get(Signal.KV_USE, 0.0), 1.0) * self._room
        self._each = self._in_use / self._running if self._running >= 1.0 else 0.0

    def _preemptions(self, before: Reading | None, reading: Reading, seconds: float) -> float:
        """How many there were in each second since the scrape before."""
        old = None if before is None else before.values.get(Signal.PREEMPTIONS)
        new = reading.values.get(Signal.PREEMPTIONS)
        return max(new - old, 0.0) / seconds if old is not None and new is not None and seconds > 0 else 0.0

    def began(self, uncached: float, now: float, *, streamed: bool = True, bound: float = 0.0) -> None:
        """A request with so many uncached prompt tokens was sent. ``bound`` is the share, from 0 to 1, of its prompt
        that is held there: what keeps it from going elsewhere."""
        tokens = round(uncached)
        self._sent += tokens
        self._resident += tokens
        if streamed:
            if not self._unanswered:
                self._quiet_from = now
            self._unanswered += tokens
        else:
            self._unshown += tokens
        if bound > 0.0:
            self._bound = bound + self._bound * _faded(now - self._bound_at)
            self._bound_at = now
        self._mean_prompt += (uncached - self._mean_prompt) * (_MEMORY if self._mean_prompt else 1.0)
        self.quote.void()

    def _returning(self, now: float) -> float:
        """Requests a second that come for what its cache holds: of this instance, or of all by the engine's counters.

        Those say nothing new while they stand still, so they fade as well.
        """
        counted, bound = self.pace.returning, 0.0
        if counted > 0.0:
            counted *= _faded(now - self._moved_at)
        if self._bound > 0.0:
            bound = self._bound * _faded(now - self._bound_at) / _LATELY
        return counted if counted > bound else bound

    def answered(self, uncached: float, epoch: int, now: float) -> None:
        """Its first token came."""
        if epoch >= self._first_epoch:
            self._quiet_from = now
        self.dropped(uncached, epoch)

    def dropped(self, uncached: float, epoch: int, *, streamed: bool = True) -> None:
        """It ended, or will never have a first token. One that was sent to the process before counts no more."""
        if epoch < self._first_epoch:
            return
        tokens = round(uncached)
        if streamed:
            self._unanswered -= tokens
        if epoch == self.epoch:
            self._sent -= tokens
            if not streamed:
                self._unshown -= tokens
        self.quote.void()

    def left(self, uncached: float, epoch: int) -> None:
        """It has ended, in whatever way: its part of the KV cache is free."""
        if epoch >= self._first_epoch:
            self._resident -= round(uncached)
            self.quote.void()

    def keeps(self, spare: float, oldest: float, reuse: Reuse) -> None:
        """Its prefix cache has room for so many ``spare`` tokens; what it drops for more was used last at ``oldest``,
        and is asked for again as ``reuse`` says. A request that begins afterwards ends the quote."""
        self._spare, self._oldest, self._reuse = spare, oldest, reuse

    def ended(self, seconds: float) -> None:
        """A request ended so many seconds after its first token. One that runs has half of that left, on average."""
        self._mean_left += (seconds / 2 - self._mean_left) * (_MEMORY if self._mean_left else 1.0)

    @property
    def pending(self) -> int:
        """Prompt tokens of this instance that wait for a first token there, or do as far as can be told."""
        return self._unanswered + self._unshown

    def heard_of_others(self, in_flight: int, tokens: int) -> None:
        """What other instances have there now: requests, and prompt tokens as ``pending`` counts them."""
        if in_flight != self.others_in_flight or tokens != self._others:
            self.others_in_flight, self._others = in_flight, tokens
            self.quote.void()

    @property
    def mean_left(self) -> float:
        """Seconds that a running stream has left on average; 0 while none has ended."""
        return self._mean_left

    def ahead(self, in_flight: int, now: float) -> float | None:
        """Prompt tokens that a request sent now would wait for, as the quote has it.

        ``None`` where nobody asked for a quote, and where the batch is full: what a request that waits for a slot
        waits for cannot be said in tokens.
        """
        quote, slots = self.quote, self.pace.slots
        if slots is not None and max(in_flight + self.others_in_flight, self._seen(now)) >= slots:
            return None
        return max(quote.clear - now, 0.0) / quote.token if quote.holds(now) else None

    def _seen(self, now: float) -> float:
        """Requests that the engine had, everybody's, by a scrape that is not old."""
        if self._reading is None or now - self._read_at > HALF_LIFE:
            return 0.0
        return self._running + self._waiting

    def load(self, in_flight: int, share: float, now: float) -> Load:
        """All of it, for an estimate; ``in_flight`` are this instance's requests.

        The scrape counted the requests of others too: of theirs, only what has come on top of that was sent since.
        """
        more = self._others - self._others_then
        waiting, own, elsewhere = self._waiting, self._unanswered, self.others_in_flight
        # Tokens of the KV cache that are taken or waited for. To those that were in use at the scrape come the ones for
        # which the engine's queue waited, and what has come or gone since: of this instance's requests the prompts that
        # had to be computed, and for each one of others, as for each that waited, what a sequence that ran had. Where
        # they share what they have, that is the less.
        strangers = waiting + elsewhere - self._elsewhere_then
        used = self._in_use + strangers * (self._each or self._mean_prompt) + self._resident - self._resident_then
        # In the order of its fields: a load is made for each quote, and names take longer than the values.
        told = (
            waiting * self._mean_prompt,
            self._sent + more if more > 0 else self._sent,
            self._others,
            self._running,
            waiting,
            in_flight + elsewhere,
            self.pace.slots,
            used if used > 0.0 else 0.0,
            self._room,
            self._preempting,
            now - self._read_at,
            share,
            self._mean_left,
            own,
            now - self._quiet_from if own else 0.0,
            self._returning(now),
            self._spare,
            0.0 if self._reuse is None else self._reuse.wanted(now - self._oldest),
        )
        return _loading(Load, told)


def _faded(seconds: float) -> float:
    """What is left, so many seconds later, of what counts for ``_LATELY``."""
    return math.exp(-seconds / _LATELY) if seconds > 0.0 else 1.0
