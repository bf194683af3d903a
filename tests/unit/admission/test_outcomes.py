"""How a wait may end, and what its client is told."""

from __future__ import annotations

import pytest

from gateway.admission.outcomes import Outcome, failure
from gateway.errors import Refusal, Unavailable

TOLD = {
    Outcome.FULL: (Refusal, "queue_full", 429, 7),
    Outcome.EVICTED: (Refusal, "queue_full", 429, 7),
    Outcome.EXPIRED: (Unavailable, "queue_timeout", 503, 7),
    Outcome.HOPELESS: (Unavailable, "queue_timeout", 503, 7),
    Outcome.NO_REPLICA: (Unavailable, "no_ready_replica", 503, None),
    Outcome.STOPPED: (Unavailable, "draining", 503, 5),
}


@pytest.mark.parametrize("outcome", TOLD)
def test_who_gets_no_place_is_told_why_and_when_to_come_back(outcome):
    error = failure(outcome, 7)
    assert (type(error), error.spec.code, error.spec.status, error.retry_after) == TOLD[outcome]
    assert error.close is (outcome is Outcome.STOPPED)
    assert error.retry


def test_all_others_need_no_answer():
    assert set(Outcome) - set(TOLD) == {Outcome.DISPATCHED, Outcome.GONE}


def test_an_outcome_is_a_label():
    assert {str(outcome) for outcome in Outcome} == {
        *("dispatched", "full", "evicted", "expired", "hopeless", "no_replica", "gone", "stopped")
    }
    assert {Outcome.FULL: 1}["full"] == 1
