"""Other routers as targets, each policy one of them: how they are started so that they are at their best.

Documented settings only. Two are not the defaults: how often a router looks at its workers at start and for their load
(``--worker-startup-check-interval``, ``--load-monitor-interval``) is a second instead of 30 and 10, the shortest that
they take, so that those which go by load see the load that there is.

Not here: vllm-router's ``kv_aware``, which needs a stream of cache events that the simulated engine does not send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtests.bench import install
from loadtests.bench.procs import Process, StartFailed, free_port
from loadtests.bench.targets import SMG, VLLM_ROUTER
from loadtests.routing.place import Endpoint, Kind, Place, Target
from loadtests.routing.waiting import fetched, until

_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a peer: its port, spare ones for its metrics and its mesh, and the meshes of all its fellows."""

    port: int
    metrics: int
    mesh: int
    fellows: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A router: what is installed, the policies that are compared, and its command for one of them."""

    name: str
    version: str
    policies: Sequence[str]
    command: Callable[[Path, str, Sequence[str], Seat], list[str]]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def _listen(seat: Seat, engines: Sequence[str], policy: str) -> list[str]:
    """What both of them call the same."""
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(seat.metrics)]
    workers = ["--worker-urls", *engines, "--worker-startup-check-interval", "1"]
    return ["--host", "127.0.0.1", "--port", str(seat.port), *workers, *metrics, "--policy", policy]


def vllm_router(home: Path, policy: str, engines: Sequence[str], seat: Seat) -> list[str]:
    """Its load monitor keeps to the interval of the startup checks. Several instances know nothing of each other."""
    return [str(home / "bin" / "vllm-router"), *_listen(seat, engines, policy), "--log-level", "warning"]


def smg(home: Path, policy: str, engines: Sequence[str], seat: Seat) -> list[str]:
    """Several instances are told of each other, as its documentation has it (``--enable-mesh``)."""
    mesh = ["--enable-mesh", "--mesh-host", "127.0.0.1", "--mesh-port", str(seat.mesh)]
    mesh += ["--mesh-server-name", f"router-{seat.mesh}"]
    mesh += ["--mesh-peer-urls", *(f"127.0.0.1:{port}" for port in seat.fellows)]
    shared = ["--load-monitor-interval", "1", "--log-level", "warn"]
    return [
        *(str(home / "bin" / "smg"), "launch"),
        *_listen(seat, engines, policy),
        *shared,
        *(mesh if seat.fellows else ()),
    ]


PEERS: tuple[Peer, ...] = (
    Peer(
        "vllm-router",
        VLLM_ROUTER,
        ("cache_aware", "power_of_two", "round_robin", "random", "consistent_hash", "sticky_least_loaded"),
        vllm_router,
    ),
    Peer(
        "smg",
        SMG,
        ("cache_aware", "least_load", "power_of_two", "round_robin", "prefix_hash", "consistent_hashing"),
        smg,
    ),
)


def seats(count: int) -> list[Seat]:
    """Of so many instances, with free ports."""
    meshes = [free_port() for _ in range(count)]
    return [Seat(free_port(), free_port(), mesh, [each for each in meshes if each != mesh]) for mesh in meshes]


@contextmanager
def routers(peer: Peer, policy: str, place: Place) -> Iterator[Sequence[Endpoint]]:
    """As many processes of a peer as are wanted. Raises `StartFailed`."""
    try:
        home = install.environment(f"{peer.name}-{peer.version}", peer.requirement)
    except install.InstallFailed as failed:
        raise StartFailed(str(failed)) from failed
    with ExitStack() as stack:
        started: list[tuple[Seat, Process]] = []
        for number, seat in enumerate(seats(place.instances)):
            command = peer.command(home, policy, place.engines, seat)
            process = Process(f"{peer.name}-{number}", command, place.folder, place.cores)
            started.append((seat, stack.enter_context(process)))
        for seat, process in started:
            process.wait_until_ready(f"http://127.0.0.1:{seat.port}/readiness", _READY_SECONDS)
            until(partial(has_workers, seat.port, len(place.engines)), process, _READY_SECONDS)
        yield tuple(Endpoint(seat.port, "", process.pid) for seat, process in started)
        for seat, process in started:
            if not has_workers(seat.port, 1):
                raise StartFailed(f"{process.name} does not serve any more: {process.last_words()}")


def has_workers(port: int, count: int) -> bool:
    """Whether a router serves with so many workers at least."""
    return int(fetched(port, "/readiness").get("healthy_workers", 0)) >= count


TARGETS: tuple[Target, ...] = tuple(
    Target(
        f"{peer.name}-{policy.replace('_', '-')}",
        f"{peer.name} {peer.version} with the policy {policy}",
        partial(routers, peer, policy),
        Kind.PEER,
    )
    for peer in PEERS
    for policy in peer.policies
)
