"""``gateway serve`` as a process: signals, the greeting, the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from shlex import quote

import uvloop

from gateway.app import Gateway
from gateway.control import Report
from gateway.core import Records
from gateway.process import harden_process, tune_allocator, tune_collector
from gateway.settings import Settings, default_state, is_redis, open_to_readers, sqlite_path, state_folder_of
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
    loop.add_signal_handler(signal.SIGHUP, gateway.reload_policies)  # from here on none ends the process
    await gateway.start()
    try:
        tune_collector()
        for line in _greeting(gateway, env):
            report(line)
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


def _greeting(gateway: Gateway, env: Mapping[str, str]) -> list[str]:
    settings = gateway.settings
    folder = settings.state_folder
    lines = [
        f"inference: {gateway.url}/v1   (base_url of an OpenAI client)",
        f"admin:     {gateway.admin_url}   token in {folder / 'admin-token'}, metrics at /metrics",
    ]
    lines.extend(open_to_readers(settings))
    if not gateway.core.registry.replicas:
        lines.append("no engines yet: gateway fleet add http://127.0.0.1:8000, or start again with --engine")
    lines.append(f"first key: {finder(settings, env)}gateway keys create NAME")
    return lines


def finder(settings: Settings, env: Mapping[str, str]) -> str:
    """What has to stand before a command for it to find this gateway: nothing where its state is the usual one."""
    folder = settings.state_folder
    if folder == state_folder_of(env.get("GATEWAY_STATE") or default_state(env), env):
        return ""
    if not is_redis(settings.state) and folder == sqlite_path(settings.state).parent:
        return f"GATEWAY_STATE={quote(settings.state)} "
    return f"GATEWAY_STATE_FOLDER={quote(str(folder))} "
