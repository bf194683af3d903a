import os
import sys
import time
from pathlib import Path

import pytest

from loadtests.bench import procs
from loadtests.bench.procs import Process, StartFailed, Stat
from loadtests.vllm.engine import held_port

LINE = (
    "4242 (odd) name (x)) S 17 4242 4242 0 -1 4194560 900 800 0 0 "
    "31 7 5 3 20 0 9 0 12345 1000000 2048 18446744073709551615 1 1 0 0 0\n"
)


def test_a_stat_line_is_read_behind_the_last_bracket_of_the_command_name() -> None:
    assert procs.parse_stat(LINE) == Stat(pid=4242, parent=17, ticks=31 + 7 + 5 + 3, pages=2048)


def test_our_own_stat_line_is_read() -> None:
    stat = procs.parse_stat(Path("/proc/self/stat").read_text())
    assert stat.pid == os.getpid()
    assert stat.parent == os.getppid()
    assert stat.pages > 0


def test_a_tree_holds_descendants_of_every_depth_and_nobody_else() -> None:
    stats = [Stat(pid, parent, 1, 1) for pid, parent in [(9, 5), (5, 2), (2, 1), (3, 1), (1, 0), (8, 3)]]
    assert {stat.pid for stat in procs.tree(2, stats)} == {2, 5, 9}
    assert procs.tree(77, stats) == []


@pytest.mark.parametrize(
    ("available", "target", "engine", "load", "noted"),
    [
        ({4}, frozenset({4}), frozenset({4}), frozenset({4}), True),
        ({0, 1}, frozenset({0}), frozenset({1}), frozenset({1}), False),
        ({7, 3, 5, 9}, frozenset({3}), frozenset({5}), frozenset({7, 9}), False),
    ],
)
def test_the_target_has_a_core_to_itself_where_there_are_two(
    available: set[int], target: frozenset[int], engine: frozenset[int], load: frozenset[int], noted: bool
) -> None:
    cores = procs.layout(available)
    assert (cores.target, cores.engine, cores.load) == (target, engine, load)
    assert bool(cores.note) is noted


def script(tmp_path: Path, text: str, *, talk: bool = True) -> Process:
    core = frozenset({min(os.sched_getaffinity(0))})
    return Process("script", [sys.executable, "-c", text], tmp_path, core, talk=talk)


def test_a_process_runs_on_its_core_and_its_cpu_time_is_counted(tmp_path: Path) -> None:
    burn = "import os,time\nwhile time.process_time() < 0.1: pass\nprint(*os.sched_getaffinity(0), flush=True)\ninput()"
    with script(tmp_path, burn) as process:
        assert process.hear() == f"{min(os.sched_getaffinity(0))}\n"
        used = procs.usage(process.pid)
    assert used.cpu_seconds >= 0.09
    assert used.rss_bytes > 1_000_000


def test_closing_twice_is_harmless_and_ends_children_too(tmp_path: Path) -> None:
    parent = (
        "import subprocess,sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()"
    )
    process = script(tmp_path, parent)
    child = int(process.hear())
    process.close()
    process.close()
    until = time.monotonic() + 5
    while (state := state_of(child)) not in ("", "Z"):
        assert time.monotonic() < until, f"the child is still there, in state {state}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    dies = script(tmp_path, "import sys; sys.exit('no licence')", talk=False)
    with dies as process, pytest.raises(StartFailed, match="ended with code 1: no licence"):
        process.wait_until_ready("http://127.0.0.1:9/health", 10)


def test_a_process_that_never_answers_is_given_up(tmp_path: Path) -> None:
    url = "http://127.0.0.1:{}/"
    with (
        held_port() as held,
        script(tmp_path, "input()") as process,
        pytest.raises(StartFailed, match="not ready after 0 s"),
    ):
        process.wait_until_ready(url.format(held.getsockname()[1]), 0.1)
