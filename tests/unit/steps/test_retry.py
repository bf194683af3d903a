"""Whether a failed attempt is worth another replica, and whether there is budget for one."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.errors import CODES, EngineDead, EngineFailure, EngineRefused, EngineTimeout
from gateway.policy.fleet import Retries
from gateway.steps.retry import RetryBudget, is_charged, worth_another
from gateway.wire.reply import refusal

POLICY = Retries(share=0.2, at_least=3, long_prompt=1000)
YES, NO, SHORT = (True, True), (False, False), (True, False)

# Every way an engine can fail: whether a short prompt and a long one are worth another replica.
VERDICTS = {
    "EngineUnreachable": YES,
    "EngineBusy": YES,
    "EngineReset": YES,
    "EngineProtocolError": NO,
    "EngineTimeout": SHORT,
    "EngineHung": YES,
    "EngineRefused": NO,
    "EngineClosing": YES,
    "EngineDead": NO,
}
# What an engine is certainly not at work on any more: another attempt is no load on top of it.
LET_GO = {"EngineUnreachable", "EngineReset", "EngineClosing", "EngineDead", "EngineHung"}
REFUSALS = [
    (400, b"", NO),
    (400, b"maximum context length", NO),
    (401, b"", NO),
    (403, b"", NO),
    (404, b"", NO),
    (404, b'{"error":{"type":"NotFoundError"}}', YES),  # the model is not there, but may be elsewhere
    (413, b"", NO),
    (418, b"", NO),
    (422, b"", NO),
    (429, b"", YES),  # the gateway's own matter: that engine is full
    (500, b"", YES),
    (503, b"", YES),
]


def judge(error, **options):
    return tuple(worth_another(error, size, POLICY, **options) for size in (999, 1000))


def _kinds(parent):
    return {each for child in parent.__subclasses__() for each in (child, *_kinds(child))}


def test_every_engine_failure_has_a_verdict():
    kinds = {kind for kind in _kinds(EngineFailure) if kind.__module__ == errors.__name__}
    assert {kind.__name__: judge(kind()) for kind in kinds} == {
        kind.__name__: VERDICTS[kind.__name__] for kind in kinds
    }


def test_only_what_an_engine_may_still_be_at_is_charged():
    kinds = {kind for kind in _kinds(EngineFailure) if kind.__module__ == errors.__name__}
    assert {kind.__name__ for kind in kinds if not is_charged(kind())} == LET_GO


@pytest.mark.parametrize(("status", "body", "verdict"), REFUSALS)
def test_what_an_engine_refuses_is_tried_again_only_where_it_is_the_engines_fault(status, body, verdict):
    assert judge(refusal(status, body)) == verdict


@pytest.mark.parametrize("code", [code for code, row in CODES.items() if not row.retry])
def test_what_is_the_requests_fault_is_never_tried_again(code):
    assert judge(EngineRefused(code, elsewhere=True)) == NO


def test_one_that_was_not_alone_when_an_engine_died_is_tried_elsewhere():
    error = EngineDead()
    error.absolve()
    assert judge(error) == YES


def test_a_failure_of_which_the_client_is_told_not_to_retry_is_not_retried_for_it():
    error = EngineFailure(elsewhere=True)
    assert judge(error) == YES
    error.retry = False
    assert judge(error) == NO


def test_nothing_is_tried_again_while_no_replica_has_room():
    for error in (errors.EngineUnreachable(), errors.EngineReset(), EngineTimeout(), refusal(503)):
        assert judge(error, saturated=True) == NO


def test_with_no_allowance_for_prompts_no_timeout_is_tried_again():
    assert not worth_another(EngineTimeout(), 0, Retries(long_prompt=0))


def fill(budget, policy=POLICY):
    """How many retries a budget grants now."""
    granted = 0
    while budget.take(policy):
        granted += 1
    return granted


@pytest.mark.parametrize(("active", "granted"), [(0, 3), (1, 3), (15, 3), (19, 3), (20, 4), (100, 20)])
def test_a_share_of_the_active_requests_may_be_retries_and_a_few_always(active, granted):
    budget = RetryBudget()
    for _ in range(active):
        budget.enter()
    assert fill(budget) == granted


def test_without_a_share_and_a_minimum_nothing_is_granted():
    budget = RetryBudget()
    for _ in range(1000):
        budget.enter()
    assert fill(budget, Retries(share=0, at_least=0)) == 0
    assert fill(budget, Retries(share=0.5, at_least=0)) == 500


def test_what_is_given_back_can_be_taken_again():
    budget = RetryBudget()
    assert fill(budget) == 3
    budget.give_back()
    assert fill(budget) == 1


def test_fewer_active_requests_grant_fewer_retries():
    budget = RetryBudget()
    for _ in range(50):
        budget.enter()
    assert fill(budget) == 10
    for _ in range(25):
        budget.leave()
    for _ in range(5):
        budget.give_back()
    assert not budget.take(POLICY)
    budget.give_back()
    assert budget.take(POLICY)
