"""The gateways that share a state, as a command tells them."""

from __future__ import annotations

import json
import time

from gateway.admin.aliasviews import InstanceList, instance_view
from gateway.cli.status import condition, remarks
from gateway.model import Instance


def view(generation: int, *, degraded: bool = False, seen: float = 100.0):
    return instance_view(Instance("i", "gw", "0.1", "", 0.0, seen, generation, degraded=degraded), 9, 101.0)


def test_live_gateways_are_listed_and_those_that_lag_are_marked(anywhere, held):
    cli = anywhere
    for model in ("model-a", "model-b"):
        cli.ok("alias", "set", "chat", "--model", model)

    async def beats(store):
        now = time.time()
        for number, (seen, generation) in enumerate([(now, 2), (now, 1), (now - 60, 1)]):
            await store.beat(
                Instance(f"i{number}", f"gw-{number}", "0.1", "http://h:1", now - 100 + number, seen, generation, 3.0)
            )

    held(beats)
    result = cli("status")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows[0] == ["NAME", "ID", "VERSION", "STATE", "GENERATION", "TABLE AGE", "SEEN", "ADMIN URL"]
    assert [row[:6] for row in rows[1:]] == [
        ["gw-0", "i0", "0.1", "ok", "2", "3 s"],
        ["gw-1", "i1", "0.1", "lags", "1", "3 s"],
    ]
    assert "1 of 2 lag" in result.stderr
    told = json.loads(cli.ok("status", "--json"))
    assert [one["live"] for one in told["instances"]] == [True, True, False]


def test_how_an_instance_stands_in_words():
    assert [condition(one) for one in (view(9), view(8), view(8, degraded=True), view(9, degraded=True))] == [
        "ok",
        "lags",
        "degraded, lags",
        "degraded",
    ]


def test_what_is_said_of_all():
    assert remarks(InstanceList(generation=9, instances=[view(9)])) == ["The alias table is at generation 9."]
    assert "'gateway serve' starts one" in remarks(InstanceList(generation=9, instances=[view(8, seen=1.0)]))[1]
    assert "cannot read the store" in remarks(InstanceList(generation=9, instances=[view(9, degraded=True)]))[1]
