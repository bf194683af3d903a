"""The list of gateways that share a store."""

from __future__ import annotations

from gateway.model import Instance, Target


def test_instances_are_listed_with_whether_they_live_and_lag(each_store):
    async def body(plane):
        for number, (seen, generation) in enumerate([(995.0, 1), (999.0, 2), (900.0, 1)]):
            await plane.store.beat(
                Instance(f"i{number}", f"gw-{number}", "0.1", "http://h:9090", float(number), seen, generation, 0.5)
            )
        for model in "ab":
            await plane.store.assign_alias("chat", (Target(model),), author="ops", at=999.0)
        listing = (await plane.client.get("/admin/instances")).json()
        assert listing["generation"] == 2
        assert [(one["name"], one["live"], one["lags"]) for one in listing["instances"]] == [
            ("gw-0", True, True),
            ("gw-1", True, False),
            ("gw-2", False, False),
        ]
        assert listing["instances"][0] == {
            "id": "i0",
            "name": "gw-0",
            "version": "0.1",
            "admin_url": "http://h:9090",
            "started_at": 0.0,
            "seen_at": 995.0,
            "seen_ago": 5.0,
            "generation": 1,
            "table_age": 0.5,
            "degraded": False,
            "live": True,
            "lags": True,
        }

    each_store.run(body)
