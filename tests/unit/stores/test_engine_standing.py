"""An engine at one moment: what a change of the order about it comes to, what its line says, and what a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.model import EngineOrder
from gateway.stores.engine_standing import Decided, EngineStanding
from gateway.stores.interfaces import MAX_ENGINE_ORDERS, Conflict, NotFound
from gateway.stores.trail import Change

URL = "http://a:1"
WANTED = EngineOrder(URL, added=True, labels={"gpu": "h100"}, author="cid", at=9.0, note="new")
ADDED = EngineOrder(URL, added=True, labels={"gpu": "a100"}, author="ann", at=86_399.999, note="first")
DRAINED = EngineOrder(URL, draining=True, author="bob", at=2.0, note="fan")
BOTH = replace(ADDED, draining=True, author="bob", at=2.0, note="fan")
LATER = {"author": "cid", "at": 9.0, "note": "why"}
FULL = r"there are orders about 1024 engines, and no room for more: remove an engine or lift a drain"


def test_there_is_room_for_a_thousand_and_some() -> None:
    assert MAX_ENGINE_ORDERS == 1_024


@pytest.mark.parametrize("before", [None, DRAINED], ids=["nothing", "drained"])
def test_adding_keeps_a_drain_that_stands(before: EngineOrder | None) -> None:
    made = replace(WANTED, draining=before is not None)
    line = Change(9.0, "cid", "fleet.add", URL, {"labels": {"gpu": "h100"}, "note": "new"})
    assert EngineStanding(URL, before, 3).added(WANTED) == Decided(made, made, line)


@pytest.mark.parametrize(
    ("before", "words"),
    [(ADDED, "ann at 1970-01-01T23:59:59Z"), (BOTH, "bob at 1970-01-01T00:00:02Z")],
    ids=["added", "drained since"],
)
def test_what_was_added_is_not_added_again(before: EngineOrder, words: str) -> None:
    with pytest.raises(Conflict) as raised:
        EngineStanding(URL, before, 1).added(WANTED)
    assert str(raised.value) == f"the engine at that URL was added already (its order was last changed by {words})"


@pytest.mark.parametrize("before", [ADDED, BOTH], ids=["added", "drained too"])
def test_removing_takes_everything_and_tells_what_was_there(before: EngineOrder) -> None:
    line = Change(9.0, "cid", "fleet.remove", URL, {"labels": {"gpu": "a100"}, "note": "why"})
    assert EngineStanding(URL, before, 1).removed(**LATER) == Decided(before, None, line)


@pytest.mark.parametrize("before", [None, DRAINED], ids=["nothing", "drained"])
def test_what_was_not_added_is_not_removed(before: EngineOrder | None) -> None:
    with pytest.raises(NotFound, match="no engine was added at that URL"):
        EngineStanding(URL, before, 1).removed(**LATER)


@pytest.mark.parametrize(
    ("before", "draining", "after", "kept"),
    [
        (None, True, EngineOrder(URL, draining=True, **LATER), True),
        (ADDED, True, replace(ADDED, draining=True, **LATER), True),
        (BOTH, False, replace(BOTH, draining=False, **LATER), True),
        (DRAINED, False, replace(DRAINED, draining=False, **LATER), False),
    ],
)
def test_a_drain_that_begins_or_ends(
    before: EngineOrder | None, draining: bool, after: EngineOrder, kept: bool
) -> None:
    line = Change(9.0, "cid", "fleet.drain" if draining else "fleet.undrain", URL, {"note": "why"})
    decided = EngineStanding(URL, before, 1).drained(draining=draining, **LATER)
    assert decided == Decided((after, True), after if kept else None, line)


@pytest.mark.parametrize(
    ("before", "draining"), [(None, False), (ADDED, False), (BOTH, True), (DRAINED, True)], ids=str
)
def test_what_is_so_already_changes_nothing(before: EngineOrder | None, draining: bool) -> None:
    decided = EngineStanding(URL, before, MAX_ENGINE_ORDERS).drained(draining=draining, **LATER)
    assert decided == Decided((before or EngineOrder(URL), False))
    assert decided.change is None


def test_the_last_room_is_for_one_more_order() -> None:
    assert EngineStanding(URL, None, MAX_ENGINE_ORDERS - 1).added(WANTED).order == WANTED
    assert EngineStanding(URL, None, MAX_ENGINE_ORDERS - 1).drained(draining=True, **LATER).order is not None
    for call in (
        lambda: EngineStanding(URL, None, MAX_ENGINE_ORDERS).added(WANTED),
        lambda: EngineStanding(URL, None, MAX_ENGINE_ORDERS).drained(draining=True, **LATER),
    ):
        with pytest.raises(Conflict, match=FULL):
            call()


def test_an_engine_that_has_an_order_needs_no_room() -> None:
    assert EngineStanding(URL, DRAINED, MAX_ENGINE_ORDERS).added(WANTED).order == replace(WANTED, draining=True)
    assert EngineStanding(URL, ADDED, MAX_ENGINE_ORDERS).drained(draining=True, **LATER).order is not None
