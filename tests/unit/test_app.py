"""One instance from start to end: what it opens it closes, also when it does not get far."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections import Counter

import pytest
import uvloop

from gateway.admin import build
from gateway.admin.presence import running_gateway
from gateway.app import Gateway
from gateway.identity.secrets import SecretFault
from gateway.policy.document import PolicyFault
from gateway.settings import load_settings
from gateway.stores.interfaces import StoreUnavailable


class Records:
    """Keeps nothing."""

    dropped = 0

    def write(self, record) -> None: ...


def _settings(tmp_path, **flags):
    given = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "state": f"sqlite://{tmp_path / 'state' / 'state.db'}"}
    return load_settings({**given, **flags}, {})


def _gateway(settings, said=None):
    return Gateway(settings, {}, (said if said is not None else []).append, Records())


def _open_files():
    """What this process has open, without /dev/null, of which libuv keeps one in reserve once it has listened."""
    links = (os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number))
    return sorted(link for link in links if link != os.devnull)


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def _threads():
    """Threads by name, without the idle ones that the event loop keeps for itself."""
    return sorted(
        thread.name for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "uvloop_"))
    )


async def _all_closed(files, threads) -> None:
    """Nothing is open that was not before; the event loop may need a turn or two to close what it was told to."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while (
                asyncio.all_tasks() != {asyncio.current_task()}
                or Counter(_open_files()) - Counter(files)
                or Counter(_threads()) - Counter(threads)
            ):
                await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert Counter(_open_files()) - Counter(files) == Counter()
    assert Counter(_threads()) - Counter(threads) == Counter()


async def _fails(settings, kind):
    """A start that fails so; afterwards nothing is open that was not before."""
    files, threads = _open_files(), _threads()
    gateway = _gateway(settings)
    with pytest.raises(kind) as failed:
        await gateway.start()
    await _all_closed(files, threads)
    assert running_gateway(settings.state_folder) is None
    await gateway.close()
    return failed.value


def _run(body):
    async def bounded():
        async with asyncio.timeout(15):
            return await body()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


@pytest.mark.parametrize("plane", ["listen", "admin"])
def test_a_port_that_is_taken_leaves_nothing_open(tmp_path, taken, plane):
    async def body():
        await _fails(_settings(tmp_path, **{plane: f"127.0.0.1:{taken}"}), OSError)
        gateway = _gateway(_settings(tmp_path))
        await gateway.start()
        await gateway.close()

    _run(body)


def test_policies_that_cannot_be_used_leave_nothing_behind(tmp_path):
    (tmp_path / "policies").mkdir()
    settings = _settings(tmp_path, policies=str(tmp_path / "policies"))
    for text, kind in ((None, (PolicyFault, OSError)), ("endpoints: [", PolicyFault), ("nonsense: 1\n", PolicyFault)):
        if text is not None:
            (tmp_path / "policies" / "guards.yaml").write_text(text)
        _run(lambda kind=kind: _fails(settings, kind))
        assert not (tmp_path / "state").exists()


def test_a_state_file_that_is_none_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "state" / "state.db"
    path.parent.mkdir()
    path.write_bytes(b"not a database" * 1_000)
    path.chmod(0o600)
    error = _run(lambda: _fails(_settings(tmp_path), StoreUnavailable))
    assert str(path) in str(error)
    assert path.read_bytes() == b"not a database" * 1_000
    assert [child.name for child in path.parent.iterdir()] == ["state.db"]


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    async def body():
        gateway = _gateway(_settings(tmp_path))
        await gateway.start()
        await gateway.close()
        (tmp_path / "state" / "admin-token").chmod(0o644)
        await _fails(_settings(tmp_path), SecretFault)

    _run(body)


async def _status(url: str) -> bytes:
    """What a listener answers to a request without a key."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    status = (await reader.read()).split(b" ", 2)[1]
    writer.close()
    await writer.wait_closed()
    return status


def test_applications_are_answered_while_the_admin_plane_is_made(tmp_path, monkeypatch):
    made = threading.Event()
    build_admin = build.build_admin

    def slowly(state):
        assert made.wait(10)
        return build_admin(state)

    monkeypatch.setattr(build, "build_admin", slowly)

    async def body():
        gateway = _gateway(_settings(tmp_path))
        starting = asyncio.create_task(gateway.start())
        async with asyncio.timeout(10):
            while not gateway.url:
                await asyncio.sleep(0)
            while True:
                with contextlib.suppress(OSError):
                    assert await _status(gateway.url) == b"401"
                    break
        assert not starting.done()
        with pytest.raises(OSError, match=r"refused|failed"):
            await _status(gateway.admin_url)
        assert running_gateway(tmp_path / "state") is None
        made.set()
        await starting
        assert await _status(gateway.admin_url) == b"401"
        assert running_gateway(tmp_path / "state") == gateway.admin_url
        await gateway.close()

    _run(body)


def test_an_admin_plane_that_cannot_be_made_fails_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_ROUTES", build._ROUTES[:-1])
    error = _run(lambda: _fails(_settings(tmp_path), ValueError))
    assert "has a verb and no route" in str(error)
    assert running_gateway(tmp_path / "state") is None


def test_what_a_start_opens_a_close_closes_and_it_may_come_twice(tmp_path):
    async def body():
        files, threads = _open_files(), _threads()
        gateway = _gateway(_settings(tmp_path))
        await gateway.start()
        assert running_gateway(tmp_path / "state") == gateway.admin_url
        for url in (gateway.url, gateway.admin_url):
            host, _, port = url.removeprefix("http://").rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()
        await gateway.close()
        await gateway.close()
        for url in (gateway.url, gateway.admin_url):
            host, _, port = url.removeprefix("http://").rpartition(":")
            with pytest.raises(OSError, match=r"refused|failed"):
                await asyncio.open_connection(host, int(port))
        await _all_closed(files, threads)
        assert running_gateway(tmp_path / "state") is None

    _run(body)


def test_before_a_start_there_is_nothing_to_see_and_nothing_to_end(tmp_path):
    async def body():
        gateway = _gateway(_settings(tmp_path))
        with pytest.raises(RuntimeError):
            _ = gateway.core
        await gateway.drain()
        await gateway.close()
        await gateway.close()

    _run(body)


def test_the_secrets_are_the_owners_alone_and_stay_the_same(tmp_path):
    async def body():
        seen = []
        for _ in range(2):
            gateway = _gateway(_settings(tmp_path))
            await gateway.start()
            await gateway.close()
            folder = tmp_path / "state"
            for name in ("admin-token", "pepper", "salt", "state.db"):
                assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            seen.append([(folder / name).read_text() for name in ("admin-token", "pepper", "salt")])
        assert seen[0] == seen[1]

    _run(body)


def test_automatic_aliases_are_made_on_the_first_start_only(tmp_path, site):
    first, second = site.engine(model="first-model"), site.engine(model="second-model")
    cold = str(site.routing(warmup={"shapes": []}))

    async def names(engine):
        gateway = _gateway(_settings(tmp_path, engines=[engine.url], policies=cold))
        await gateway.start()
        try:
            assert gateway.core.registry.served_models() == [engine.spec.model]
            return sorted(gateway.core.aliases.table.current)
        finally:
            await gateway.close()

    assert _run(lambda: names(first)) == ["first-model"]
    assert _run(lambda: names(second)) == ["first-model"]


def test_engines_that_are_there_are_ready_when_the_start_returns(tmp_path, site):
    engine, said = site.engine(), []

    async def body():
        cold = str(site.routing(warmup={"shapes": []}))
        gateway = _gateway(_settings(tmp_path, engines=[engine.url, "http://127.0.0.1:9"], policies=cold), said)
        await gateway.start()
        try:
            assert len(gateway.core.registry.ready("sim-model")) == 1
        finally:
            await gateway.close()

    _run(body)
    assert any(line.startswith(f"replica {engine.url[7:]}: warming -> ready") for line in said)
    assert not any("127.0.0.1:9:" in line for line in said)
