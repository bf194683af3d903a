"""What the suite runs against: the simulated engine always, a real vLLM with ``-m vllm``, both behind one interface."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import threading
import time

import httpx
import pytest

from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.signals import read_signals
from loadtests.bench.procs import answers
from loadtests.engine.server import SimulatedEngine
from loadtests.vllm.engine import RealEngine
from loadtests.vllm.install import default_installation
from tests.conftest import COLD, UNBOUNDED

ALIAS, SERVED = "internal-general", "internal-general-v3"
PATIENCE = 20.0
FLAGS = (
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--shutdown-timeout", "60",
    "--max-num-batched-tokens", "128", "--enable-log-requests",
)  # fmt: skip
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)
_ANSWERED = re.compile(r'^http_requests_total\{handler="([^"]*)",method="POST",status="(\dxx)"\} (\S+)$', re.MULTILINE)
_RECEIVED = re.compile(r"Received request (?:chat)?cmpl-(\S+): ")


class Target:
    """An engine under test. ``stall`` freezes what computes, ``kill`` ends that at once, ``kill_all`` the server too,
    and ``drain`` is SIGTERM. ``revive`` starts another one at the same port.

    How fast an engine computes is the host's: 0.3 to 14 ms a token were seen. A test that needs a request to be still
    running while it does something else does that under ``slowed`` or ``stall``, one that looks at single steps under
    ``stepped``.
    """

    kind = ""
    url = ""

    def _page(self):
        # Without verify it does not load certificates, which would take longer than the scrape.
        with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE) as http:
            return http.get(f"{self.url}/metrics")

    def gauges(self):
        """(running, waiting), as /metrics says."""
        found = {name: int(float(value)) for name, value in _GAUGE.findall(self._page().text)}
        return found["running"], found["waiting"]

    def signals(self):
        """What the gateway reads out of /metrics, by signal."""
        return read_signals(VLLM, self._page().content).values

    def answered(self, path, status):
        """How many requests the server has answered on a route with a status like ``5xx``, by its own count."""
        found = {(handler, kind): int(float(count)) for handler, kind, count in _ANSWERED.findall(self._page().text)}
        return found.get((path, status), 0)

    def received(self):
        """The ids of the inferences that were asked of it, in their order."""
        raise NotImplementedError

    @property
    def healthy(self):
        """Whether /health says 200."""
        return answers(f"{self.url}/health")

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])


class Simulated(Target):
    kind = "simulated"

    def __init__(self, site):
        self._site = site
        self._engine = site.engine(
            model=SERVED, max_model_len=2048, max_num_seqs=4, kv_blocks=64, block_size=128, step_time=0.004,
            drain_linger=0.1, max_num_batched_tokens=128, prefill_tokens_per_second=4000, quiet_prefill=True,
        )  # fmt: skip
        self._ending = None
        self.url = self._engine.url

    def received(self):
        asked = [each for each in list(self._engine.requests) if each.method == "POST"]
        return [(each.header(b"x-request-id") or b"").decode() for each in asked]

    async def _stall(self, on):
        (self._engine.faults.set if on else self._engine.faults.clear)("health_ok_generation_hangs")

    @contextlib.contextmanager
    def slowed(self):
        yield

    @contextlib.contextmanager
    def stepped(self):
        yield lambda moved: None

    def stall(self):
        self._site.run(self._stall(True))

    def resume(self):
        self._site.run(self._stall(False))

    def kill(self):
        async def end():
            self._engine.fail_in_flight()
            await self._engine.close()

        self._site.run(end())

    def kill_all(self):
        self._site.run(self._engine.close())

    def revive(self):
        self._engine = SimulatedEngine(self._engine.spec)
        self._site.run(self._engine.start(port=self.port))

    def close(self):
        self._site.run(self._engine.close())

    def drain(self):
        async def begin():
            self._ending = asyncio.create_task(self._engine.shutdown(20))

        self._site.run(begin())


class Real(Target):
    kind = "vllm"

    def __init__(self, folder):
        self._folder = folder
        self._start(0)
        self.url = self.engine.url

    def _start(self, port):
        # It has a limit of its own. On a busy host it takes longer than a test that hangs is given.
        faulthandler.cancel_dump_traceback_later()
        self.engine = RealEngine.start(default_installation(), self._folder, *FLAGS, model=SERVED, port=port)

    def received(self):
        return _RECEIVED.findall(self.engine.log.read_text(errors="replace"))

    @contextlib.contextmanager
    def slowed(self):
        """Computes only a tenth of the time, by SIGSTOP and SIGCONT."""
        pid, over = self.engine.engine_core_pid, threading.Event()

        def pulse():
            with contextlib.suppress(ProcessLookupError):
                while not over.is_set():
                    os.kill(pid, signal.SIGSTOP)
                    over.wait(0.09)
                    os.kill(pid, signal.SIGCONT)
                    over.wait(0.01)

        pulsing = threading.Thread(target=pulse, name="slowed")
        pulsing.start()
        try:
            yield
        finally:
            over.set()
            pulsing.join()

    @contextlib.contextmanager
    def stepped(self):
        """Computes only in calls of the function that this gives, each a few steps at most on any host: they grow
        while they move nothing, and begin anew with 0.1 ms when told that the last one has."""
        pulse = 0.0

        def step(moved):
            nonlocal pulse
            pulse = 1e-4 if moved else min(2 * pulse, 0.02)
            self.resume()
            time.sleep(pulse)
            self.stall()

        self.stall()
        try:
            yield step
        finally:
            self.resume()

    def stall(self):
        os.kill(self.engine.engine_core_pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.engine.engine_core_pid, signal.SIGCONT)

    def kill(self):
        os.kill(self.engine.engine_core_pid, signal.SIGKILL)

    def kill_all(self):
        with contextlib.suppress(ProcessLookupError):  # a server whose engine is dead ends by itself
            os.killpg(self.engine.pid, signal.SIGKILL)

    def revive(self):
        port = self.port
        self.engine.close()
        self._start(port)

    def drain(self):
        os.kill(self.engine.pid, signal.SIGTERM)


class Garage:
    """Real engines take half a minute to start: one is shared by all tests, and given to the first that ends it."""

    def __init__(self, new_folder):
        self._new_folder = new_folder
        self._shared = None
        self._all = []

    def shared(self):
        if self._shared is None:
            self._shared = Real(self._new_folder("vllm"))
            self._all.append(self._shared)
        return self._shared

    def to_end(self):
        given = self.shared()
        self._shared = None
        return given

    def take_back(self, real):
        """One that was given to be ended, and was started again."""
        self._shared = real

    def close(self):
        for real in self._all:
            real.engine.close()


@pytest.fixture(scope="session")
def garage(tmp_path_factory):
    garage = Garage(tmp_path_factory.mktemp)
    yield garage
    garage.close()


@pytest.fixture(scope="module", params=["simulated", pytest.param("vllm", marks=pytest.mark.vllm)])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def target(kind, shared_site, garage):
    """An engine that tests leave as they found it."""
    return Simulated(shared_site) if kind == "simulated" else garage.shared()


def pytest_collection_modifyitems(items):
    """Tests that end their engine come last, those that start it again before the others: the first of them then ends
    the one that all others shared."""
    items.sort(key=lambda item: ("doomed" in item.fixturenames, "returning" in item.fixturenames))


@pytest.fixture
def doomed(kind, shared_site, garage):
    """An engine that the test ends."""
    return Simulated(shared_site) if kind == "simulated" else garage.to_end()


@pytest.fixture
def returning(kind, shared_site, garage):
    """An engine that the test ends and starts again."""
    if kind == "simulated":
        simulated = Simulated(shared_site)
        yield simulated
        simulated.close()
        return
    real = garage.to_end()
    yield real
    if real.healthy:
        garage.take_back(real)


@pytest.fixture
def spare(shared_site):
    """A simulated replica of the same served model. ``spare.switch(False)`` closes its port."""
    engine = shared_site.engine(model=SERVED, step_time=0.001)

    async def switch(on):
        (engine.faults.clear if on else engine.faults.set)("refuse")

    engine.switch = lambda on: shared_site.run(switch(on))
    return engine


@pytest.fixture(scope="module")
def new_gateway(shared_site):
    """A gateway in front of engines, with the alias, and a key for it in ``gateway.bearer``."""

    def make(*engines, ready=1, **flags):
        flags.setdefault("policies", shared_site.routing(warmup=COLD, admission=UNBOUNDED))
        gateway = shared_site.gateway(engines, **flags)
        gateway.wait_ready(SERVED, ready)
        gateway.alias(ALIAS, SERVED)
        gateway.bearer = {"authorization": f"Bearer {gateway.key('app', aliases=(ALIAS,))}"}
        return gateway

    return make


@pytest.fixture(scope="module")
def gateway(target, new_gateway):
    return new_gateway(target.url)


class Call:
    """One chat, read in a task of its own; ``lines`` grow as they come. ``leave`` closes the connection."""

    def __init__(self, http, tokens, stream):
        self.status = None
        self.request_id = None
        self.retry_after = None
        self.lines = []
        self._body = {
            "model": ALIAS, "messages": [{"role": "user", "content": "hello world"}], "temperature": 0,
            "max_tokens": tokens, "ignore_eos": True, "stream": stream,
        }  # fmt: skip
        self.task = asyncio.create_task(self._read(http))

    async def _read(self, http):
        async with http.stream("POST", "/v1/chat/completions", json=self._body) as answer:
            self.status, self.request_id = answer.status_code, answer.headers["x-request-id"]
            self.retry_after = answer.headers.get("retry-after")
            async for line in answer.aiter_lines():
                if line:
                    self.lines.append(line)
        return self

    async def leave(self):
        self.task.cancel()
        await asyncio.wait([self.task])


class Caller:
    """Calls a gateway. ``until`` waits for a condition."""

    def __init__(self, http):
        self._http = http

    def chat(self, tokens=4, stream=False):
        return Call(self._http, tokens, stream)

    async def gauges(self, target, running, waiting):
        """Wait until the engine says that so many requests run and wait."""
        seen = []

        def reached():
            seen.append(target.gauges())
            return seen[-1] == (running, waiting)

        await self.until(reached, lambda: f"{(running, waiting)} running and waiting, last {seen[-1]}")

    async def at(self, engine, path, body):
        """Ask an engine, past any gateway."""
        return await self._http.post(f"{engine}{path}", json=body)

    async def until(self, condition, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {patience} s for: {what() if callable(what) else what}")
            await asyncio.sleep(0.02)


@pytest.fixture
def talk():
    """Run ``use(caller)`` with a caller of a gateway."""

    def run(gateway, use):
        async def body():
            async with httpx.AsyncClient(
                base_url=gateway.url, headers=gateway.bearer, trust_env=False, timeout=60
            ) as http:
                return await use(Caller(http))

        return asyncio.run(body())

    return run


@pytest.fixture
def http(gateway):
    with httpx.Client(base_url=gateway.url, headers=gateway.bearer, trust_env=False, timeout=60) as http:
        yield http
