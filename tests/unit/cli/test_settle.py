"""The wait until every gateway serves by a change."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from gateway.admin.aliasviews import InstanceList, instance_view
from gateway.cli.backend import CliFault
from gateway.cli.settle import lagging, settle, wait_for_all
from gateway.model import Instance


def listing(*generations: int, seen: float = 100.0) -> InstanceList:
    instances = [
        instance_view(Instance(f"i{number}", f"gw-{number}", "0.1", "", 0.0, seen, one), 9, 101.0)
        for number, one in enumerate(generations)
    ]
    return InstanceList(generation=9, instances=instances)


class Time:
    """Passes only in sleep."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def asked(*answers: InstanceList):
    left = list(answers)

    async def ask() -> InstanceList:
        return left.pop(0) if len(left) > 1 else left[0]

    return ask


def test_only_live_instances_of_an_older_table_lag():
    assert [one.name for one in lagging(listing(8, 9, 10), 9)] == ["gw-0"]
    assert lagging(listing(8, seen=1.0), 9) == []


def test_it_asks_until_none_lags():
    clock = Time()
    found = asyncio.run(
        settle(asked(listing(8, 9), listing(8, 9), listing(9, 9)), 9, 10, monotonic=clock, sleep=clock.sleep)
    )
    assert (found, clock.slept) == (listing(9, 9), [0.2, 0.2])


def test_it_gives_up_in_time_and_looks_once_more_at_the_end():
    clock = Time()
    found = asyncio.run(settle(asked(listing(8)), 9, 0.5, monotonic=clock, sleep=clock.sleep))
    assert found == listing(8)
    assert sum(clock.slept) == pytest.approx(0.5)


def refused(backend, generation, seconds=0) -> str:
    with pytest.raises(CliFault) as fault:
        asyncio.run(wait_for_all(backend, generation, seconds))
    return str(fault.value)


def test_whoever_lags_is_named_and_a_change_is_never_said_to_be_lost():
    said = refused(SimpleNamespace(instances=asked(listing(8, 9, 7))), 9)
    assert said.startswith("The change is made, but after 0 s")
    assert "gw-0 (i0, generation 8, seen 1 s ago); gw-2" in said
    assert "gw-1" not in said
    assert "store failed" in refused(SimpleNamespace(), None)

    async def gone() -> InstanceList:
        raise CliFault("No gateway answers")

    assert "could not be asked: No gateway answers" in refused(SimpleNamespace(instances=gone), 9)


@pytest.mark.parametrize("generation", [1, 0])
def test_a_command_waits_for_the_gateways_of_the_state(anywhere, held, generation):
    cli = anywhere

    async def beat(store):
        await store.beat(Instance("i1", "gw-1", "0.1", "http://h:1", time.time(), time.time(), generation))

    cli.ok("keys", "create", "app1")
    held(beat)
    result = cli("alias", "set", "chat", "--model", "model-a", "--wait", "--timeout", "0s", "--json")
    assert json.loads(result.stdout)["generation"] == 1
    assert "chat is model-a since revision 1." in result.stderr
    if generation:
        assert (result.exit_code, "Served by all live gateways (1)." in result.stderr) == (0, True)
    else:
        assert (result.exit_code, "gw-1 (i1, generation 0" in result.stderr) == (1, True)


def test_where_no_gateway_runs_there_is_none_to_wait_for(cli):
    result = cli("alias", "set", "chat", "--model", "m", "--wait")
    assert (result.exit_code, "none to wait for" in result.stderr) == (0, True)
    cli.refused("alias", "set", "chat", "--model", "m", "--wait", "--timeout", "soon", code=2)
