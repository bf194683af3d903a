"""A placed request as the admin API, ``--json`` and the command line have it."""

from __future__ import annotations

from gateway.admin.schemas import AliasName, Closed, Query
from gateway.fleet.balance.explained import SENTENCES, Decision, Weighed, explain

_UNBOUNDED = 1 << 20


class ExplainScope(Query):
    """Which decision: the newest about this alias, or the newest of all."""

    alias: AliasName | None = None


class TermsView(Closed):
    """What an estimate was made of, in seconds: ``total`` is the sum of the six between, times ``factor``."""

    total: float
    queue: float
    prefill: float
    slot: float
    decode: float
    pressure: float
    burden: float
    factor: float


class CandidateView(Closed):
    """A replica that was weighed.

    ``terms`` is ``None`` where the strategy estimates nothing, ``holds`` the bytes of the prompt that it was believed
    to hold, ``in_flight`` this instance's requests there, which ``room`` bounds (``None``: nothing did).
    """

    replica: str
    terms: TermsView | None
    holds: int
    in_flight: int
    room: int | None
    chosen: bool


class DecisionView(Closed):
    """One attempt to place a request, ``at`` in Unix seconds.

    Of a pool of hundreds only some ``candidates`` are weighed; ``pool`` says how many there were. ``why`` is of a
    closed set, ``sentence`` says it. ``replica`` is ``None`` where none had room.
    """

    request_id: str
    at: float
    alias: str
    model: str
    strategy: str
    attempt: int
    prompt_tokens: float
    prompt_bytes: int
    pool: int
    replica: str | None
    why: str
    sentence: str
    candidates: list[CandidateView]


def decision_view(decision: Decision, at: float) -> DecisionView:
    """A decision of ``at`` in Unix seconds as shown."""
    _, why, weighed = explain(decision)
    return DecisionView(
        request_id=decision.request_id,
        at=at,
        alias=decision.alias,
        model=decision.model,
        strategy=decision.strategy,
        attempt=decision.attempt,
        prompt_tokens=decision.tokens,
        prompt_bytes=decision.size,
        pool=decision.pool,
        replica=decision.chosen,
        why=why.value,
        sentence=SENTENCES[why],
        candidates=[_candidate(one) for one in weighed],
    )


def _candidate(one: Weighed) -> CandidateView:
    return CandidateView(
        replica=one.replica,
        terms=None if one.terms is None else TermsView(**one.terms._asdict()),
        holds=one.holds,
        in_flight=one.in_flight,
        room=one.room if one.room < _UNBOUNDED else None,
        chosen=one.chosen,
    )
