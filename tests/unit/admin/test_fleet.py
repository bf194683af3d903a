"""The routes about engines, over a real store and replicas that a test turns by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.admin.build import build_admin
from gateway.admin.fleetshow import FleetHandle
from gateway.admin.rules import PolicyView
from gateway.admin.state import AdminState
from gateway.admin.trail import verify
from gateway.fleet.life import Sign
from gateway.fleet.replica import Replica
from gateway.identity.keyring import KeyRing
from gateway.model import EngineSpec
from gateway.policy.access import parse_access
from gateway.policy.fleet import FleetPolicy
from gateway.secret import Secret
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.sqlite import SqliteStore

TOKEN = "gwadmin_" + "t" * 43
ACCESS = parse_access("roles:\n  user: {aliases: ['*']}\ndefault_roles: [user]\n", "access.yaml")
ID, URL = "127.0.0.1:8001", "http://127.0.0.1:8001"
VERBS = ("remove", "drain", "undrain", "warm")


class Plane:
    """An admin plane with the replicas ``replicas``; each write is followed as the control loop would."""

    def __init__(self, store: SqliteStore, client: httpx.AsyncClient, replicas: list[Replica]) -> None:
        self.store = store
        self.client = client
        self.replicas = replicas

    async def post(self, verb: str, replica_id: str = ID, **body: Any) -> httpx.Response:
        return await self.client.post(f"/admin/fleet-{verb}/{replica_id}", json=body)

    async def trail(self) -> list[tuple[float, str, str, str, str]]:
        assert (await verify(self.store)).whole
        lines = await self.store.audit()
        return [(line.at, line.author, line.verb, line.subject, line.detail) for line in lines]


def made(url: str, origin: str = "configuration") -> Replica:
    return Replica(
        EngineSpec(url),
        lambda _: SimpleNamespace(close=lambda: None),
        FleetPolicy,
        lambda _: None,
        lambda _: True,
        origin=origin,
        now=lambda: 100.0,
        random=lambda: 0.5,
        wall=lambda: 5_000.0,
    )


@pytest.fixture
def plane(tmp_path: Path) -> Callable[[Callable[[Plane], Awaitable[None]]], None]:
    """Runs a test body against a plane with one replica of the configuration."""

    async def run(body: Callable[[Plane], Awaitable[None]]) -> None:
        store = await SqliteStore.open(tmp_path / "state.db")
        ring = KeyRing(store, {1: Secret("p" * 43)})
        replicas = [made(URL)]

        async def changed() -> None:
            orders = (await store.engine_orders()).engines
            known = {one.spec.url for one in replicas}
            replicas.extend(made(url, "orders") for url, one in orders.items() if one.added and url not in known)
            for replica in replicas:
                order = orders.get(replica.spec.url)
                replica.removed = replica.origin == "orders" and order is None
                out = replica.removed or (order is not None and order.draining)
                replica.take(Sign.DRAIN if out else Sign.UNDRAIN, "as ordered")

        state = AdminState(
            store=store,
            pepper=Secret("p" * 43),
            admin_token=Secret(TOKEN),
            changed=changed,
            render_metrics=lambda: b"",
            ready=lambda: True,
            served_models=list,
            callers=ring,
            failures=SimpleNamespace(blocked=lambda _: None, failed=lambda _: None),
            access=lambda: ACCESS,
            policy=lambda: PolicyView(valid=True, epoch=0, loaded_at=0.0, faults=[]),
            fleet=FleetHandle(replicas=lambda: replicas, remote=("gpu.example",), now=lambda: 100.0),
            clock=lambda: 7.0,
            random=random.Random(7),
        )
        transport = httpx.ASGITransport(build_admin(state), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {TOKEN}"}
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
                await body(Plane(store, client, replicas))
        finally:
            await ring.close()
            await store.close()

    return lambda body: asyncio.run(run(body))


def ready(replica: Replica) -> None:
    for sign in (Sign.HEALTHY, Sign.WARM):
        assert replica.take(sign)


def test_the_answer_to_an_order_shows_its_effect(plane):
    async def body(plane):
        order = {"url": "https://GPU.example", "labels": {"gpu": "a100"}, "note": "new"}
        added = await plane.client.post("/admin/fleet", json=order)
        assert (added.status_code, added.headers["cache-control"]) == (201, "no-store")
        told = added.json()
        assert (told["id"], told["url"]) == ("gpu.example:443", "https://gpu.example:443")
        assert (told["changed"], told["watched"], told["generation"]) == (True, True, 1)
        assert (told["order"]["author"], told["order"]["at"], told["order"]["added"]) == ("admin-token", 7.0, True)
        assert (told["replica"]["origin"], told["replica"]["state"]) == ("orders", "found")
        drained = (await plane.post("drain", "gpu.example:443", note="why")).json()
        assert (drained["replica"]["state"], drained["replica"]["drain"]["note"]) == ("draining", "why")
        again = (await plane.post("drain", "gpu.example:443")).json()
        assert (again["changed"], again["generation"], again["order"]["note"]) == (False, 2, "why")
        undrained = (await plane.post("undrain", "gpu.example:443")).json()
        assert (undrained["replica"]["state"], undrained["replica"]["drain"]) == ("found", None)
        removed = (await plane.post("remove", "gpu.example:443", note="old")).json()
        assert (removed["order"], removed["replica"]["removed"], removed["generation"]) == (None, True, 4)
        assert [line[1:3] for line in await plane.trail()] == [
            ("admin-token", f"fleet.{verb}") for verb in ("add", "drain", "undrain", "remove")
        ]

    plane(body)


def test_the_list_and_one_of_it(plane):
    async def body(plane):
        await plane.post("drain")
        listed = (await plane.client.get("/admin/fleet")).json()
        assert (listed["watched"], listed["generation"], listed["next"], listed["orders"]) == (True, 1, None, [])
        assert [one["id"] for one in listed["replicas"]] == [ID]
        shown = await plane.client.get(f"/admin/fleet/{ID}")
        assert shown.json() == listed["replicas"][0]
        plane.replicas.append(made("http://127.0.0.1:8002"))
        page = (await plane.client.get("/admin/fleet?limit=1")).json()
        assert (page["next"], len(page["replicas"])) == (URL, 1)
        page = (await plane.client.get("/admin/fleet", params={"limit": 1, "after": page["next"]})).json()
        assert (page["next"], page["replicas"][0]["id"]) == (None, "127.0.0.1:8002")
        for bad in ("limit=0", "limit=101", "limit=x", "what=1", f"after={'x' * 301}"):
            assert (await plane.client.get(f"/admin/fleet?{bad}")).status_code == 400
        missing = await plane.client.get("/admin/fleet/127.0.0.1:8003")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "no_such_object")
        assert "Near" not in missing.json()["error"]["message"]
        assert "near it are 127.0.0.1:800" in missing.json()["error"]["message"]

    plane(body)


def test_an_ipv6_engine_has_an_id_that_a_path_can_hold(plane):
    async def body(plane):
        plane.replicas.append(made("http://[::1]:8001"))
        for spelled in ("[::1]:8001", "%5B::1%5D:8001"):
            assert (await plane.client.get(f"/admin/fleet/{spelled}")).json()["url"] == "http://[::1]:8001"
        assert (await plane.post("drain", "[::1]:8001")).json()["replica"]["state"] == "draining"

    plane(body)


def test_a_replica_is_warmed_again_on_record_first(plane):
    async def body(plane):
        (replica,) = plane.replicas
        refused = await plane.post("warm")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "change_refused")
        assert "this one is found" in refused.json()["error"]["message"]
        nudged: list[int] = []
        replica.nudge = lambda: nudged.append(1)
        for sign in (None, Sign.FAILING):
            ready(replica)
            if sign is not None:
                assert replica.take(sign)
            warmed = await plane.post("warm", note="after an update")
            assert warmed.json()["replica"]["state"] == "starting"
            assert replica.life.reason == "asked by admin-token: after an update"
        assert len(nudged) == 2
        assert (await plane.post("warm")).status_code == 409
        assert replica.take(Sign.HEALTHY)
        assert (await plane.post("warm")).status_code == 409
        assert replica.life.state.value == "warming"
        line = (7.0, "admin-token", "fleet.warm", URL, '{"note":"after an update"}')
        assert await plane.trail() == [line, line]

    plane(body)


def test_nothing_is_warmed_that_cannot_be_put_on_record(plane, monkeypatch):
    async def body(plane):
        (replica,) = plane.replicas
        ready(replica)

        async def gone(**_: object) -> None:
            raise StoreUnavailable("the disk is gone")

        monkeypatch.setattr(plane.store, "note", gone)
        refused = await plane.post("warm")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert replica.life.state.value == "ready"

    plane(body)


@pytest.mark.parametrize(("signs", "state"), [((Sign.DRAIN,), "draining"), ((Sign.RESTARTED, Sign.HEALTHY), "warming")])
def test_a_replica_that_moves_on_while_it_is_put_on_record_is_left_alone(plane, monkeypatch, signs, state):
    async def body(plane):
        (replica,) = plane.replicas
        ready(replica)
        note = plane.store.note

        async def slow(**more: Any) -> None:
            await note(**more)
            for sign in signs:
                assert replica.take(sign, "meanwhile")

        monkeypatch.setattr(plane.store, "note", slow)
        refused = await plane.post("warm")
        assert refused.status_code == 409
        assert f"this one is {state}" in refused.json()["error"]["message"]
        assert (replica.life.state.value, replica.life.reason) == (state, "meanwhile")

    plane(body)


def test_the_fleet_is_shown_and_not_changed_without_a_store(plane, monkeypatch):
    async def body(plane):
        async def gone(*_: object, **__: object) -> None:
            raise StoreUnavailable("the disk is gone")

        for name in ("engine_orders", "versions", "add_engine"):
            monkeypatch.setattr(plane.store, name, gone)
        listed = (await plane.client.get("/admin/fleet")).json()
        assert (listed["generation"], len(listed["replicas"])) == (None, 1)
        assert (await plane.client.get(f"/admin/fleet/{ID}")).status_code == 200
        for verb in ("remove", "drain", "undrain"):
            assert (await plane.post(verb)).status_code == 503
        assert (await plane.client.post("/admin/fleet", json={"url": "http://127.0.0.1:9"})).status_code == 503

    plane(body)


@pytest.mark.parametrize("verb", VERBS)
def test_an_order_is_closed_and_may_be_left_out(plane, verb):
    async def body(plane):
        for bad in ({"author": "me"}, {"note": 1}, {"note": "a\nb"}, {"url": URL}, {"force": True}):
            assert (await plane.post(verb, **bad)).status_code == 400
        assert (await plane.client.post(f"/admin/fleet-{verb}/{ID}")).status_code in {200, 409}
        assert (await plane.client.get(f"/admin/fleet-{verb}/{ID}")).status_code == 405

    plane(body)


@pytest.mark.parametrize(
    ("order", "param"),
    [
        ({}, "url"),
        ({"url": "http://user:hunter2@127.0.0.1:1"}, "url"),
        ({"url": "http://gpu.example:1"}, "url"),
        ({"url": "https://hunter2.example"}, "url"),
        ({"url": URL, "labels": {"hunter 2": "a"}}, "labels"),
        ({"url": URL, "labels": {"a": "hunter2\n"}}, "labels"),
        ({"url": URL, "labels": {"engine": "hunter2"}}, "labels"),
    ],
)
def test_a_fault_names_its_field_and_quotes_nothing(plane, order, param):
    async def body(plane):
        refused = await plane.client.post("/admin/fleet", json=order)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert refused.json()["error"]["message"].startswith(f"{param}: ")
        assert "hunter" not in refused.text
        assert await plane.trail() == []

    plane(body)


def test_what_is_there_or_listed_elsewhere_is_a_conflict(plane):
    async def body(plane):
        refused = await plane.client.post("/admin/fleet", json={"url": URL})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert (await plane.client.post("/admin/fleet", json={"url": "http://127.0.0.1:9"})).status_code == 201
        refused = await plane.client.post("/admin/fleet", json={"url": "http://127.0.0.1:9"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "admin-token" in refused.json()["error"]["message"]
        refused = await plane.post("remove")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "change_refused")
        assert len(await plane.trail()) == 1

    plane(body)
