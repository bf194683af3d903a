"""Limits that one process keeps for itself, exactly: what is admitted is counted before anything else can run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from gateway.limits import gcra
from gateway.limits.interfaces import LimitReached, Standing
from gateway.limits.verdict import refusal, standing
from gateway.model import NO_LIMITS, Budget, Limits

_CANDIDATES = 16


class _Account:
    """What one holder has used: the TAT of each rate (see ``gcra``) and its requests in flight.

    A rate without a limit has a spacing of 0: whatever is taken of it, it stays whole.
    """

    __slots__ = (
        "day",
        "day_reach",
        "day_spacing",
        "in_flight",
        "limits",
        "places",
        "request_reach",
        "request_spacing",
        "requests",
        "token_reach",
        "token_spacing",
        "tokens",
    )

    def __init__(self) -> None:
        self.requests = self.tokens = self.day = 0.0
        self.in_flight = 0
        self.adopt(NO_LIMITS)

    def adopt(self, limits: Limits) -> None:
        """Take other figures. What was used stays used, as time until whole; a limit that is gone is forgotten."""
        self.limits = limits
        self.request_spacing, self.request_reach = _rate(limits.requests_per_minute, gcra.MINUTE)
        self.token_spacing, self.token_reach = _rate(limits.tokens_per_minute, gcra.MINUTE)
        self.day_spacing, self.day_reach = _rate(limits.tokens_per_day, gcra.DAY)
        self.places = sys.maxsize if limits.concurrency is None else limits.concurrency
        self.requests = self.requests if self.request_spacing else 0.0
        self.tokens = self.tokens if self.token_spacing else 0.0
        self.day = self.day if self.day_spacing else 0.0

    def whole_at(self) -> float:
        """When nothing of its rates is used any more."""
        return max(self.requests, self.tokens, self.day)

    def in_debt(self, now: float) -> bool:
        return self.tokens - now > self.token_reach or self.day - now > self.day_reach


def _rate(figure: int | None, period: float) -> tuple[float, float]:
    spaced = 0.0 if figure is None else gcra.spacing(figure, period)
    return spaced, gcra.reach(spaced, period)


class LocalLease:
    """A ``Lease`` of a ``LocalLimiter``."""

    __slots__ = ("_accounts", "_budgets", "_monotonic", "_open", "_taken")

    def __init__(
        self, monotonic: Callable[[], float], budgets: Sequence[Budget], accounts: list[_Account], taken: int
    ) -> None:
        self._monotonic = monotonic
        self._budgets = budgets
        self._accounts = accounts
        self._taken = taken
        self._open = True

    @property
    def standing(self) -> Standing | None:
        """What is left at the time of asking."""
        return standing(self._budgets, self._accounts, self._monotonic())

    def settle(self, tokens: int) -> None:
        """See ``Lease``."""
        taken = self._taken
        if taken < 0:
            return
        self._taken = -1
        more = gcra.excess(tokens, taken)
        if more <= 0:  # the usual case: ``gcra.correct`` without the clock, which giving back does not ask for
            for account in self._accounts:
                account.tokens += more * account.token_spacing
                account.day += more * account.day_spacing
            return
        now = self._monotonic()
        for account in self._accounts:
            account.tokens = gcra.correct(account.tokens, now, more, account.token_spacing)
            account.day = gcra.correct(account.day, now, more, account.day_spacing)

    def close(self) -> None:
        """See ``Lease``."""
        if self._open:
            self._open = False
            for account in self._accounts:
                account.in_flight -= 1


class LocalLimiter:
    """A ``Limiter`` that never waits. Budgets of one call have different holders.

    Memory: after each admission or refusal there are at most ``max_holders`` accounts, or as many as hold a lease if
    that is more (each is a request in flight, which the server bounds). Over the bound an account without a lease is
    forgotten: one that is whole, which changes nothing; else, of ``_CANDIDATES`` that are looked at, the one that is
    soonest whole, one in debt last. That it holds: both end with ``_trim``, which forgets accounts until the bound is
    kept or every one left holds a lease.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, max_holders: int = 100_000) -> None:
        self._monotonic = monotonic
        self._max_holders = max_holders
        self._accounts: dict[str, _Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, budgets: Sequence[Budget], tokens: int) -> LocalLease:
        """See ``Limiter``. Raises ``LimitReached``."""
        now = self._monotonic()
        accounts = []
        marks = []
        # Two passes, so that nothing is taken from any before all admit. ``gcra.take`` is written out: six calls of it
        # would cost as much as all the rest.
        for holder, limits in budgets:
            account = self._accounts.get(holder)
            if account is None or account.limits is not limits:
                account = self._adopt(holder, limits)
            requests, minute, day = account.requests, account.tokens, account.day
            requests = (requests if requests > now else now) + account.request_spacing
            minute = (minute if minute > now else now) + tokens * account.token_spacing
            day = (day if day > now else now) + tokens * account.day_spacing
            if (
                requests - now > account.request_reach
                or minute - now > account.token_reach
                or day - now > account.day_reach
                or account.in_flight >= account.places
            ):
                raise self._refusal(budgets, tokens, now)
            accounts.append(account)
            marks.append((account, requests, minute, day))
        for account, requests, minute, day in marks:
            account.requests = requests
            account.tokens = minute
            account.day = day
            account.in_flight += 1
        if len(self._accounts) > self._max_holders:
            self._trim(now)
        return LocalLease(self._monotonic, budgets, accounts, tokens)

    def spent(self, budgets: Sequence[Budget]) -> LimitReached | None:
        """See ``Limiter``."""
        now = self._monotonic()
        for holder, limits in budgets:
            account = self._accounts.get(holder)
            if account is None or account.limits is not limits:
                continue  # it has taken nothing yet, or under other figures
            if account.requests + account.request_spacing - now > account.request_reach:
                return self._refusal(budgets, 0, now)
        return None

    def _adopt(self, holder: str, limits: Limits) -> _Account:
        """The holder's account, under these limits."""
        account = self._accounts.get(holder)
        if account is None:
            account = self._accounts[holder] = _Account()
        if account.limits is not limits:
            if account.limits != limits:
                account.adopt(limits)
            account.limits = limits  # the very object: the next call compares by identity
        return account

    def _refusal(self, budgets: Sequence[Budget], tokens: int, now: float) -> LimitReached:
        accounts = [self._adopt(holder, limits) for holder, limits in budgets]
        self._trim(now)
        return refusal(budgets, accounts, now, tokens)

    def _trim(self, now: float) -> None:
        while len(self._accounts) > self._max_holders:
            holder = self._least_missed(now)
            if holder is None:
                return
            del self._accounts[holder]

    def _least_missed(self, now: float) -> str | None:
        """The holder to forget, ``None`` when all hold leases. What was looked at and stays goes to the back."""
        kept: list[tuple[bool, float, str]] = []
        for _ in range(len(self._accounts)):
            holder = next(iter(self._accounts))
            account = self._accounts.pop(holder)
            self._accounts[holder] = account
            if account.in_flight:
                continue
            whole_at = account.whole_at()
            if whole_at <= now:
                return holder
            kept.append((account.in_debt(now), whole_at, holder))
            if len(kept) == _CANDIDATES:
                break
        return min(kept)[2] if kept else None
