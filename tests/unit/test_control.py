"""What the control loops do: follow the store, name what engines serve, obey orders, and say each change once."""

from __future__ import annotations

import asyncio
import shlex

import pytest

from gateway.control import Control
from gateway.model import EngineOrder, EngineOrders, Target
from gateway.stores.aliases import AliasView
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.kept import FILE, kept_table
from gateway.stores.sqlite import SqliteStore

ENGINE = "http://127.0.0.1:8001"


class Keys:
    """A ring that can be out of reach of its store."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.refreshed = 0

    async def refresh(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.refreshed += 1


class Desk:
    """A control between a real store and a fleet that is made up: what engines list, and what it was told to obey."""

    def __init__(self, store, listed, folder) -> None:
        self.store, self.listed, self.keys = store, list(listed), Keys()
        self.aliases = AliasView(store)
        self.said: list[str] = []
        self.obeyed: list[EngineOrders] = []
        self.folder = folder
        self.verified = 0
        self.control = Control(
            store,
            self.keys,
            self.aliases,
            self.said.append,
            folder=folder,
            verify=self._verify,
            obey=self.obeyed.append,
            listed=lambda: self.listed,
        )

    async def _verify(self):
        if self.keys.fault is not None:
            raise self.keys.fault
        self.verified += 1

    async def start(self):
        """As the composition root does it: what the store says, then, once engines were looked at, their names."""
        await self.control.first()
        await self.control.name_models()

    async def assign(self, alias, model):
        return await self.store.assign_alias(alias, [Target(model)], author="ops", at=1.0)

    async def drain(self, draining=True, note=""):
        await self.store.drain_engine(ENGINE, draining=draining, author="ops", at=5.0, note=note)

    @property
    def names(self):
        return sorted(self.aliases.table.current)


def _at_the_desk(tmp_path, listed, body):
    async def run():
        store = await SqliteStore.open(tmp_path / "state.db")
        try:
            async with asyncio.timeout(10):
                await body(Desk(store, listed, tmp_path))
        finally:
            await store.close()

    asyncio.run(run())


def test_a_new_installation_gets_an_alias_for_each_served_model(tmp_path):
    async def body(desk):
        await desk.start()
        assert desk.names == ["large", "small"]
        for name, revision in desk.aliases.table.current.items():
            assert (revision.targets, revision.source, revision.author) == ((Target(name),), "automatic", "gateway")
        assert sum("made alias" in line for line in desk.said) == 2

    _at_the_desk(tmp_path, ["large", "small"], body)


def test_a_model_that_is_called_by_its_path_gets_its_alias_without_the_slashes(tmp_path):
    async def body(desk):
        await desk.start()
        assert desk.names == ["models/one"]
        assert desk.aliases.table.current["models/one"].targets == (Target("/models/one"),)
        assert desk.said[-1] == "made alias models/one@1 for served model /models/one"

    _at_the_desk(tmp_path, ["/models/one"], body)


def test_a_name_that_can_be_no_alias_makes_none_and_is_reported_once_with_what_to_do(tmp_path):
    hostile = ["plain@7", "../up", "x/../y", "it's; reboot", '"', "x" * 200, "a b"]

    async def body(desk):
        await desk.start()
        for _ in range(3):
            await desk.control.name_models()
        assert desk.names == ["fine"]
        told = [line for line in desk.said if line.startswith("made no alias")]
        assert sorted(shlex.split(line)[-1] for line in told if "alias set NAME --model" in line) == sorted(
            name for name in hostile if " " not in name
        )
        assert sum("--served-model-name" in line for line in told) == 2
        assert len(told) == len(hostile)
        # One that goes is forgotten, so that names without number are not remembered without number.
        desk.listed = ["fine", *(f"later@{number}" for number in range(3))]
        await desk.control.name_models()
        assert len(desk.control._nameless) == 3

    _at_the_desk(tmp_path, ["fine", *hostile], body)


def test_an_engine_that_comes_late_gets_its_alias_in_a_new_installation(tmp_path):
    async def body(desk):
        await desk.start()
        assert desk.names == []
        desk.listed = ["small"]
        await desk.control.name_models()
        assert desk.names == ["small"]

    _at_the_desk(tmp_path, [], body)


def test_an_installation_with_an_alias_is_left_as_it_is(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.start()
        await desk.control.name_models()
        assert desk.names == ["internal-general"]

    _at_the_desk(tmp_path, ["small"], body)


def test_an_alias_that_ops_have_moved_is_never_moved_back(tmp_path):
    async def body(desk):
        await desk.start()
        await desk.assign("small", "large")
        for _ in range(2):
            await desk.control.sync()
            await desk.control.name_models()
        assert desk.aliases.table.current["small"].targets == (Target("large"),)
        assert desk.aliases.table.current["small"].number == 2

    _at_the_desk(tmp_path, ["small"], body)


def test_first_fails_when_the_store_cannot_be_read(tmp_path):
    async def body(desk):
        desk.keys.fault = StoreUnavailable("locked")
        with pytest.raises(StoreUnavailable):
            await desk.start()

    _at_the_desk(tmp_path, [], body)


def test_sync_takes_in_what_others_wrote(tmp_path):
    async def body(desk):
        await desk.start()
        await desk.assign("internal-general", "small")
        await desk.control.sync()
        assert desk.names == ["internal-general"]
        assert desk.keys.refreshed == 2

    _at_the_desk(tmp_path, [], body)


def test_a_store_that_is_gone_is_reported_when_it_goes_and_when_it_comes_back(tmp_path):
    async def body(desk):
        await desk.start()
        for fault in (None, StoreUnavailable("locked"), StoreUnavailable("locked"), None, None):
            desk.keys.fault = fault
            await desk.control.sync()
        assert desk.said == ["state store: locked; serving what is cached", "state store: back"]
        desk.keys.fault = StoreUnavailable("state store Redis h:1/0 cannot be reached.")
        await desk.control.sync()
        assert desk.said[2:] == ["state store Redis h:1/0 cannot be reached; serving what is cached"]
        desk.keys.fault = None
        await desk.control.sync()
        desk.keys.fault = StoreUnavailable("full")
        await desk.control.sync()
        assert len(desk.said) == 5

    _at_the_desk(tmp_path, [], body)


def test_what_sync_does_not_expect_goes_on_to_the_supervisor(tmp_path):
    async def body(desk):
        desk.keys.fault = LookupError()
        with pytest.raises(LookupError):
            await desk.control.sync()

    _at_the_desk(tmp_path, [], body)


def test_aliases_that_cannot_be_made_now_are_made_later(tmp_path):
    async def body(desk):
        writing = desk.store.assign_alias

        async def refuses(*_, **__):
            raise StoreUnavailable("full")

        desk.store.assign_alias = refuses
        await desk.start()
        assert desk.names == []
        assert desk.said[-1] == "cannot make aliases: full"
        desk.store.assign_alias = writing
        await desk.control.name_models()
        assert desk.names == ["small"]

    _at_the_desk(tmp_path, ["small"], body)


def test_a_word_of_a_change_is_followed_at_once(tmp_path):
    class Telling:
        """Tells of one change, once asked for the first."""

        async def changes(self):
            yield

    async def body(desk):
        await desk.start()
        await desk.assign("internal-general", "small")
        await desk.control.follow(Telling())
        assert desk.names == ["internal-general"]

    _at_the_desk(tmp_path, [], body)


def test_of_two_readings_at_once_the_older_is_never_the_last_to_be_taken_in(tmp_path):
    async def body(desk):
        await desk.start()
        for model in ("one", "two", "three"):
            readings = [asyncio.ensure_future(desk.control.reload()) for _ in range(3)]
            revision = await desk.assign("internal-general", model)
            await asyncio.gather(desk.control.reload(), *readings)
            assert desk.aliases.table.current["internal-general"] == revision

    _at_the_desk(tmp_path, [], body)


def test_without_its_store_an_instance_starts_by_the_table_that_it_kept_and_says_so(tmp_path):
    async def body(desk):
        await desk.assign("internal-general", "small")
        await desk.store.drain_engine("http://127.0.0.1:8001", draining=True, author="ops", at=1.0)
        await desk.start()
        await desk.control.keep()
        kept = desk.aliases.table

        again = Desk(desk.store, desk.listed, tmp_path)
        again.keys.fault = StoreUnavailable("frozen")
        await again.start()
        assert again.aliases.table == kept
        assert again.aliases.degraded
        assert again.obeyed[-1].engines["http://127.0.0.1:8001"].draining  # a drain holds through such a start
        assert "frozen; started without it" in again.said[0]
        await again.control.sync()
        again.keys.fault = None
        await again.control.sync()
        assert (again.aliases.degraded, again.verified) == (False, 1)
        assert again.said[-1] == "state store: back"

    _at_the_desk(tmp_path, ["small"], body)


def test_the_store_is_verified_once_before_anything_of_it_is_believed(tmp_path):
    async def body(desk):
        await desk.start()
        await desk.control.sync()
        assert desk.verified == 1

    _at_the_desk(tmp_path, [], body)


def test_a_table_is_kept_when_it_has_changed_and_a_disk_that_refuses_is_reported_once(tmp_path):
    async def body(desk):
        await desk.start()
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

    _at_the_desk(tmp_path, [], body)


# --- orders about engines


def test_what_was_ordered_before_the_start_is_obeyed_before_anything_listens(tmp_path):
    async def body(desk):
        await desk.drain(note="why")
        await desk.control.first()
        (orders,) = desk.obeyed
        assert orders.engines == {ENGINE: EngineOrder(ENGINE, draining=True, author="ops", at=5.0, note="why")}

    _at_the_desk(tmp_path, [], body)


def test_orders_are_told_when_they_change_and_only_then(tmp_path):
    async def body(desk):
        await desk.control.first()
        before = len(desk.obeyed)
        for _ in range(3):
            await desk.control.sync()
        assert len(desk.obeyed) == before
        await desk.drain()
        await desk.control.sync()
        await desk.control.sync()
        assert [bool(orders.engines) for orders in desk.obeyed[before:]] == [True]
        await desk.drain(draining=False)
        await desk.control.reload()
        assert not any(order.draining for order in desk.obeyed[-1].engines.values())
        assert desk.said == []

    _at_the_desk(tmp_path, [], body)


def test_while_the_store_is_gone_the_orders_last_known_stand(tmp_path):
    async def body(desk):
        await desk.drain()
        await desk.control.first()
        before = len(desk.obeyed)
        await desk.drain(draining=False)
        desk.keys.fault = StoreUnavailable("locked")
        await desk.control.sync()
        assert len(desk.obeyed) == before
        desk.keys.fault = None
        await desk.control.sync()
        assert len(desk.obeyed) == before + 1

    _at_the_desk(tmp_path, [], body)


def test_of_two_readings_at_once_the_newest_orders_are_the_last_to_be_obeyed(tmp_path):
    async def body(desk):
        await desk.control.first()
        for draining in (True, False, True):
            readings = [asyncio.ensure_future(desk.control.reload()) for _ in range(3)]
            await desk.drain(draining=draining)
            await asyncio.gather(desk.control.reload(), *readings)
            assert desk.obeyed[-1] == await desk.store.engine_orders()

    _at_the_desk(tmp_path, [], body)
