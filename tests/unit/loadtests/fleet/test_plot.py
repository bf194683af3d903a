from pathlib import Path

from loadtests.fleet.coldstart import Added, Side
from loadtests.fleet.load import Sample
from loadtests.fleet.plot import plot


def test_a_picture_is_written_also_of_runs_with_nothing_to_show(tmp_path: Path) -> None:
    added = [Added(1, 10.0, 28.0, 3, 0, 25), Added(2, 20.0, None, 0, 0, 7)]
    full = Side([Sample(1.0, 0.04), Sample(2.0, None, "gone")], added, 0)
    plot(full, Side([], [], 0), tmp_path / "picture.png")
    plot(Side([], [], 0), full, tmp_path / "other.svg")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "other.svg").read_text()
