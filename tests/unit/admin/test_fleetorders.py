"""What orders about engines come to, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.errors import AdminRefusal
from gateway.admin.fleetorders import Author, Listed, Outcome, add, give, orders_generation, unknown
from gateway.admin.fleetviews import AddOrder, DrainOrder, FleetOrder, RemoveOrder, UndrainOrder
from gateway.admin.trail import verify
from gateway.errors import Refusal
from gateway.fleet.discover.sources import Origin
from gateway.stores.interfaces import Conflict, NotFound, StoreUnavailable
from gateway.stores.sqlite import SqliteStore

OPS = Author("ops", 5.0)
URL, ID = "http://127.0.0.1:8001", "127.0.0.1:8001"
LISTED = Listed({URL: "configuration"})


@pytest.fixture
def on_store(tmp_path: Path) -> Callable[[Callable[[SqliteStore], Awaitable[Any]]], Any]:
    def run(body: Callable[[SqliteStore], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            store = await SqliteStore.open(tmp_path / "state.db")
            try:
                return await body(store)
            finally:
                assert (await verify(store)).whole
                await store.close()

        return asyncio.run(main())

    return run


async def verbs(store: SqliteStore) -> list[tuple[str, str, str]]:
    return [(line.verb, line.subject, line.author) for line in await store.audit()]


def test_an_engine_is_added_drained_undrained_and_removed(on_store):
    async def body(store):
        made = await add(store, AddOrder(url=URL, labels={"gpu": "a"}, note="n"), Listed(), OPS)
        assert (made.url, made.changed, made.order.labels, made.order.note) == (URL, True, {"gpu": "a"}, "n")
        listed = Listed({URL: "orders"})
        drained = await give(store, ID, DrainOrder(), listed, OPS)
        assert (drained.changed, drained.order.draining, drained.order.added) == (True, True, True)
        assert (await give(store, URL, DrainOrder(), listed, OPS)).changed is False
        undrained = await give(store, ID, UndrainOrder(), Listed(), OPS)
        assert (undrained.changed, undrained.order.draining) == (True, False)
        assert await give(store, ID, RemoveOrder(), listed, OPS) == Outcome(URL, None, changed=True)
        assert (await store.engine_orders()).engines == {}
        assert await orders_generation(store) == 4
        assert await verbs(store) == [(f"fleet.{verb}", URL, "ops") for verb in ("add", "drain", "undrain", "remove")]

    on_store(body)


def test_a_drain_that_is_lifted_leaves_no_order(on_store):
    async def body(store):
        assert (await give(store, ID, DrainOrder(), LISTED, OPS)).order.added is False
        assert (await give(store, ID, UndrainOrder(), LISTED, OPS)).order is None
        assert await give(store, ID, UndrainOrder(), LISTED, OPS) == Outcome(URL, None, changed=False)

    on_store(body)


@pytest.mark.parametrize(
    ("url", "remote", "expected"),
    [
        ("http://10.0.0.7:8000", ["10.0.0.7"], "loopback host"),
        ("http://169.254.169.254", ["169.254.169.254"], "loopback host"),
        ("https://gpu.example", [], "listed in remote_engines"),
        ("https://gpu.example", ["example", "xgpu.example"], "listed in remote_engines"),
    ],
)
def test_an_engine_where_prompts_may_not_go_is_refused(on_store, url, remote, expected):
    async def body(store):
        with pytest.raises(Refusal) as refused:
            await add(store, AddOrder(url=url), Listed(remote=remote), OPS)
        assert expected in refused.value.message
        assert refused.value.param == "url"
        assert await verbs(store) == []
        await add(store, AddOrder(url="https://gpu.example"), Listed(remote=[".example.org", "gpu.example"]), OPS)

    on_store(body)


def test_a_kind_of_engine_that_nobody_knows_is_refused_with_those_that_are(on_store):
    async def body(store):
        with pytest.raises(Refusal) as refused:
            await add(store, AddOrder(url=URL, labels={"engine": "evil"}), Listed(), OPS)
        assert "vllm, sglang" in refused.value.message
        assert "evil" not in refused.value.message
        await add(store, AddOrder(url=URL, labels={"engine": "sglang"}), Listed(), OPS)

    on_store(body)


def test_what_is_there_is_not_added_again(on_store):
    async def body(store):
        with pytest.raises(AdminRefusal) as refused:
            await add(store, AddOrder(url=URL), LISTED, OPS)
        assert (refused.value.spec.status, refused.value.spec.code) == (409, "conflict")
        assert "listed in the configuration" in refused.value.message
        await add(store, AddOrder(url=URL), Listed(leaving=[URL]), OPS)
        with pytest.raises(Conflict):
            await add(store, AddOrder(url=URL), Listed({URL: "orders"}), OPS)

    on_store(body)


@pytest.mark.parametrize(
    ("origin", "word"),
    [
        (Origin.CONFIGURATION, "gateway.yaml"),
        (Origin.FILE, "discovery.file"),
        (Origin.DNS, "DNS"),
        (Origin.KUBERNETES, "Kubernetes"),
    ],
)
def test_what_no_order_added_is_taken_out_where_it_is_listed(on_store, origin, word):
    async def body(store):
        with pytest.raises(AdminRefusal) as refused:
            await give(store, ID, RemoveOrder(), Listed({URL: str(origin)}), OPS)
        assert refused.value.spec.status == 409
        for said in (word, "Take it out there", f"gateway fleet drain {ID}"):
            assert said in refused.value.message
        assert await verbs(store) == []

    on_store(body)


def test_a_drain_alone_is_lifted_not_removed(on_store):
    async def body(store):
        await give(store, ID, DrainOrder(), LISTED, OPS)
        with pytest.raises(AdminRefusal) as refused:
            await give(store, ID, RemoveOrder(), Listed(), OPS)
        assert f"'gateway fleet undrain {ID}' lifts it" in refused.value.message

    on_store(body)


@pytest.mark.parametrize("order", [RemoveOrder(), DrainOrder(), UndrainOrder()])
def test_an_engine_that_goes_already_is_said_so(on_store, order: FleetOrder):
    async def body(store):
        with pytest.raises(AdminRefusal) as refused:
            await give(store, ID, order, Listed(leaving=[URL]), OPS)
        assert refused.value.spec.code == "change_refused"
        assert "listed no more" in refused.value.message
        assert await verbs(store) == []

    on_store(body)


@pytest.mark.parametrize("order", [RemoveOrder(), DrainOrder(), UndrainOrder()])
def test_an_id_that_nobody_knows_is_answered_with_those_near_it(on_store, order: FleetOrder):
    async def body(store):
        with pytest.raises(NotFound, match=r"near it are 127\.0\.0\.1:8001$"):
            await give(store, "127.0.0.1:8002", order, LISTED, OPS)
        assert await verbs(store) == []

    on_store(body)


def test_a_url_is_drained_though_nobody_here_knows_it(on_store):
    async def body(store):
        assert (await give(store, URL, DrainOrder(), Listed(), OPS)).changed is True
        with pytest.raises(NotFound):
            await give(store, "http://127.0.0.1:9", RemoveOrder(), Listed(), OPS)

    on_store(body)


def test_few_ids_are_named_and_none_that_is_far():
    many = [f"http://127.0.0.1:{port}" for port in range(8000, 9000)]
    assert str(unknown("127.0.0.1:9000", many)).count("127.0.0.1") == 3
    assert "'gateway fleet list' shows" in str(unknown("gpu.example:443", many))


def test_a_store_that_fails_after_the_write_leaves_the_generation_open():
    class Failing:
        async def versions(self) -> None:
            raise StoreUnavailable("gone")

    assert asyncio.run(orders_generation(Failing())) is None
