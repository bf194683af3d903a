"""A site for tests: simulated engines and whole gateways, real servers on loopback, on one loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from gateway.app import Gateway
from gateway.identity.keys import Digester, new_key
from gateway.model import Target
from gateway.settings import load_settings
from gateway.stores.interfaces import KeyRecord, KeySecret
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec

T = TypeVar("T")
PATIENCE = 10.0
COLD = {"shapes": [], "slow_start": 0}
"""A warmup policy that warms nothing up."""
UNBOUNDED = {"in_flight": 1_000_000}
"""An admission policy by which engines get all at once: what they do with more than they can hold can be seen then."""


def wait_until(condition: Callable[[], object], what: str = "condition", patience: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true, with a limit."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience} s for: {what}")
        time.sleep(0.002)


class Records:
    """Keeps request records in memory."""

    def __init__(self) -> None:
        self.dropped = 0
        self.lines: list[dict[str, Any]] = []

    def write(self, record: dict[str, Any]) -> None:
        self.lines.append(record)

    def last(self, **wanted: Any) -> dict[str, Any]:
        """The newest record with these values, waited for."""

        def found() -> list[dict[str, Any]]:
            return [r for r in self.lines if all(r[k] == v for k, v in wanted.items())]

        wait_until(found, f"a record with {wanted}")
        return found()[-1]


class RunningGateway:
    """A gateway of the site, from outside and, where a test needs it, from inside (``core``)."""

    def __init__(self, site: Site, gateway: Gateway, records: Records, reports: list[str]) -> None:
        self.site = site
        self.gateway = gateway
        self.records = records
        self.reports = reports

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def admin_url(self) -> str:
        return self.gateway.admin_url

    @property
    def base_url(self) -> str:
        return self.gateway.url + "/v1"

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.gateway.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def key(self, name: str = "app", **fields: Any) -> str:
        """A new key, straight into the store."""
        return self.site.run(self._key(name, **fields))

    async def _key(self, name: str, **fields: Any) -> str:
        core = self.gateway.core
        made = new_key("test", secrets.SystemRandom())
        now = time.time()
        values = {"tenant": "default", "roles": (), "aliases": ("*",), "secrets": (KeySecret(now),), **fields}
        record = KeyRecord(id=made.id, name=name, created_at=now, **values)
        digest = Digester(core.held.pepper.reveal().encode())(made.text.reveal())
        await core.store.add_key(digest, record, author="test")
        return made.text.reveal()

    def alias(self, name: str, *models: str) -> None:
        """Assign an alias and take it in."""

        async def assign() -> None:
            core = self.gateway.core
            await core.store.assign_alias(name, [Target(m) for m in models], author="test", at=time.time())
            await core.aliases.refresh()

        self.site.run(assign())

    def wait_ready(self, model: str, count: int = 1) -> None:
        """Wait until so many replicas are ready for a served model."""
        wait_until(lambda: len(self.gateway.core.registry.ready(model)) >= count, f"{count} ready for {model}")

    def upstream_connections(self) -> int:
        return sum(replica.open_connections for replica in self.gateway.core.registry.replicas)

    def in_flight(self) -> int:
        """Requests that engines have of this gateway."""
        return sum(replica.in_flight for replica in self.gateway.core.registry.replicas)

    def metrics(self) -> str:
        """What a scrape says. It is put together on the loop, which alone may look while metrics are counted."""

        async def render() -> bytes:
            return self.gateway.core.metrics.render()

        return self.site.run(render()).decode()


class Site:
    """Engines and gateways on one event loop in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="site", daemon=True)
        self._thread.start()
        self._closers: list[Callable[[], Coroutine[Any, Any, Any]]] = []
        self._gateways = 0

    def run(self, coroutine: Coroutine[Any, Any, T], patience: float = 30.0) -> T:
        """Run a coroutine on the site's loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(patience)

    def engine(self, **fields: Any) -> SimulatedEngine:
        """A simulated engine, listening."""
        spec = EngineSpec(**{"model": "sim-model", **fields})

        async def start() -> SimulatedEngine:
            engine = SimulatedEngine(spec)
            await engine.start(port=0)
            return engine

        engine = self.run(start())
        self._closers.append(engine.close)
        return engine

    def gateway(
        self,
        engines: Sequence[SimulatedEngine | str] = (),
        *,
        state: str | None = None,
        admin: str = "127.0.0.1:0",
        **flags: Any,
    ) -> RunningGateway:
        """A gateway in front of the engines. ``flags`` are settings by name; timeouts as ``timeouts_idle=...``.

        ``state`` is a state URL that several share; without one it has a file of its own. Engines are not warmed up
        unless the test has a routing policy of its own: most tests count what reaches an engine. Each engine has been
        looked at once, however long a busy machine takes for that, and what it serves has its alias.
        """
        env = {f"GATEWAY_{k.upper()}": str(v) for k, v in flags.items()}
        env["GATEWAY_POLICIES"] = str(self._policies(env.get("GATEWAY_POLICIES")))
        self._gateways += 1
        state = state or f"sqlite://{self._folder / f'gateway-{self._gateways}' / 'state.db'}"
        urls = [e if isinstance(e, str) else e.url for e in engines]
        settings = load_settings(
            {"listen": "127.0.0.1:0", "admin": admin, "state": state, "engines": urls or None},
            {"GATEWAY_PROBE_INTERVAL": "0.1", "GATEWAY_TIMEOUTS_DRAIN": "5", **env},
        )
        records, reports = Records(), []

        async def start() -> Gateway:
            gateway = Gateway(settings, {}, reports.append, records)
            await gateway.start()
            return gateway

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.app._PATIENCE", PATIENCE)
            gateway = self.run(start())
        self._closers.append(gateway.close)
        return RunningGateway(self, gateway, records, reports)

    def routing(self, **sections: Any) -> Path:
        """A policy folder with the defaults of the product and these sections of ``routing.yaml``."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        shutil.copytree(str(files("policies")), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py"))
        (folder / "routing.yaml").write_text(json.dumps(sections))
        return folder

    def _policies(self, given: str | None) -> Path:
        if given is None:
            return self.routing(warmup=COLD)
        routing = Path(given) / "routing.yaml"
        if not routing.exists():
            routing.write_text(json.dumps({"warmup": COLD}))
        return Path(given)

    def close(self) -> None:
        for closer in reversed(self._closers):
            self.run(closer())
        self.run(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    async def _settle(self) -> None:
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        with contextlib.suppress(BaseException):
            await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site of the test's own."""
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for all tests of a module that do not change it."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    """``wait_until`` for tests."""
    return wait_until
