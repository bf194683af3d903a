"""For tests: an engine that runs for the length of a block, and waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec, instant_spec


@contextlib.asynccontextmanager
async def running_engine(spec: EngineSpec | None = None) -> AsyncIterator[SimulatedEngine]:
    """An engine on a free port, closed at the end; without a spec it answers with no delay."""
    engine = SimulatedEngine(spec or instant_spec())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def with_engine(check: Callable[[SimulatedEngine], Awaitable[None]], spec: EngineSpec | None = None) -> None:
    """Run `check` with a running engine, on an event loop of its own."""

    async def body() -> None:
        async with running_engine(spec) as engine:
            await check(engine)

    asyncio.run(body())


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return as soon as `condition` holds; raises TimeoutError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true in time")
        await asyncio.sleep(0.001)
