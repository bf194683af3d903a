"""What the suite runs against: the simulated engine always, a real vLLM with ``-m vllm``, both behind one interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import threading
import time

import httpx
import pytest

from loadtests.vllm.engine import RealEngine
from loadtests.vllm.install import default_installation

ALIAS, SERVED = "internal-general", "internal-general-v3"
PATIENCE = 20.0
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--shutdown-timeout", "60")
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)


class Target:
    """An engine under test. ``stall`` freezes what computes, ``kill`` ends it at once, ``drain`` is SIGTERM.

    How fast an engine computes is the host's: 0.3 to 14 ms a token were seen. A test that needs a request to be still
    running while it does something else does that under ``slowed`` or ``stall``.
    """

    kind = ""
    url = ""

    def gauges(self):
        """(running, waiting), as /metrics says."""
        # Without verify it does not load certificates, which would take longer than the scrape.
        with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE) as http:
            text = http.get(f"{self.url}/metrics").text
        found = {name: int(float(value)) for name, value in _GAUGE.findall(text)}
        return found["running"], found["waiting"]

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])


class Simulated(Target):
    kind = "simulated"

    def __init__(self, site):
        self._site = site
        self._engine = site.engine(
            model=SERVED, max_model_len=2048, max_num_seqs=4, kv_blocks=64, block_size=128, step_time=0.004,
            drain_linger=0.1,
        )  # fmt: skip
        self._ending = None
        self.url = self._engine.url

    async def _stall(self, on):
        (self._engine.faults.set if on else self._engine.faults.clear)("health_ok_generation_hangs")

    @contextlib.contextmanager
    def slowed(self):
        yield

    def stall(self):
        self._site.run(self._stall(True))

    def resume(self):
        self._site.run(self._stall(False))

    def kill(self):
        async def end():
            self._engine.fail_in_flight()
            await self._engine.close()

        self._site.run(end())

    def drain(self):
        async def begin():
            self._ending = asyncio.create_task(self._engine.shutdown(20))

        self._site.run(begin())


class Real(Target):
    kind = "vllm"

    def __init__(self, folder):
        self.engine = RealEngine.start(default_installation(), folder, *FLAGS, model=SERVED)
        self.url = self.engine.url

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

    def stall(self):
        os.kill(self.engine.engine_core_pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.engine.engine_core_pid, signal.SIGCONT)

    def kill(self):
        os.kill(self.engine.engine_core_pid, signal.SIGKILL)

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
    """Tests that end their engine come last: the first of them then ends the one that all others shared."""
    items.sort(key=lambda item: "doomed" in item.fixturenames)


@pytest.fixture
def doomed(kind, shared_site, garage):
    """An engine that the test ends."""
    return Simulated(shared_site) if kind == "simulated" else garage.to_end()


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
        self.lines = []
        self._body = {
            "model": ALIAS, "messages": [{"role": "user", "content": "hello world"}], "temperature": 0,
            "max_tokens": tokens, "ignore_eos": True, "stream": stream,
        }  # fmt: skip
        self.task = asyncio.create_task(self._read(http))

    async def _read(self, http):
        async with http.stream("POST", "/v1/chat/completions", json=self._body) as answer:
            self.status, self.request_id = answer.status_code, answer.headers["x-request-id"]
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

    async def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {PATIENCE} s for: {what() if callable(what) else what}")
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
