"""Pods behind a Service, asked of a real TLS server that plays the cluster's API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.configvalues import Pods
from gateway.fleet.discover.kubernetes import ACCOUNT, Cluster, KubernetesSource, this_cluster
from gateway.fleet.discover.sources import DiscoveryFault
from gateway.model import EngineSpec
from tests.authority import Authority
from tests.streams import serving

PODS = Pods("serving", "nodes", 8443)
PATH = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
WATCH = object()


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def piece(name: str, *addresses: str, version: str = "1") -> dict[str, Any]:
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    return {
        "metadata": {"name": name, "resourceVersion": version},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": 8443}],
    }


def page(*slices: dict[str, Any], version: str = "1", more: str = "") -> bytes:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return json.dumps({"kind": "EndpointSliceList", "metadata": metadata, "items": list(slices)}).encode()


def event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def answer(body: bytes = b"", status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Api:
    """The API of a cluster. Each list is answered with the next of ``lists`` (the last one again and again); a watch
    stays open, and gets what ``send`` sends, until ``end``. ``statuses`` answer watches before any stays open.
    """

    def __init__(self, *lists: bytes, statuses: Sequence[int] = ()) -> None:
        self.lists = list(lists)
        self.statuses = list(statuses)
        self.asked: list[dict[str, str]] = []
        self.heads: list[bytes] = []
        self.watches: list[asyncio.StreamWriter] = []
        self.listed = 0
        self.open = 0

    @property
    def watch(self) -> asyncio.StreamWriter:
        return self.watches[-1]

    def send(self, data: bytes) -> None:
        self.watch.write(chunk(data))

    def end(self) -> None:
        self.watch.write(b"0\r\n\r\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                target = urlsplit(head.split(b" ")[1].decode())
                query = {name: values[0] for name, values in parse_qs(target.query).items()}
                self.asked.append(query)
                if target.path != PATH or query.pop("labelSelector") != "kubernetes.io/service-name=nodes":
                    writer.write(answer(status=404))
                elif "watch" not in query:
                    self.listed += 1
                    writer.write(self.lists.pop(0) if len(self.lists) > 1 else self.lists[0])
                elif self.statuses:
                    writer.write(answer(status=self.statuses.pop(0)))
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    self.watches.append(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1


class Scene:
    """A cluster, a pod's account in it, and a source; ``slept`` are its waits, which end at once."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.account = folder
        (folder / "ca.crt").write_bytes(authority.ca.read_bytes())
        (folder / "token").write_text("token-1\n")
        self.tls = authority.server("127.0.0.1")
        self.slept: list[float] = []
        self.told: list[list[str]] = []
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def tell(self, engines: Sequence[EngineSpec]) -> None:
        self.told.append([spec.url.removeprefix("https://") for spec in engines])

    def source(self, port: int, pods: Pods = PODS) -> KubernetesSource:
        cluster = Cluster(f"https://127.0.0.1:{port}", self.account)
        return KubernetesSource(pods, cluster, random=Random(7), sleep=self.sleep, clock=lambda: self.now)

    @contextlib.asynccontextmanager
    async def cluster(self, api: Api, pods: Pods = PODS) -> AsyncIterator[KubernetesSource]:
        async with serving(api.serve, tls=self.tls) as port:
            source = self.source(port, pods)
            yield source
            await source.close()
            await until(lambda: not api.open)

    @contextlib.asynccontextmanager
    async def following(self, api: Api, pods: Pods = PODS) -> AsyncIterator[KubernetesSource]:
        async with self.cluster(api, pods) as source:
            task = asyncio.create_task(source.follow(self.tell))
            try:
                yield source
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait({task})

    def fault(self, api: Api) -> str:
        async def main() -> str:
            async with self.cluster(api) as source:
                with pytest.raises(DiscoveryFault) as caught:
                    await source.look()
                return caught.value.reason

        return asyncio.run(main())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def scene(tmp_path: Path, authority: Authority) -> Scene:
    return Scene(tmp_path, authority)


# --- lists


def test_a_look_lists_all_pages_as_the_pods_own_account(scene):
    async def main() -> None:
        api = Api(answer(page(piece("a", "10.0.0.2"), more="next")), answer(page(piece("b", "10.0.0.1"))))
        async with scene.cluster(api) as source:
            assert await source.look() == (
                EngineSpec("https://10.0.0.1:8443", server_name="nodes.serving.svc"),
                EngineSpec("https://10.0.0.2:8443", server_name="nodes.serving.svc"),
            )
        assert api.asked == [{"limit": "64"}, {"limit": "64", "continue": "next"}]
        assert all(
            b"\r\nauthorization: Bearer token-1\r\n" in head.lower().replace(b"bearer", b"Bearer") for head in api.heads
        )

    asyncio.run(main())


def test_a_port_may_be_named(scene):
    async def main() -> None:
        async with scene.cluster(
            Api(answer(page(piece("a", "10.0.0.2")))), Pods("serving", "nodes", "https")
        ) as source:
            assert [spec.id for spec in await source.look()] == ["10.0.0.2:8443"]

    asyncio.run(main())


def test_nobody_is_an_answer(scene):
    async def main() -> None:
        async with scene.cluster(Api(answer(page()))) as source:
            assert await source.look() == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (answer(b"CANARY", 401), "service account's token (401)"),
        (answer(b"CANARY", 403), "needs get, list and watch"),
        (answer(b"CANARY", 404), "no such namespace"),
        (answer(b"CANARY", 500), "answers with 500"),
        (answer(b"", 302).replace(b"X\r\n", b"X\r\nlocation: https://attacker.example\r\n"), "answers with 302"),
        (answer(page(), 410), "410"),
        (answer(b"CANARY"), "does not answer as the Kubernetes API does"),
        (answer(b"[]"), "does not answer as the Kubernetes API does"),
        (answer(b'{"items": []}'), "does not answer as the Kubernetes API does"),
        (answer(b'{"metadata": {"resourceVersion": "1"}, "items": {"a": 1}}'), "does not answer as"),
        (answer(page(piece("a", "127.0.0.1"))), "loopback"),
        (answer(page(piece("a", "attacker.example"))), "no address"),
        (answer(page(piece("a", "10.0.0.1"), more="again")), "more than 1024 slices"),
        (answer(b" " * (8 * 1024 * 1024 + 1)), "does not answer as"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "broke off"),
        (b"CANARY\r\n\r\n", "cannot be reached or trusted"),
    ],
)
def test_an_api_that_does_not_answer_properly(scene, says, expected):
    class Cut(Api):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if b"content-length: 9" in says:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(says)
                writer.close()
                return
            await super().serve(reader, writer)

    reason = scene.fault(Cut(says))
    assert expected in reason
    assert "CANARY" not in reason


def test_an_api_that_cannot_be_trusted_gets_no_token(scene, tmp_path_factory):
    impostor = Authority(tmp_path_factory.mktemp("impostor"), "authority")
    scene.tls = impostor.server("127.0.0.1")
    api = Api(answer(page()))
    assert "cannot be reached or trusted" in scene.fault(api)
    assert api.heads == []


def test_a_pod_without_an_account(scene):
    api = Api(answer(page()))
    for content in (b"\xff", b"a\r\nx: b"):
        (scene.account / "token").write_bytes(content)
        assert "token" in scene.fault(api)
    (scene.account / "token").unlink()
    assert scene.fault(api) == "cannot be asked: the service account's token cannot be read"
    (scene.account / "ca.crt").unlink()
    assert scene.fault(api) == "cannot be trusted: the service account's ca.crt cannot be read"
    assert api.heads == []


def test_a_process_in_no_pod():
    async def main() -> None:
        with pytest.raises(DiscoveryFault, match="runs in no pod"):
            await KubernetesSource(PODS, None).look()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.96.0.1:6443"),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
    ],
)
def test_a_pod_knows_its_cluster(env, url):
    assert this_cluster(env) == Cluster(url, ACCOUNT)


def test_a_cluster_with_a_strange_address_is_a_fault(scene):
    async def main() -> None:
        for url in ("https://a b:1", "https://[10.0.0.1]:1", "https://h:99999"):
            with pytest.raises(DiscoveryFault, match="cannot be"):
                await KubernetesSource(PODS, Cluster(url, scene.account)).look()

    asyncio.run(main())


def test_outside_of_a_pod_there_is_no_cluster():
    assert this_cluster({}) is None
    assert this_cluster({"KUBERNETES_SERVICE_HOST": "x", "KUBERNETES_SERVICE_PORT": "tcp://x"}) is None


# --- watches


def test_changes_are_told_as_they_happen(scene):
    async def main() -> None:
        api = Api(answer(page(piece("a", "10.0.0.1"), version="5")))
        async with scene.following(api) as source:
            await until(lambda: api.watches)
            assert api.asked[1] == {
                "watch": "1",
                "resourceVersion": "5",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": "60",
            }
            assert scene.told == [["10.0.0.1:8443"]]
            added = event("ADDED", piece("b", "10.0.0.2"))
            for part in (added[:7], added[7:-1], added[-1:] + event("MODIFIED", piece("a", "10.0.0.3"))):
                api.send(part)
            await until(lambda: len(scene.told) == 3)
            assert scene.told[1:] == [["10.0.0.1:8443", "10.0.0.2:8443"], ["10.0.0.2:8443", "10.0.0.3:8443"]]
            api.send(event("DELETED", piece("a")))
            await until(lambda: len(scene.told) == 4)
            assert [spec.id for spec in await source.look()] == ["10.0.0.2:8443"]
            assert api.listed == 1

    asyncio.run(main())


def test_a_pod_that_terminates_leaves_at_once(scene):
    async def main() -> None:
        api = Api(answer(page(piece("a", "10.0.0.1", "10.0.0.2"))))
        async with scene.following(api):
            await until(lambda: api.watches)
            leaving = piece("a", "10.0.0.1", "10.0.0.2")
            leaving["endpoints"][0]["conditions"] = {"ready": False, "serving": True, "terminating": True}
            api.send(event("MODIFIED", leaving))
            await until(lambda: scene.told[-1] == ["10.0.0.2:8443"])

    asyncio.run(main())


def test_a_watch_that_ends_in_order_goes_on_at_the_last_version_with_the_token_of_then(scene):
    async def main() -> None:
        api = Api(answer(page(version="5")))
        async with scene.following(api):
            await until(lambda: api.watches)
            api.send(event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}))
            (scene.account / "token").write_text("token-2")
            api.end()
            await until(lambda: len(api.watches) == 2)
            scene.now += 60  # a watch without events that took its time is none that fails
            api.end()
            await until(lambda: len(api.watches) == 3)
        assert [asked.get("resourceVersion") for asked in api.asked] == [None, "5", "9", "9"]
        assert b"token-1" in api.heads[1]
        assert b"token-2" in api.heads[2]
        assert (api.listed, scene.slept) == (1, [])

    asyncio.run(main())


@pytest.mark.parametrize("by", ["event", "status"])
def test_a_version_that_is_forgotten_is_listed_anew_at_once(scene, by):
    async def main() -> None:
        api = Api(
            answer(page(piece("a", "10.0.0.1"))),
            answer(page(piece("b", "10.0.0.2"))),
            statuses=[410] if by == "status" else [],
        )
        async with scene.following(api) as source:
            if by == "event":
                await until(lambda: api.watches)
                api.send(event("ERROR", {"kind": "Status", "code": 410, "message": "CANARY"}))
            await until(lambda: api.listed == 2 and api.watches)
            await until(lambda: scene.told[-1] == ["10.0.0.2:8443"])
            assert len(await source.look()) == 1
        assert scene.slept == [0.0]

    asyncio.run(main())


def test_an_api_that_forgets_again_and_again_is_asked_less_and_less(scene):
    async def main() -> None:
        api = Api(answer(page()), statuses=[410] * 8)
        async with scene.following(api):
            await until(lambda: api.watches)
        assert scene.slept[0] == 0.0
        for at, delay in enumerate(scene.slept[1:], 1):
            assert min(2**at, 30) / 2 <= delay <= min(2**at, 30)
        assert len(scene.slept) == 8

    asyncio.run(main())


@pytest.mark.parametrize(
    "says",
    [
        b"CANARY\n",
        b"[]\n",
        b'{"type": "ADDED"}\n',
        event("PATCHED", piece("a")),
        event("ADDED", piece("a", "127.0.0.1")),
        event("ERROR", {"code": 500}),
        event("ERROR", {"code": "CANARY"}),
        b'{"type": "ERROR"}\n',
        b"x" * (8 * 1024 * 1024 + 1),
        None,
        b"",
    ],
)
def test_a_watch_that_breaks_is_a_fault_until_a_list_succeeds(scene, says):
    async def main() -> None:
        api = Api(answer(page(piece("a", "10.0.0.1"))), answer(status=503), answer(page(piece("a", "10.0.0.2"))))
        resume = asyncio.Event()

        async def sleep(seconds: float) -> None:
            scene.slept.append(seconds)
            await resume.wait()

        scene.sleep = sleep
        async with scene.following(api) as source:
            await until(lambda: api.watches)
            if says is None:
                api.watch.transport.abort()
            elif says:
                api.send(says)
            else:
                api.end()  # at once: as a server would that only pretends to watch
            await until(lambda: scene.slept)
            with pytest.raises(DiscoveryFault) as caught:
                await source.look()
            assert "CANARY" not in caught.value.reason
            resume.set()
            await until(lambda: len(api.watches) == 2)
            assert [spec.id for spec in await source.look()] == ["10.0.0.2:8443"]
        assert len(scene.slept) == 2
        assert 0.5 <= scene.slept[0] <= 1.0 <= scene.slept[1] <= 2.0

    asyncio.run(main())


@pytest.mark.parametrize("well", ["event", "end"])
def test_a_watch_that_goes_well_forgives_earlier_failures(scene, well):
    async def main() -> None:
        api = Api(answer(status=503), answer(status=503), answer(status=503), answer(page()))
        async with scene.following(api):
            await until(lambda: api.watches)
            if well == "event":
                api.send(event("ADDED", piece("a", "10.0.0.1")))
                await until(lambda: scene.told[-1])
            else:
                scene.now += 60
                api.end()
                await until(lambda: len(api.watches) == 2)
            api.watch.transport.abort()
            await until(lambda: len(scene.slept) == 4)
        assert scene.slept[2] >= 2.0
        assert scene.slept[3] <= 1.0

    asyncio.run(main())


def test_when_nobody_follows_any_more_a_look_lists_again(scene):
    async def main() -> None:
        api = Api(answer(page(piece("a", "10.0.0.1"))), answer(page(piece("a", "10.0.0.2"))))
        async with scene.following(api) as source:
            await until(lambda: api.watches)
            assert [spec.id for spec in await source.look()] == ["10.0.0.1:8443"]
        async with serving(api.serve, tls=scene.tls) as port:
            source._cluster = Cluster(f"https://127.0.0.1:{port}", scene.account)
            assert [spec.id for spec in await source.look()] == ["10.0.0.2:8443"]

    asyncio.run(main())


def test_a_watch_that_ends_leaves_no_connection(scene):
    async def main() -> None:
        api = Api(answer(page()))
        async with scene.following(api):
            await until(lambda: api.watches)
            assert api.open == 1

    asyncio.run(main())
