"""``gateway serve`` as a process: signals, the greeting, the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping

import uvloop

from gateway.app import Gateway
from gateway.control import Report
from gateway.core import Records
from gateway.process import harden_process, tune_allocator, tune_collector
from gateway.settings import Settings, open_to_readers
from gateway.telemetry.log import LineWriter


def serve(settings: Settings, env: Mapping[str, str], report: Report) -> int:
    """Run one instance until SIGTERM or SIGINT; the exit code. Raises what ``Gateway.start`` raises."""
    harden_process()
    tune_allocator()
    records = LineWriter(sys.stdout.buffer)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, env, report, records))
    finally:
        records.close()


async def _run(settings: Settings, env: Mapping[str, str], report: Report, records: Records) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(settings, env, report, records)
    await gateway.start()
    try:
        tune_collector()
        for line in _greeting(gateway):
            report(line)
        loop.add_signal_handler(signal.SIGHUP, gateway.reload_policies)
        failed = gateway.core.supervisor.failed
        failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if failed.done():
            report(f"a control loop failed ({type(failed.result()).__name__}); stopping")
        report("stopping: finishing what is in hand")
        await gateway.drain()
        return 1 if failed.done() else 0
    finally:
        await gateway.close()


def _greeting(gateway: Gateway) -> list[str]:
    settings = gateway.settings
    folder = settings.state_folder
    lines = [
        f"inference: {gateway.url}/v1   (base_url of an OpenAI client)",
        f"admin:     {gateway.admin_url}   token in {folder / 'admin-token'}, metrics at /metrics",
    ]
    lines.extend(open_to_readers(settings))
    if not settings.engines:
        lines.append("no engines: start again with --engine http://127.0.0.1:8000")
    lines.append("first key: gateway keys create NAME")
    return lines
