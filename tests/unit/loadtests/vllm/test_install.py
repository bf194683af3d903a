"""An installation is whole or not there; a port that is held stays free for the server."""

import socket
import threading

import pytest

from loadtests.bench.install import InstallFailed
from loadtests.vllm import install as recipe
from loadtests.vllm.engine import RealEngine, held_port
from loadtests.vllm.install import Installation, default_installation, install, kept


@pytest.fixture
def place(tmp_path) -> Installation:
    return Installation(tmp_path / "cache" / "0.0-1")


def steps(monkeypatch: pytest.MonkeyPatch, *made) -> None:
    monkeypatch.setattr(recipe, "RECIPE", tuple((step.__name__, step) for step in made))
    monkeypatch.setattr(recipe, "_require_platform", lambda: None)


def test_installs_once(monkeypatch: pytest.MonkeyPatch, place: Installation) -> None:
    said: list[str] = []

    def write(place: Installation) -> None:
        assert not place.complete
        (place.folder / "file").touch()

    steps(monkeypatch, write)
    assert [install(place, said.append), install(place, said.append)] == [True, False]
    assert (said, place.complete) == (["write"], True)


def test_failed_installation_is_not_there_and_begins_anew(monkeypatch: pytest.MonkeyPatch, place: Installation) -> None:
    def half(place: Installation) -> None:
        (place.folder / "half").touch()

    def fail(_: Installation) -> None:
        raise InstallFailed("no network")

    steps(monkeypatch, half, fail)
    with pytest.raises(InstallFailed):
        install(place, lambda _: None)
    assert not place.complete
    with pytest.raises(InstallFailed):
        RealEngine.start(place, place.folder)
    steps(monkeypatch, lambda place: None)
    assert install(place, lambda _: None)
    assert not (place.folder / "half").exists()


def test_two_at_once_install_once(monkeypatch: pytest.MonkeyPatch, place: Installation) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Installation) -> None:
        begun.set()
        assert go_on.wait(10)

    steps(monkeypatch, slow)
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(install(place, lambda _: None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(done) == [False, True]


def test_requirements_without_extras_and_the_family_of_torch() -> None:
    given = [
        "regex", 'torch==2.13.0+cpu; platform_machine == "x86_64"', "torchvision", "triton", 'pandas; extra == "bench"',
        'six>=1.16.0; python_version > "3.11"', "torchcodec>=0.14",
    ]  # fmt: skip
    assert kept(given) == ["regex", 'six>=1.16.0; python_version > "3.11"']


def test_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = default_installation().folder
    assert (folder.parent, folder.name) == (tmp_path / "gateway-vllm", f"{recipe.VERSION}-{recipe.REVISION}")


def test_held_port_is_kept_for_a_server_that_may_reuse_addresses() -> None:
    with held_port() as held, socket.socket() as server, socket.socket() as stranger:
        address = held.getsockname()
        with pytest.raises(OSError, match="in use"):
            stranger.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        with socket.create_connection(address, timeout=5):
            pass
