"""Puts peers into folders of their own under the user's cache, and never into this project's environment."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

DONE = ".installed"
"""Written last: a folder without it is the rest of an attempt that failed, and is made anew."""
COMMAND_SECONDS = 900.0


class InstallFailed(Exception):
    """A peer could not be installed. The message says at which command and why."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gateway-loadtests"


def run(command: Sequence[str], folder: Path) -> None:
    """Runs one command of an installation. Raises `InstallFailed` with the end of what it wrote."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        raise InstallFailed(f"{' '.join(command[:4])}: {last_line(done.stderr.decode(errors='replace'))}")


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def fresh(name: str) -> tuple[Path, bool]:
    """The folder of an installation and whether it is complete; an incomplete one is emptied."""
    folder = cache_folder() / name
    if (folder / DONE).exists():
        return folder, True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder, False


def environment(name: str, *requirements: str) -> Path:
    """A virtual environment with `requirements`. Returns its folder. Raises `InstallFailed`."""
    folder, complete = fresh(name)
    if not complete:
        run([sys.executable, "-m", "venv", str(folder)], folder)
        pip_install(folder, requirements)
        (folder / DONE).touch()
    return folder


def pip_install(folder: Path, requirements: Sequence[str]) -> None:
    run([str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *requirements], folder)


def litellm(name: str, version: str) -> Path:
    """LiteLLM with its proxy. Where a mirror lacks the parts of the same makers (console, database migrations), the
    extra is installed without them: the proxy serves without a database, and so without them.

    Returns the folder. Raises `InstallFailed`.
    """
    folder, complete = fresh(name)
    if complete:
        return folder
    run([sys.executable, "-m", "venv", str(folder)], folder)
    try:
        pip_install(folder, [f"litellm[proxy]=={version}"])
    except InstallFailed:
        pip_install(folder, [f"litellm=={version}"])
        pip_install(folder, proxy_extra(installed(folder, "litellm").requires or []))
    (folder / DONE).touch()
    return folder


def installed(folder: Path, name: str) -> Distribution:
    """The installed distribution of that name. Raises `InstallFailed`."""
    for library in folder.glob("lib/python*/site-packages"):
        for found in distributions(name=name, path=[str(library)]):
            return found
    raise InstallFailed(f"{name} is not in {folder} after its installation")


def proxy_extra(requires: Sequence[str]) -> list[str]:
    """What the extra named proxy asks for, less LiteLLM's own further packages; markers stay for pip to judge."""
    extra = re.compile(r"""\bextra\s*==\s*['"]proxy['"]""")
    wanted = [line for line in requires if extra.search(line) and not line.startswith("litellm")]
    return [simplified(extra.sub("", line)) for line in wanted]


def simplified(requirement: str) -> str:
    """A requirement whose marker lost its last term: without the ``and`` or the ``;`` that is left hanging."""
    return re.sub(r"\s*(;|\band\b)\s*$", "", requirement.strip()).strip()


def nginx(name: str) -> Path:
    """The nginx that is installed, or Debian's unpacked into the cache: not installed, so no service starts.

    Returns the binary. Raises `InstallFailed`.
    """
    if present := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path(present)
    folder, complete = fresh(name)
    if not complete:
        run(["apt-get", "download", "nginx"], folder)
        package = next(iter(folder.glob("nginx_*.deb")), None)
        if package is None:
            raise InstallFailed("apt-get download nginx left no package")
        run(["dpkg-deb", "-x", str(package), str(folder)], folder)
        (folder / DONE).touch()
    return folder / "usr" / "sbin" / "nginx"
