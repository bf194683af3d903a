import sys
from pathlib import Path

import pytest

from loadtests.bench.install import InstallFailed
from loadtests.bench.procs import StartFailed
from loadtests.routing import peers
from loadtests.routing.peers import PEERS, TARGETS, Peer, Seat, routers, seats
from loadtests.routing.place import Kind, Place

ENGINES = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
HOME = Path("/opt/router")

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"healthy_workers": int(sys.argv[2])}).encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def after(command: list[str], option: str) -> list[str]:
    """The values of an option."""
    rest = command[command.index(option) + 1 :]
    return rest[: next((place for place, word in enumerate(rest) if word.startswith("--")), len(rest))]


def test_each_policy_is_a_target_of_its_own() -> None:
    names = [target.name for target in TARGETS]
    assert len(names) == len(set(names)) == sum(len(peer.policies) for peer in PEERS)
    assert {"vllm-router-cache-aware", "vllm-router-power-of-two", "vllm-router-round-robin"} <= set(names)
    assert {"smg-cache-aware", "smg-least-load", "smg-power-of-two", "smg-round-robin"} <= set(names)
    assert {target.kind for target in TARGETS} == {Kind.PEER}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_command_names_all_engines_and_the_policy(peer: Peer) -> None:
    command = peer.command(HOME, "round_robin", ENGINES, Seat(1234, 1235, 1236))
    assert command[0] == f"/opt/router/bin/{peer.name}"
    assert after(command, "--worker-urls") == ENGINES
    assert after(command, "--policy") == ["round_robin"]
    assert after(command, "--host") == ["127.0.0.1"]
    assert after(command, "--port") == ["1234"]
    assert after(command, "--prometheus-port") == ["1235"]
    assert "--enable-mesh" not in command


def test_several_of_smg_know_each_other() -> None:
    one, two = seats(2)
    assert len({one.port, one.metrics, one.mesh, two.port, two.metrics, two.mesh}) == 6
    command = peers.smg(HOME, "cache_aware", ENGINES, one)
    assert after(command, "--mesh-peer-urls") == [f"127.0.0.1:{two.mesh}"]
    assert after(command, "--mesh-port") == [str(one.mesh)]
    assert after(command, "--mesh-host") == ["127.0.0.1"]


def scripted(healthy: int) -> Peer:
    def command(home: Path, policy: str, engines: object, seat: Seat) -> list[str]:
        return [sys.executable, "-c", SERVER, str(seat.port), str(healthy)]

    return Peer("router", "1", ("any",), command)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.install, "environment", lambda *_: HOME)


def place(folder: Path, instances: int = 1) -> Place:
    return Place(ENGINES, folder, frozenset({0}), instances=instances)


def test_as_many_as_are_wanted_serve_with_all_workers(tmp_path: Path) -> None:
    with routers(scripted(2), "any", place(tmp_path, 2)) as endpoints:
        assert len({each.port for each in endpoints}) == len({each.pid for each in endpoints}) == 2
        assert {each.key for each in endpoints} == {""}


def test_one_that_lacks_a_worker_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_READY_SECONDS", 0.8)
    with pytest.raises(StartFailed, match="router-0 was not ready"), routers(scripted(1), "any", place(tmp_path)):
        pass


def test_one_that_ends_at_once_is_a_failure_with_its_words(tmp_path: Path) -> None:
    def command(home: Path, policy: str, engines: object, seat: Seat) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('no such policy')"]

    broken = Peer("router", "1", ("any",), command)
    with pytest.raises(StartFailed, match="no such policy"), routers(broken, "any", place(tmp_path)):
        pass


def test_one_that_cannot_be_installed_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> Path:
        raise InstallFailed("pip: no network")

    monkeypatch.setattr(peers.install, "environment", fail)
    with pytest.raises(StartFailed, match="no network"), routers(scripted(2), "any", place(tmp_path)):
        pass
