"""One face for keys and tokens: each credential is one ring's business."""

from __future__ import annotations

import asyncio

import pytest

from gateway.identity.callers import Callers
from gateway.identity.keyring import MISS
from gateway.model import Principal


class Ring:
    def __init__(self, epoch=1, **known) -> None:
        self.epoch = epoch
        self.known = known
        self.asked: list[str] = []

    def lookup(self, presented):
        self.asked.append(presented)
        return self.known.get(presented, MISS)

    async def fetch(self, presented):
        self.asked.append(presented)
        return


@pytest.mark.parametrize(("presented", "ring"), [("gw_live_x", 0), ("", 0), ("a.b.c", 1), ("gw_live.x", 1), (".", 1)])
def test_only_the_ring_of_its_shape_sees_a_credential(presented, ring):
    rings = Ring(), Ring()
    callers = Callers(*rings)
    assert callers.lookup(presented) is MISS
    assert asyncio.run(callers.fetch(presented)) is None
    assert rings[ring].asked == [presented] * 2
    assert rings[1 - ring].asked == []


def test_a_known_principal_is_given_as_it_is():
    principal = Principal("k", "t")
    assert Callers(Ring(known=principal), Ring()).lookup("known") is principal


def test_the_epoch_moves_with_either_ring_and_is_none_with_either():
    keys, tokens = Ring(3), Ring(4)
    callers = Callers(keys, tokens)
    before = callers.epoch
    keys.epoch += 1
    after_key = callers.epoch
    tokens.epoch += 1
    assert len({before, after_key, callers.epoch}) == 3
    keys.epoch = None
    assert callers.epoch is None
    keys.epoch, tokens.epoch = 1, None
    assert callers.epoch is None
