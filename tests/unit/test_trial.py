"""A trial whose new model does too badly ends by itself, once, and only where policy wants it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.model import AliasTable, Revision, Target
from gateway.policy.routing import Canary
from gateway.stores.interfaces import Conflict
from gateway.telemetry.revisions import RevisionStats
from gateway.telemetry.trace import Trace
from gateway.trial import Trials, counted, tracks_of

BOUNDS = (0.1, 0.5, 1.0, 5.0)
BEFORE = Revision("general", 1, (Target("old"),), "ops", 1.0)
ABORTS = Canary(abort=True)
TRIAL = Revision("general", 2, (Target("old", 90), Target("new", 10)), "ops", 2.0, source="canary", canary_of=1)


class Store:
    """The history of one alias; an assignment is lost to somebody else's when told so."""

    def __init__(self) -> None:
        self.history = [BEFORE, TRIAL]
        self.assigned: list[dict] = []
        self.lost = False

    async def alias_history(self, alias):
        return self.history

    async def assign_alias(self, alias, targets, **fields):
        if self.lost:
            raise Conflict("somebody was first")
        self.assigned.append({"alias": alias, "targets": targets, **fields})
        return Revision(alias, 3, targets, fields["author"], fields["at"])


class Desk:
    def __init__(self, policy=ABORTS) -> None:
        self.store = Store()
        self.table = AliasTable(2, {"general": TRIAL})
        self.stats = RevisionStats(BOUNDS, BOUNDS)
        self.said: list[str] = []
        self.policy = policy
        self.trials = Trials(
            self.store, lambda: self.table, self.stats, lambda: self.policy, self.said.append, clock=lambda: 9.0
        )

    def serve(self, track, count, *, failed=0, ttft=50.0, revision=2):
        for number in range(count):
            trace = Trace("req_1", 5.0, 0.0)
            trace.alias, trace.revision, trace.track = "general", revision, track
            trace.status, trace.error = (502, "engine_error") if number < failed else (200, None)
            if trace.status == 200:
                trace.ttft_ms = ttft
            self.stats.observe(trace)

    def watch(self):
        asyncio.run(self.trials.watch())


def test_a_trial_that_fails_far_more_often_is_rolled_back_to_what_it_would_have_replaced():
    desk = Desk()
    desk.serve("stable", 2_000, failed=2)
    desk.serve("canary", 400, failed=80)
    desk.watch()
    (made,) = desk.store.assigned
    assert (made["targets"], made["source"], made["author"]) == (BEFORE.targets, "rollback", "gateway")
    assert (made["expect_revision"], made["at"]) == (2, 9.0)
    assert "general@2 ended" in made["note"]
    assert "Now general@3" in desk.said[0]
    assert desk.trials.aborts == {"general": 1}


def test_a_trial_that_is_far_slower_to_its_first_token_ends_too():
    desk = Desk()
    desk.serve("stable", 2_000, ttft=50.0)
    desk.serve("canary", 400, ttft=3_000.0)
    desk.watch()
    assert len(desk.store.assigned) == 1


@pytest.mark.parametrize(
    ("stable", "canary"),
    [
        ({"count": 2_000, "failed": 2}, {"count": 400, "failed": 1}),
        ({"count": 2_000, "failed": 2}, {"count": 5, "failed": 5}),
        ({"count": 0}, {"count": 400, "failed": 400}),
        ({"count": 2_000, "failed": 400}, {"count": 400, "failed": 80}),
    ],
)
def test_a_trial_that_does_as_well_or_that_too_little_is_known_of_goes_on(stable, canary):
    desk = Desk()
    desk.serve("stable", **stable)
    desk.serve("canary", **canary)
    desk.watch()
    assert (desk.store.assigned, desk.said) == ([], [])


def test_without_leave_of_the_policy_no_trial_is_ended():
    desk = Desk(Canary(abort=False))
    desk.serve("stable", 2_000)
    desk.serve("canary", 400, failed=400)
    desk.watch()
    assert desk.store.assigned == []


def test_what_another_revision_did_does_not_count():
    desk = Desk()
    desk.serve("stable", 2_000, revision=1)
    desk.serve("canary", 400, failed=400, revision=1)
    desk.watch()
    assert desk.store.assigned == []


def test_it_is_looked_at_again_only_when_there_is_more_to_see():
    desk = Desk()
    desk.store.lost = True
    desk.serve("stable", 2_000)
    desk.serve("canary", 400, failed=400)
    for _ in range(3):
        desk.watch()
    assert len(desk.said) == 1
    assert "somebody was first" in desk.said[0]
    desk.serve("stable", 600)
    desk.watch()
    assert len(desk.said) == 2


def test_a_revision_that_is_no_trial_has_one_track_and_is_left_alone():
    desk = Desk()
    desk.table = AliasTable(1, {"general": BEFORE})
    desk.serve("stable", 50, failed=50, revision=1)
    desk.watch()
    assert desk.store.assigned == []
    assert tracks_of(desk.stats, BEFORE)["stable"].errors == 50


def test_every_alias_has_a_count_of_trials_ended_and_only_those_that_this_instance_ended_are_in_it():
    desk = Desk()
    desk.table = AliasTable(2, {"general": TRIAL, "other": BEFORE})
    desk.store.lost = True
    desk.serve("stable", 2_000)
    desk.serve("canary", 400, failed=400)
    desk.watch()
    assert desk.trials.aborts == {"general": 0, "other": 0}
    desk.store.lost = False
    desk.serve("stable", 600)
    desk.watch()
    assert desk.trials.aborts == {"general": 1, "other": 0}
    desk.table = AliasTable(3, {"other": BEFORE})
    desk.watch()
    assert desk.trials.aborts == {"other": 0}
    desk.table = AliasTable(4, {"general": BEFORE})
    assert desk.trials.aborts == {"general": 0}, "one of the same name is another alias"


def test_cells_of_aliases_that_are_gone_are_dropped():
    desk = Desk(Canary(abort=False))
    desk.serve("stable", 5)
    desk.table = AliasTable(3, {})
    desk.watch()
    assert dict(tracks_of(desk.stats, TRIAL)) == {}


def test_both_tracks_are_told_to_whoever_asks_also_one_that_has_served_nothing():
    desk = Desk()
    desk.serve("stable", 3, failed=1)
    told = counted(desk.stats, desk.table, "general")
    assert (told["stable"]["requests"], told["stable"]["errors"], told["stable"]["ttft_counts"]) == (
        3,
        1,
        [2, 0, 0, 0, 0],
    )
    assert (told["canary"]["requests"], told["canary"]["ttft_bounds"]) == (0, list(BOUNDS))
    assert counted(desk.stats, desk.table, "nobody")["stable"]["requests"] == 0
