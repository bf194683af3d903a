import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from loadtests.bench.__main__ import app

COMMAND = [sys.executable, "-m", "loadtests.bench", "--target", "direct", "--repeat", "1", "--seconds", "0.5"]


def test_a_short_direct_run_gives_json_without_errors() -> None:
    arguments = ["--scenario", "stream", "--requests", "300", "--json", "-"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["errors"] == 0
    assert document["unavailable"] == {}
    rows = {row["scenario"]: row for row in document["results"]}
    assert list(rows) == ["chat", "stream"]
    assert rows["chat"]["requests"] == 300
    assert rows["chat"]["median"]["rss_mb"] > 1
    assert rows["chat"]["median"]["p50_ms"] > 0
    assert rows["stream"]["median"]["ttft_p50_ms"] < rows["stream"]["median"]["p50_ms"]
    assert "chat 1/1 direct" in done.stderr, "progress goes to standard error"
    assert "| direct" in done.stderr, "and so do the tables when standard output carries the JSON"


def test_a_name_that_is_not_known_is_a_usage_error() -> None:
    for arguments in (["--scenario", "chatt"], ["--target", "haproxy"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "chat-1" in result.output or "vllm-router" in result.output


def test_a_bench_that_is_told_to_stop_leaves_no_process_behind(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*COMMAND[:-1], "30", "--scenario", "chat-1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as bench:
        assert bench.stderr is not None
        assert "starting direct" in bench.stderr.readline()
        bench.send_signal(signal.SIGTERM)
        bench.communicate(timeout=30)
    assert bench.returncode != 0
    assert list(tmp_path.iterdir()) == [], "the temporary folder is gone"
    until = time.monotonic() + 5
    while left := [path for path in Path("/proc").glob("[0-9]*/cwd") if is_below(path, tmp_path)]:
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.01)


def is_below(link: Path, folder: Path) -> bool:
    try:
        return str(link.readlink()).startswith(str(folder))
    except OSError:
        return False
