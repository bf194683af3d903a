"""From a presented token to its principal: a bounded cache in front of the verification.

It answers as ``KeyRing`` does: ``lookup`` tells what is known, ``fetch`` verifies and may wait for an issuer's keys,
``refresh`` is the step of a control loop. Whatever is wrong with a token, the caller sees ``None``; the reason goes to
a counter.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import NamedTuple

import httpx

from gateway.errors import Unavailable
from gateway.identity.claims import principal_of
from gateway.identity.jwks import DEFAULT_LIMITS, CacheLimits, IssuerKeys
from gateway.identity.jwt import MAX_TOKEN, Reason, TokenFault, Unverified, read, screen, verify
from gateway.identity.keyring import MISS, Miss
from gateway.identity.keysource import source_of
from gateway.model import Principal
from gateway.policy.issuers import IssuerPolicy
from gateway.recent import keep

# Time or the next key set may mend these, so they are found anew each time; neither needs more than a reading.
_PASSING = frozenset({Reason.KEY, Reason.NOT_YET})


@dataclass(frozen=True, slots=True)
class _Issuer:
    policy: IssuerPolicy
    keys: IssuerKeys


class _Known(NamedTuple):
    principal: Principal
    until: float  # beside the principal's own end, because the wall clock may be set back


class _Refused(NamedTuple):
    reason: Reason
    until: float


class TokenRing:
    """Principals by presented token.

    ``client`` asks the issuers; it must take no proxy from the environment and belongs to the caller. ``clock`` gives
    Unix seconds (what tokens speak of), ``monotonic`` seconds that never jump (age of what is cached). ``on_refused``
    is called with the reason of each refusal, out of the values of ``Reason``.

    A token whose issuer's keys are held is verified on the loop: a task and a thread would cost about the 0.1 ms
    (ES384: 0.5) that they would spare it, and one verification at a time is a bound by itself. Waiting for keys is
    bounded by ``max_waiting``, loads by one for each issuer.
    """

    def __init__(
        self,
        issuers: Sequence[IssuerPolicy],
        client: httpx.AsyncClient,
        clock: Callable[[], float] = time.time,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        capacity: int = 50_000,
        negative_capacity: int = 10_000,
        negative_ttl: float = 10.0,
        max_waiting: int = 1_024,
        limits: CacheLimits = DEFAULT_LIMITS,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._monotonic = monotonic
        self._random = random or SystemRandom()
        self._capacity = capacity
        self._negative_capacity = negative_capacity
        self._negative_ttl = negative_ttl
        self._max_waiting = max_waiting
        self._limits = limits
        self._on_refused = on_refused
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, _Refused] = OrderedDict()
        self._issuers: Mapping[str, _Issuer] = {}
        self._waiting = 0
        self.epoch = 0
        self.replace(issuers)

    def lookup(self, presented: str) -> Principal | Miss | None:
        """The principal, ``None`` for what is known to be no good token, or ``MISS`` for what ``fetch`` must judge.

        A token that was good is verified anew here when that is due: it shall not wait behind those who guess from its
        address. No other one is, so that whoever may not ``fetch`` has nothing verified.
        """
        if len(presented) > MAX_TOKEN:
            self._on_refused(Reason.MALFORMED.value)
            return None
        mark = _mark(presented)
        known = self._known.get(mark)
        if known is not None:
            if known.principal.expires_at > self._clock() and known.until > self._monotonic():
                self._known.move_to_end(mark)
                return known.principal
            del self._known[mark]
            return self._judge(presented)
        refused = self._refused.get(mark)
        if refused is not None and refused.until > self._monotonic():
            self._on_refused(refused.reason.value)
            return None
        return MISS

    async def fetch(self, presented: str) -> Principal | None:
        """``lookup``, and a judgement of what is not known, waiting for the issuer's keys where that may help.

        Raises ``Unavailable`` when the issuer's keys were never had (or are too old to be used), or too many wait
        already: a token that cannot be checked is not a wrong token.
        """
        found = self._find(presented)
        if found is MISS:
            await self._wait(presented)
            found = self._find(presented)
        if isinstance(found, Miss):
            self._give_up(presented)
            return None
        return found

    async def refresh(self) -> None:
        """Start what loads are due. Waits for none of them: a slow issuer must not hold up the others."""
        for issuer in self._issuers.values():
            issuer.keys.tend()

    def replace(self, issuers: Sequence[IssuerPolicy]) -> None:
        """Trust these issuers from now on. Keys are kept where they would come from the same place.

        Raises ``ValueError`` when two have the same issuer or name; nothing has changed then.
        """
        if len({policy.issuer for policy in issuers}) < len(issuers) or len({p.name for p in issuers}) < len(issuers):
            raise ValueError("two issuers have the same name or are the same issuer")
        before = {_origin(issuer.policy): issuer.keys for issuer in self._issuers.values()}
        after: dict[str, _Issuer] = {}
        for policy in issuers:
            held = before.pop(_origin(policy), None)
            after[policy.issuer] = _Issuer(policy, held or self._keys_of(policy))
        for gone in before.values():
            gone.close()
        self._issuers = after
        self._forget(lost=True)

    def ages(self) -> dict[str, float]:
        """Issuer name to seconds since its last good key set; infinite before the first."""
        return {issuer.policy.name: issuer.keys.age() for issuer in self._issuers.values()}

    def faults(self) -> dict[str, str]:
        """Issuer name to why its last load failed, out of the values of ``KeySetReason``; only those that did."""
        states = ((issuer.policy.name, issuer.keys.fault) for issuer in self._issuers.values())
        return {name: fault.value for name, fault in states if fault is not None}

    async def close(self) -> None:
        """Trust nobody, and end the loads under way. Idempotent."""
        ending = [issuer.keys for issuer in self._issuers.values()]
        self.replace(())
        for keys in ending:
            await keys.ended()

    def _keys_of(self, policy: IssuerPolicy) -> IssuerKeys:
        source = source_of(policy, self._client)
        return IssuerKeys(source, self._monotonic, self._random, lambda lost: self._forget(lost=lost), self._limits)

    def _forget(self, *, lost: bool) -> None:
        self._refused.clear()
        if lost:
            self.epoch += 1
            self._known.clear()

    def _find(self, presented: str) -> Principal | Miss | None:
        """What is known or can be judged by the keys that are held; ``MISS`` when the issuer's must be waited for."""
        found = self.lookup(presented)
        return self._judge(presented) if found is MISS else found

    def _judge(self, presented: str) -> Principal | Miss | None:
        mark, now = _mark(presented), self._clock()
        try:
            principal = self._verify(presented, now)
        except TokenFault as fault:
            if fault.reason not in _PASSING:
                refused = _Refused(fault.reason, self._monotonic() + self._negative_ttl)
                keep(self._refused, mark, refused, self._negative_capacity)
            self._on_refused(fault.reason.value)
            return None
        # Within the leeway a token is good and past its end already: it is judged each time.
        if isinstance(principal, Principal) and principal.expires_at > now:
            known = _Known(principal, self._monotonic() + principal.expires_at - now)
            keep(self._known, mark, known, self._capacity)
        return principal

    def _verify(self, presented: str, now: float) -> Principal | Miss:
        token, issuer = self._read(presented)
        key = issuer.keys.find(token.kid)
        if isinstance(key, Miss):
            return key
        if key is None:
            raise TokenFault(Reason.KEY)
        return principal_of(verify(token, issuer.policy, {token.kid: key}, now), issuer.policy, now)

    def _read(self, presented: str) -> tuple[Unverified, _Issuer]:
        token = read(presented)
        issuer = self._issuers.get(token.issuer)
        if issuer is None:
            raise TokenFault(Reason.ISSUER)
        screen(token, issuer.policy)
        return token, issuer

    async def _wait(self, presented: str) -> None:
        if self._waiting >= self._max_waiting:
            raise Unavailable("store_unavailable", retry_after=1)
        token, issuer = self._read(presented)
        self._waiting += 1
        try:
            await issuer.keys.ask(token.kid)
        finally:
            self._waiting -= 1

    def _give_up(self, presented: str) -> None:
        """What was waited for did not come. Raises ``Unavailable`` when there is nothing to judge by."""
        _, issuer = self._read(presented)
        if not issuer.keys.usable:
            raise Unavailable("store_unavailable", retry_after=1)
        self._on_refused(Reason.KEY.value)


def _mark(presented: str) -> bytes:
    """What a token is remembered by. All of it: a part may be the same in the tokens of two subjects."""
    return hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()


def _origin(policy: IssuerPolicy) -> tuple[object, ...]:
    """What decides which keys a policy's issuer has."""
    return (policy.issuer, policy.jwks_url, policy.keys_file, frozenset(policy.algorithms))
