"""The table of a replica's life, whole, and what no order of signs may do."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.life import ROUTABLE, TRANSITIONS, Life, Sign, State, advance

# One row for each state: what a sign makes of it. A sign that is not named leaves it as it is.
TABLE = """
    found:     listens starting, healthy warming, drain draining
    starting:  healthy warming, lost found, drain draining
    warming:   warm ready, cold starting, lost found, unfit starting, restarted starting, drain draining
    ready:     lost ejected, hung ejected, failing ejected, closing ejected, unfit ejected, restarted starting,
               drain draining
    probation: lost ejected, hung ejected, failing ejected, closing ejected, unfit ejected, restarted starting,
               proven ready, drain draining
    ejected:   restarted starting, rested probation, drain draining
    draining:  empty gone, undrain found
    gone:      undrain found
"""


def _rows() -> dict[tuple[State, Sign], State]:
    rows, state = {}, State.FOUND
    for line in filter(None, map(str.strip, TABLE.splitlines())):
        name, colon, rest = line.rpartition(":")
        state = State(name) if colon else state
        for pair in filter(None, map(str.strip, rest.split(","))):
            sign, after = pair.split()
            rows[state, Sign(sign)] = State(after)
    return rows


WANTED = _rows()
EVERYTHING = list(product(State, Sign))
SIGNS = st.lists(st.sampled_from(list(Sign)), max_size=60)


@pytest.mark.parametrize(("state", "sign"), EVERYTHING)
def test_each_sign_in_each_state(state, sign):
    before = Life(state, since=1.0, reason="before", ejections=3, until=7.0)
    after = advance(before, sign, at=2.0, reason="why")
    if (state, sign) not in WANTED:
        assert after is before
        return
    assert after == Life(WANTED[state, sign], since=2.0, reason="why", ejections=3, until=7.0)


def test_the_table_has_no_row_that_changes_nothing():
    assert dict(TRANSITIONS) == WANTED
    assert all(state is not after for (state, _), after in TRANSITIONS.items())


def test_readiness_comes_from_warmth_or_proof_alone():
    assert {(before, sign) for (before, sign), after in TRANSITIONS.items() if after is State.READY} == {
        (State.WARMING, Sign.WARM),
        (State.PROBATION, Sign.PROVEN),
    }
    assert {sign for (_, sign), after in TRANSITIONS.items() if after is State.PROBATION} == {Sign.RESTED}
    assert frozenset({State.READY, State.PROBATION}) == ROUTABLE


def test_gone_comes_from_draining_alone_and_every_other_state_can_be_drained():
    assert [key for key, after in TRANSITIONS.items() if after is State.GONE] == [(State.DRAINING, Sign.EMPTY)]
    drained = {state for (state, sign), after in TRANSITIONS.items() if after is State.DRAINING}
    assert drained == set(State) - {State.DRAINING, State.GONE}


def test_every_state_can_be_left_and_comes_to_ready_again():
    for state in State:
        reached, edge = {state}, {state}
        while edge:
            edge = {after for (before, _), after in TRANSITIONS.items() if before in edge} - reached
            reached |= edge
        assert reached == set(State)


def test_no_sign_leads_past_warming_from_what_was_never_warm():
    """Without ``warm``, nothing that begins cold becomes routable, whatever else is said of it."""
    for cold in (State.FOUND, State.STARTING, State.WARMING):
        reached, edge = {cold}, {cold}
        while edge:
            found = {after for (b, sign), after in TRANSITIONS.items() if b in edge and sign is not Sign.WARM}
            edge = found - reached
            reached |= edge
        assert not reached & ROUTABLE


@given(SIGNS)
def test_whatever_comes_nothing_is_routable_that_was_not_warmed_since_it_may_have_turned_cold(signs):
    life, warm = Life(), False
    for at, sign in enumerate(signs):
        before, life = life, advance(life, sign, at=float(at))
        if life is not before:
            if sign in (Sign.RESTARTED, Sign.UNDRAIN) or (before.state is State.WARMING and sign is Sign.LOST):
                warm = False
            warm = warm or sign is Sign.WARM
        assert warm or life.state not in ROUTABLE


def test_every_state_says_what_would_change_it():
    said = [Life(state).prospect for state in State]
    assert all(said)
    assert len(set(said)) == len(said)
