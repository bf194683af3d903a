"""What the control loops do: follow the store, look at the engines, and say each change once."""

from __future__ import annotations

import asyncio
import shlex

import httpx
import orjson
import pytest

from gateway.control import Control
from gateway.errors import EngineUnreachable
from gateway.fleet.registry import Registry
from gateway.model import EngineSpec, Target
from gateway.policy.engines import Floor
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.kept import FILE, kept_table
from gateway.stores.sqlite import SqliteStore
from gateway.wire.deadline import Sweeper
from gateway.wire.upstream import UpstreamLimits


class Keys:
    """A ring that can be out of reach of its store."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.refreshed = 0

    async def refresh(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.refreshed += 1


class Body(httpx.AsyncByteStream):
    """A body that comes in one piece."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self):
        yield self._data


class Engines:
    """What each engine says, by port: the names that it serves, or ``None`` when it is down."""

    def __init__(self, **served) -> None:
        self.served = {name.removeprefix("e"): models for name, models in served.items()}
        self.version = "1000.0.0"

    def answer(self, request: httpx.Request) -> httpx.Response:
        models = self.served[str(request.url.port)]
        if models is None:
            raise httpx.ConnectError("down")
        if request.url.path == "/health":
            return httpx.Response(200, stream=Body(b""))
        if request.url.path == "/version":
            return httpx.Response(200, stream=Body(orjson.dumps({"version": self.version})))
        rows = [{"id": model, "owned_by": "vllm"} for model in models]
        return httpx.Response(200, stream=Body(orjson.dumps({"data": rows})))


class Desk:
    """A control between a real store, a real registry and engines that are made up."""

    def __init__(self, store, engines, loop, folder) -> None:
        self.store, self.engines, self.keys = store, engines, Keys()
        self.aliases = AliasView(store)
        self.sweeper = Sweeper(loop)
        specs = [EngineSpec(f"http://127.0.0.1:{port}") for port in engines.served]
        self.registry = Registry(loop, self.sweeper, specs, UpstreamLimits(), floors={"vllm": Floor("0.23.1", True)})
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(engines.answer))
        self.said: list[str] = []
        self.folder = folder
        self.verified = 0
        self.control = Control(
            store, self.keys, self.aliases, self.registry, self.said.append, folder=folder, verify=self._verify
        )

    async def _verify(self):
        if self.keys.fault is not None:
            raise self.keys.fault
        self.verified += 1

    async def assign(self, alias, model):
        return await self.store.assign_alias(alias, [Target(model)], author="ops", at=1.0)

    @property
    def names(self):
        return sorted(self.aliases.table.current)


def _at_the_desk(tmp_path, engines, body):
    async def run():
        store = await SqliteStore.open(tmp_path / "state.db")
        desk = Desk(store, engines, asyncio.get_running_loop(), tmp_path)
        try:
            async with asyncio.timeout(10):
                await body(desk)
        finally:
            await desk.client.aclose()
            desk.registry.close()
            desk.sweeper.close()
            await store.close()

    asyncio.run(run())


def test_a_new_installation_gets_an_alias_for_each_served_model(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        assert desk.names == ["large", "small"]
        for name, revision in desk.aliases.table.current.items():
            assert (revision.targets, revision.source, revision.author) == ((Target(name),), "automatic", "gateway")
        assert sum("made alias" in line for line in desk.said) == 2

    _at_the_desk(tmp_path, Engines(e8001=["small"], e8002=["large", "small"]), body)


def test_a_model_that_is_called_by_its_path_gets_its_alias_without_the_slashes(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        assert desk.names == ["models/one"]
        assert desk.aliases.table.current["models/one"].targets == (Target("/models/one"),)
        assert desk.said[-1] == "made alias models/one@1 for served model /models/one"

    _at_the_desk(tmp_path, Engines(e8001=["/models/one"]), body)


def test_a_name_that_can_be_no_alias_makes_none_and_is_reported_once_with_what_to_do(tmp_path):
    hostile = ["plain@7", "../up", "x/../y", "it's; reboot", '"', "x" * 200, "a b"]

    async def body(desk):
        await desk.control.first(desk.client)
        for _ in range(3):
            await desk.control.probe(desk.client)
        assert desk.names == ["fine"]
        told = [line for line in desk.said if line.startswith("made no alias")]
        assert sorted(shlex.split(line)[-1] for line in told if "alias set NAME --model" in line) == sorted(
            name for name in hostile if " " not in name
        )
        assert sum("--served-model-name" in line for line in told) == 2
        assert len(told) == len(hostile)
        # One that goes is forgotten, so that names without number are not remembered without number.
        desk.engines.served["8002"] = [f"later@{number}" for number in range(3)]
        desk.registry.replicas[1].note_failure(EngineUnreachable())
        await desk.control.probe(desk.client)
        assert len(desk.control._nameless) == 3

    _at_the_desk(tmp_path, Engines(e8001=["fine"], e8002=hostile), body)


def test_an_engine_that_comes_late_gets_its_alias_in_a_new_installation(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        assert desk.names == []
        desk.engines.served["8001"] = ["small"]
        await desk.control.probe(desk.client)
        assert desk.names == ["small"]

    _at_the_desk(tmp_path, Engines(e8001=None), body)


def test_an_installation_with_an_alias_is_left_as_it_is(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.control.first(desk.client)
        await desk.control.probe(desk.client)
        assert desk.names == ["internal-general"]

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_an_alias_that_ops_have_moved_is_never_moved_back(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        await desk.assign("small", "large")
        for _ in range(2):
            await desk.control.sync()
            await desk.control.probe(desk.client)
        assert desk.aliases.table.current["small"].targets == (Target("large"),)
        assert desk.aliases.table.current["small"].number == 2

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_first_fails_when_the_store_cannot_be_read(tmp_path):
    async def body(desk):
        desk.keys.fault = StoreUnavailable("locked")
        with pytest.raises(StoreUnavailable):
            await desk.control.first(desk.client)

    _at_the_desk(tmp_path, Engines(), body)


def test_sync_takes_in_what_others_wrote(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        await desk.assign("internal-general", "small")
        await desk.control.sync()
        assert desk.names == ["internal-general"]
        assert desk.keys.refreshed == 2

    _at_the_desk(tmp_path, Engines(), body)


def test_a_store_that_is_gone_is_reported_when_it_goes_and_when_it_comes_back(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        for fault in (None, StoreUnavailable("locked"), StoreUnavailable("locked"), None, None):
            desk.keys.fault = fault
            await desk.control.sync()
        assert desk.said == ["state store: locked; serving what is cached", "state store: back"]
        desk.keys.fault = StoreUnavailable("full")
        await desk.control.sync()
        assert len(desk.said) == 3

    _at_the_desk(tmp_path, Engines(), body)


def test_what_sync_does_not_expect_goes_on_to_the_supervisor(tmp_path):
    async def body(desk):
        desk.keys.fault = LookupError()
        with pytest.raises(LookupError):
            await desk.control.sync()

    _at_the_desk(tmp_path, Engines(), body)


def test_a_replica_is_reported_when_its_state_changes_and_only_then(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.control.first(desk.client)
        await desk.control.probe(desk.client)
        up = "replica 0 at http://127.0.0.1:8001: ready, serves small"
        assert desk.said == [up]
        desk.engines.served["8001"] = None
        await desk.control.probe(desk.client)
        await desk.control.probe(desk.client)
        desk.engines.served["8001"] = ["small"]
        await desk.control.probe(desk.client)
        assert desk.said == [up, "replica 0 at http://127.0.0.1:8001: ejected, serves small", up]

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_a_replica_that_a_request_found_dead_is_reported_by_the_next_look(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.control.first(desk.client)
        desk.engines.served["8001"] = None
        desk.registry.replicas[0].note_failure(EngineUnreachable())
        await desk.control.probe(desk.client)
        assert "ejected" in desk.said[-1]

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_aliases_that_cannot_be_made_now_are_made_later(tmp_path):
    async def body(desk):
        writing = desk.store.assign_alias

        async def refuses(*_, **__):
            raise StoreUnavailable("full")

        desk.store.assign_alias = refuses
        await desk.control.first(desk.client)
        assert desk.names == []
        assert desk.said[-1] == "cannot make aliases: full"
        desk.store.assign_alias = writing
        await desk.control.probe(desk.client)
        assert desk.names == ["small"]

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_an_engine_that_policy_refuses_is_reported_once_with_the_reason(tmp_path):
    async def body(desk):
        desk.engines.version = "0.10.1"
        await desk.control.first(desk.client)
        await desk.control.probe(desk.client)
        told = [line for line in desk.said if line.startswith("replica 0")]
        assert len(told) == 1
        assert told[0].endswith("; vllm 0.10.1 is older than 0.23.1, the oldest that policy takes")
        assert not desk.registry.any_ready()

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_a_word_of_a_change_is_followed_at_once(tmp_path):
    class Telling:
        """Tells of one change, once asked for the first."""

        async def changes(self):
            yield

    async def body(desk):
        await desk.control.first(desk.client)
        await desk.assign("internal-general", "small")
        await desk.control.follow(Telling())
        assert desk.names == ["internal-general"]

    _at_the_desk(tmp_path, Engines(), body)


def test_of_two_readings_at_once_the_older_is_never_the_last_to_be_taken_in(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        for model in ("one", "two", "three"):
            readings = [asyncio.ensure_future(desk.control.reload()) for _ in range(3)]
            revision = await desk.assign("internal-general", model)
            await asyncio.gather(desk.control.reload(), *readings)
            assert desk.aliases.table.current["internal-general"] == revision

    _at_the_desk(tmp_path, Engines(), body)


def test_without_its_store_an_instance_starts_by_the_table_that_it_kept_and_says_so(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.control.first(desk.client)
        await desk.control.keep()
        kept = desk.aliases.table

        again = Desk(desk.store, desk.engines, asyncio.get_running_loop(), tmp_path)
        again.keys.fault = StoreUnavailable("frozen")
        try:
            await again.control.first(again.client)
            assert again.aliases.table == kept
            assert again.aliases.degraded
            assert "frozen; started without it" in again.said[0]
            await again.control.sync()
            again.keys.fault = None
            await again.control.sync()
            assert (again.aliases.degraded, again.verified) == (False, 1)
            assert again.said[-1] == "state store: back"
        finally:
            await again.client.aclose()
            again.registry.close()
            again.sweeper.close()

    _at_the_desk(tmp_path, Engines(e8001=["small"]), body)


def test_the_store_is_verified_once_before_anything_of_it_is_believed(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        await desk.control.sync()
        assert desk.verified == 1

    _at_the_desk(tmp_path, Engines(), body)


def test_a_table_is_kept_when_it_has_changed_and_a_disk_that_refuses_is_reported_once(tmp_path):
    async def body(desk):
        await desk.control.first(desk.client)
        await desk.control.keep()
        written = (tmp_path / FILE).stat().st_mtime_ns
        await desk.control.keep()
        assert (tmp_path / FILE).stat().st_mtime_ns == written
        (tmp_path / FILE).unlink()
        (tmp_path / FILE).mkdir()
        for model in ("one", "two"):
            await desk.assign("internal-general", model)
            await desk.control.sync()
            await desk.control.keep()
        assert sum("cannot be kept" in line for line in desk.said) == 1
        (tmp_path / FILE).rmdir()
        await desk.control.keep()
        assert kept_table(tmp_path) == desk.aliases.table

    _at_the_desk(tmp_path, Engines(), body)
