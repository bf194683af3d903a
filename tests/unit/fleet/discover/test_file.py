"""Engines in a file that editors, deployments and accidents change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gateway.fleet.discover.file import FileSource
from gateway.fleet.discover.sources import MAX_ENGINES, DiscoveryFault
from gateway.model import EngineSpec

ONE = "- http://127.0.0.1:8001\n"
TWO = ONE + "- {url: https://gpu7.example, labels: {gpu: a100}}\n"


class Scene:
    """A file and its source. ``between`` runs in each wait between two looks at the file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engines.yaml"
        self.waits = 0
        self.between: Callable[[int], None] = lambda wait: None
        self.source = FileSource(self.path, ("gpu7.example",), self.sleep)

    async def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 1
        self.waits += 1
        self.between(self.waits)

    def look(self) -> Sequence[EngineSpec]:
        return asyncio.run(self.source.look())

    def fault(self) -> str:
        with pytest.raises(DiscoveryFault) as caught:
            self.look()
        return caught.value.reason


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_list_is_read_as_engines_are(scene):
    scene.path.write_text(TWO)
    assert scene.look() == (
        EngineSpec("http://127.0.0.1:8001"),
        EngineSpec("https://gpu7.example:443", {"gpu": "a100"}),
    )
    scene.path.write_text("[]\n")
    assert scene.look() == ()


def test_what_has_not_changed_is_not_read_again_whatever_its_time_says(scene):
    scene.path.write_text(ONE)
    first = scene.look()
    os.utime(scene.path, (0, 0))
    waits = scene.waits
    assert scene.look() is first
    assert scene.waits == waits


def test_a_change_that_keeps_time_and_size_is_seen(scene):
    scene.path.write_text(ONE)
    scene.look()
    before = scene.path.stat()
    scene.path.write_text(ONE.replace("8001", "8002"))
    os.utime(scene.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scene.look() == (EngineSpec("http://127.0.0.1:8002"),)


def test_half_a_file_is_not_believed(scene):
    scene.path.write_text(TWO)
    scene.look()
    scene.path.write_text(ONE)
    scene.between = lambda wait: scene.path.write_text(TWO)
    assert len(scene.look()) == 2


def test_a_file_that_never_stops_changing_is_a_fault(scene):
    scene.path.write_text(ONE)
    scene.between = lambda wait: scene.path.write_text(ONE + "#" * wait)
    assert "does not stop changing" in scene.fault()
    assert scene.waits == 4


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "engines.yaml:1: expected a list of engines; [] for none"),
        (b"# nothing\n", "expected a list of engines"),
        (b"engines: []\n", "expected a list of engines"),
        (b"http://127.0.0.1:1, http://127.0.0.1:2\n", "expected a list of engines"),
        (b"- http://10.0.0.1:1\n", "engines.yaml:1: expected a loopback host"),
        (b"- https://gpu8.example\n", "to be listed in remote_engines"),
        (b"- http://127.0.0.1:1\n- http://127.0.0.1:1/\n", "engines.yaml:2: expected each URL only once"),
        (b"- url: http://user:CANARY@127.0.0.1:1\n", "without user"),
        (b"- {url: http://127.0.0.1:1, key: CANARY}\n", "only url and labels"),
        (b"- [CANARY\n", "expected YAML"),
        (b"- \xff\n", "expected UTF-8"),
        (b"- &a http://127.0.0.1:1\n- *a\n", "no YAML aliases"),
        (b"[" * 1_000, "expected fewer levels"),
        (b"#" * (256 * 1024 + 1), "expected at most 262144 bytes"),
        (b"".join(b"- http://127.0.0.1:%d\n" % n for n in range(1, MAX_ENGINES + 2)), "expected at most 1024 engines"),
        (b"- {\x1b: 1}\n", "expected YAML"),
        (b'- {"\\e[31m": 1, "\\e[31m": 2}\n', "?[31m"),
    ],
)
def test_a_file_that_is_no_list_of_engines(scene, content, expected):
    scene.path.write_bytes(content)
    for _ in range(2):
        reason = scene.fault()
        assert expected in reason
        assert "CANARY" not in reason
        assert reason.isprintable()
    scene.path.write_text(ONE)
    assert len(scene.look()) == 1


def test_of_many_faults_a_few_are_told(scene):
    scene.path.write_text("- ftp://x\n" * 1_000)
    reason = scene.fault()
    assert reason.endswith("; and 995 more")
    assert len(reason) < 2_000


def test_the_greatest_file_is_read(scene):
    scene.path.write_text("".join(f"- http://127.0.0.1:{n}\n" for n in range(1, MAX_ENGINES + 1)))
    assert len(scene.look()) == MAX_ENGINES


def test_no_file_a_folder_and_a_pipe(scene):
    assert scene.fault() == "there is no such file"
    scene.path.mkdir()
    assert scene.fault() == "expected a plain file"
    scene.path.rmdir()
    os.mkfifo(scene.path)
    assert scene.fault() == "expected a plain file"


def test_a_fault_comes_back_with_the_file(scene):
    scene.path.write_text("{}")
    scene.fault()
    scene.path.unlink()
    assert scene.fault() == "there is no such file"
    scene.path.write_text("{}")
    assert "expected a list" in scene.fault()
