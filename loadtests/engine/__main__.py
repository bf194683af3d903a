"""The command line of the simulated engine: `python -m loadtests.engine --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys

import uvloop

from loadtests.engine.faults import FAULTS, UnknownFault
from loadtests.engine.persona import PERSONAS
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import TASKS, EngineSpec

_EPILOG = """
When it listens, one JSON line comes on stdout: {"url": ..., "port": ..., "pid": ...}.
SIGTERM does what it does to vLLM: everything in flight fails at once; with --shutdown-timeout it drains instead.
As SGLang it serves on until nothing is left.

examples:
  python -m loadtests.engine --port 8001 --model internal-general-v3
  python -m loadtests.engine --instant                    no simulated delay, for benchmarks of what is before it
  python -m loadtests.engine --max-num-seqs 4 --step-time 0.02 --prefill-tokens-per-second 8000
  python -m loadtests.engine --persona sglang --max-queued-requests 2
  python -m loadtests.engine --cold-factor 60 --cold-requests 3
  python -m loadtests.engine --fault reset_mid_stream:after_events=2 --fault health_slow

control while it runs:
  curl -X POST http://127.0.0.1:PORT/sim/faults -d '{"name":"stall_mid_stream","after_events":3,"count":1}'
  curl -X DELETE http://127.0.0.1:PORT/sim/faults
  curl http://127.0.0.1:PORT/sim/state

faults:
"""


def parser() -> argparse.ArgumentParser:
    """The options and their help."""
    menu = "\n".join(f"  {name:28}{fault.meaning}" for name, fault in FAULTS.items())
    made = argparse.ArgumentParser(
        prog="python -m loadtests.engine",
        description="Plays vLLM 0.32.0 or SGLang 0.5.23 on the wire, with a modelled scheduler and a fault menu.",
        epilog=_EPILOG + menu,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = EngineSpec()
    add = made.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=0, help="0: a free one (default)")
    add("--persona", choices=PERSONAS, default=default.persona, help="which server it plays (default %(default)s)")
    add("--model", default=default.model, help="served model name (default %(default)s)")
    add("--more-models", nargs="*", default=[], help="further served names")
    add("--tasks", nargs="+", default=["generate"], choices=sorted(TASKS), help="families of routes that answer")
    add("--max-model-len", type=int, default=default.max_model_len, help="tokens (default %(default)s)")
    add("--max-num-seqs", type=int, default=default.max_num_seqs, help="batch limit (default %(default)s)")
    add(
        "--max-num-queued-reqs", "--max-queued-requests", type=int, default=None,
        help="refuse beyond so many: vLLM's option counts running and waiting, SGLang's waiting (default: none)",
    )  # fmt: skip
    add("--kv-blocks", type=int, default=default.kv_blocks, help="(default %(default)s)")
    add("--block-size", type=int, default=default.block_size, help="tokens in a block (default %(default)s)")
    add("--no-prefix-caching", action="store_true")
    add("--prefill-tokens-per-second", type=float, default=default.prefill_tokens_per_second, help="0: prefill is free")
    add("--step-time", type=float, default=default.step_time, help="seconds of a decode step (default %(default)s)")
    add("--step-time-per-sequence", type=float, default=0.0, help="seconds more for each further sequence")
    add("--instant", action="store_true", help="step time 0 and prefill free: no timers")
    add("--cold-start-penalty", type=float, default=0.0, help="seconds added to the first step")
    add("--cold-factor", type=float, default=1.0, help="steps take so many times as long while the engine is cold")
    add("--cold-requests", type=int, default=0, help="requests that have to finish before it is warm")
    add("--startup-time", type=float, default=0.0, help="seconds before it is up")
    add("--quiet-prefill", action="store_true", help="steps without a token do not count in iteration_tokens_total")
    add("--mean-output-tokens", type=int, default=default.mean_output_tokens, help="of requests without a limit")
    add("--tokens-per-event", type=int, default=1, help="tokens in one stream event")
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    add("--no-tool-parser", action="store_true", help="refuse tool choices, as vLLM without its two flags")
    add("--enable-prompt-tokens-details", action="store_true")
    add("--enable-request-id-headers", action="store_true")
    add("--enable-server-load-tracking", action="store_true")
    add("--sse-keep-alive-interval", type=float, default=0.0, help="seconds; 0: none")
    add("--api-key", default=None)
    add("--shutdown-timeout", type=float, default=0.0, help="seconds that SIGTERM lets running requests finish in")
    add("--drain-linger", type=float, default=default.drain_linger, help="seconds from the drain's end to the exit")
    add(
        "--fault", action="append", default=[], metavar="NAME[:KEY=VALUE,...]", help="a fault that is on from the start"
    )
    add("--seed", type=int, default=0, help="of ids (default %(default)s)")
    return made


def spec_of(options: argparse.Namespace) -> EngineSpec:
    """The spec that the options describe; raises ValueError when they contradict each other."""
    return EngineSpec(
        persona=options.persona,
        model=options.model,
        more_models=tuple(options.more_models),
        tasks=frozenset(options.tasks),
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_queued_requests=options.max_num_queued_reqs,
        kv_blocks=options.kv_blocks,
        block_size=options.block_size,
        prefix_caching=not options.no_prefix_caching,
        prefill_tokens_per_second=0.0 if options.instant else options.prefill_tokens_per_second,
        step_time=0.0 if options.instant else options.step_time,
        step_time_per_sequence=options.step_time_per_sequence,
        cold_factor=options.cold_factor,
        cold_requests=options.cold_requests,
        startup_time=options.startup_time,
        quiet_prefill=options.quiet_prefill,
        cold_start_penalty=options.cold_start_penalty,
        mean_output_tokens=options.mean_output_tokens,
        tokens_per_event=options.tokens_per_event,
        scheduling_policy=options.scheduling_policy,
        tool_parser=not options.no_tool_parser,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        request_id_headers=options.enable_request_id_headers,
        server_load_tracking=options.enable_server_load_tracking,
        sse_keep_alive_interval=options.sse_keep_alive_interval,
        api_key=options.api_key,
        drain_linger=options.drain_linger,
        seed=options.seed,
    )


def fault_of(text: str) -> tuple[str, dict[str, object]]:
    """`name:key=value,...` as a name and parameters; values are JSON, or else text."""
    name, _, rest = text.partition(":")
    params: dict[str, object] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            params[key] = json.loads(value)
        except json.JSONDecodeError:
            params[key] = value
    return name, params


async def _serve(engine: SimulatedEngine, options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await engine.start(port=options.port, host=options.host)
    sys.stdout.write(json.dumps({"url": engine.url, "port": engine.port, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await engine.shutdown(options.shutdown_timeout)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 0, or 2 for a mistake in the options."""
    known = parser()
    options = known.parse_args(arguments)
    try:
        engine = SimulatedEngine(spec_of(options))
        for text in options.fault:
            name, params = fault_of(text)
            engine.faults.set(name, **params)  # type: ignore[arg-type]
        uvloop.run(_serve(engine, options))
    except (UnknownFault, ValueError) as mistake:
        known.error(str(mistake))
    except OSError as taken:
        known.error(f"cannot listen on {options.host}:{options.port}: {taken.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
