"""Operators' hands on a running fleet: a real gateway, real engines, and the commands as they are typed."""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.stores.interfaces import StoreUnavailable
from tests.conftest import RunningGateway, Site, wait_until

INSTANT = {"step_time": 0.0, "prefill_tokens_per_second": 0.0}
CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
ROLES = ("viewer", "operator")
COLUMNS = ["ID", "STATE", "SINCE", "MODELS", "IN FLIGHT", "RUNNING", "WAITING", "KV", "WHY / NEXT"]


def id_of(engine: Any) -> str:
    return str(engine.url).partition("://")[2]


@dataclass
class Desk:
    """The command line of an operator, on one gateway."""

    gateway: RunningGateway

    def __call__(self, *args: str) -> Result:
        cleared: dict[str, str | None] = {name: None for name in os.environ if name.startswith("GATEWAY_")}
        token = self.gateway.gateway.core.held.admin_token.reveal()
        env = {"GATEWAY_ADMIN_URL": self.gateway.admin_url, "GATEWAY_ADMIN_TOKEN": token, "COLUMNS": "200"}
        return CliRunner().invoke(app, ["fleet", *args], env={**cleared, **env})

    def ok(self, *args: str) -> Result:
        result = self(*args)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *args: str, code: int = 1) -> str:
        """The message of a command that ends with ``code``, on stderr alone."""
        result = self(*args)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert "Traceback" not in result.stderr
        return " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())

    def rows(self, *args: str) -> dict[str, list[str]]:
        header, *lines = (line.split("\t") for line in self.ok("list", *args).stdout.splitlines())
        assert header == COLUMNS
        return {line[0]: line[1:] for line in lines}

    def view(self, engine: Any) -> dict[str, Any]:
        view: dict[str, Any] = json.loads(self.ok("show", id_of(engine), "--json").stdout)
        return view

    def trail(self) -> list[tuple[str, str, str]]:
        """Author, verb and subject of each line about the fleet; the chain of the whole trail holds."""
        with httpx.Client(base_url=self.gateway.admin_url, trust_env=False, timeout=20) as client:
            token = self.gateway.gateway.core.held.admin_token.reveal()
            client.headers["authorization"] = f"Bearer {token}"
            assert client.get("/admin/audit/verify").json()["whole"] is True
            lines = client.get("/admin/audit").json()["lines"]
        return [(line["author"], line["verb"], line["subject"]) for line in lines if line["verb"].startswith("fleet.")]


def test_an_engine_is_added_serves_and_is_removed(site: Site) -> None:
    first, second = site.engine(**INSTANT), site.engine(**INSTANT)
    gateway = site.gateway([first])
    gateway.wait_ready("sim-model")
    desk = Desk(gateway)
    told = desk.ok("add", second.url, "--label", "gpu=a100", "--note", "second card", "--wait", "--timeout", "20")
    assert "is added" in told.stderr
    assert f"{id_of(second)} is ready." in told.stderr
    view = desk.view(second)
    assert (view["origin"], view["state"], view["labels"]) == ("orders", "ready", {"gpu": "a100"})
    assert len(gateway.gateway.core.registry.ready("sim-model")) == 2
    assert "was added already" in desk.refused("add", second.url.upper().replace("HTTP", "http"))
    assert "listed in the configuration" in desk.refused("add", first.url)
    assert "Take it out there" in desk.refused("remove", id_of(first))
    desk.ok("remove", id_of(second), "--note", "given away")
    wait_until(lambda: id_of(second) not in desk.rows())
    assert set(desk.rows()) == {id_of(first)}
    assert desk.trail() == [
        ("admin-token", "fleet.add", second.url),
        ("admin-token", "fleet.remove", second.url),
    ]


class Stream:
    """A streamed request that is read in a thread of its own, to its end or until the test has seen enough."""

    def __init__(self, gateway: RunningGateway, tokens: int) -> None:
        self.text = ""
        self.enough = threading.Event()
        self._begun = threading.Event()
        self._headers = {"authorization": f"Bearer {gateway.key()}"}
        self._url = f"{gateway.base_url}/chat/completions"
        self._body = {**CHAT, "stream": True, "max_tokens": tokens}
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        with (
            httpx.Client(trust_env=False, timeout=60, headers=self._headers) as client,
            client.stream("POST", self._url, json=self._body) as answer,
        ):
            for piece in answer.iter_text():
                self.text += piece
                self._begun.set()
                if self.enough.is_set():
                    return

    def __enter__(self) -> Stream:
        self._thread.start()
        assert self._begun.wait(20)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.enough.set()
        self._thread.join(60)


def test_a_drain_takes_no_new_request_cuts_nothing_and_says_what_is_left(site: Site) -> None:
    engine = site.engine(step_time=0.05, prefill_tokens_per_second=0.0)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")
    desk = Desk(gateway)
    with Stream(gateway, tokens=4_000) as stream:
        said = desk.refused("drain", id_of(engine), "--note", "new driver", "--wait", "--timeout", "1s")
        assert "is being drained: no new requests, streams finish" in said
        assert f"{id_of(engine)}: draining, 1 requests of this gateway are left" in said
        assert "The drain stands, but after 1 s it is not over: 1 requests of this gateway are left" in said
        view = desk.view(engine)
        assert (view["state"], view["in_flight"]) == ("draining", 1)
        assert (view["drain"]["author"], view["drain"]["note"]) == ("admin-token", "new driver")
        assert "drained by admin-token: new driver" in view["reason"]
        assert "every request is refused with 503" in desk.ok("list").stderr
        with httpx.Client(trust_env=False, timeout=20) as client:
            headers = {"authorization": f"Bearer {gateway.key('other')}"}
            assert client.post(f"{gateway.base_url}/chat/completions", json=CHAT, headers=headers).status_code == 503
        before = len(stream.text)
        wait_until(lambda: len(stream.text) > before, "more of the stream")
        stream.enough.set()
    told = desk.ok("drain", id_of(engine), "--wait", "--timeout", "30")
    assert "is being drained already" in told.stderr
    assert "Gone: nothing of this gateway is left there." in told.stderr
    assert desk.view(engine)["state"] == "gone"
    assert [verb for _, verb, _ in desk.trail()] == ["fleet.drain"]


def test_a_stream_ends_before_a_drain_does_and_an_undrain_brings_the_engine_back(site: Site) -> None:
    engine = site.engine(step_time=0.02, prefill_tokens_per_second=0.0)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")
    desk = Desk(gateway)
    with Stream(gateway, tokens=150) as stream:
        desk.ok("drain", id_of(engine), "--wait", "--timeout", "60")
        assert gateway.in_flight() == 0
    assert stream.text.endswith("data: [DONE]\n\n")
    told = desk.ok("undrain", id_of(engine), "--wait", "--timeout", "30")
    assert "is let in again" in told.stderr
    assert "is ready" in told.stderr
    assert "was not drained: nothing changed" in desk.ok("undrain", id_of(engine)).stderr
    assert [verb for _, verb, _ in desk.trail()] == ["fleet.drain", "fleet.undrain"]


def test_a_drain_holds_on_every_instance_and_on_one_that_starts_later(site: Site, tmp_path: Any) -> None:
    engines = [site.engine(**INSTANT) for _ in range(2)]
    state = f"sqlite://{tmp_path / 'both' / 'state.db'}"
    one, other = (site.gateway(engines, state=state) for _ in range(2))
    for gateway in (one, other):
        gateway.wait_ready("sim-model", 2)
    Desk(one).ok("drain", engines[0].url)

    def states(gateway: RunningGateway) -> list[str]:
        rows = Desk(gateway).rows()
        return [rows[id_of(engine)][0] for engine in engines]

    wait_until(lambda: states(other) == ["gone", "ready"])
    late = site.gateway(engines, state=state)
    late.wait_ready("sim-model")
    wait_until(lambda: states(late) == ["gone", "ready"])
    assert len(late.gateway.core.registry.ready("sim-model")) == 1
    Desk(late).ok("undrain", id_of(engines[0]))
    for gateway in (one, other, late):
        gateway.wait_ready("sim-model", 2)


def test_a_ready_replica_is_warmed_up_again_and_another_is_not(site: Site) -> None:
    engine, away = site.engine(**INSTANT), "http://127.0.0.1:1"
    gateway = site.gateway([engine, away])
    gateway.wait_ready("sim-model")
    desk = Desk(gateway)
    before = desk.view(engine)["since"]
    told = desk.ok("warm", id_of(engine), "--note", "after an update", "--wait", "--timeout", "20")
    assert "is being warmed up again" in told.stderr
    assert desk.view(engine)["since"] > before
    assert any("asked by admin-token: after an update" in line for line in gateway.reports)
    assert "this one is found" in desk.refused("warm", "127.0.0.1:1")
    assert desk.trail() == [("admin-token", "fleet.warm", engine.url)]


def test_the_list_narrows_and_shows_what_engines_say(site: Site) -> None:
    engine, other = site.engine(**INSTANT), site.engine(model="other-model", **INSTANT)
    gateway = site.gateway([engine, other, "http://127.0.0.1:1"])
    gateway.wait_ready("sim-model")
    gateway.wait_ready("other-model")
    desk = Desk(gateway)
    wait_until(lambda: "running" in desk.view(engine)["signals"], "signals")
    rows = desk.rows()
    assert rows[id_of(engine)][2:7] == ["sim-model", "0", "0", "0", "0%"]
    assert rows[id_of(engine)][7].endswith("or a drain")
    assert rows["127.0.0.1:1"][0] == "found"
    assert "it takes no connection; next: an answer at its address" in rows["127.0.0.1:1"][7]
    assert set(desk.rows("--model", "other-model")) == {id_of(other)}
    assert set(desk.rows("--in-state", "found")) == {"127.0.0.1:1"}
    assert "Invalid value" in desk.refused("list", "--in-state", "nonsense", code=2)
    told = json.loads(desk.ok("list", "--json").stdout)
    assert (told["watched"], told["next"], len(told["replicas"])) == (True, None, 3)
    assert [(one["kind"], one["faults"], one["trouble"]) for one in told["sources"]] == [("configuration", 0, "")]
    shown = desk.ok("show", id_of(engine)).stdout
    for words in ("signal running", "listed in", "sim-model"):
        assert words in shown
    assert id_of(engine) in desk.refused("show", f"{id_of(engine).replace('127.0.0.1', '127.0.0.2')}")


@pytest.fixture(scope="module")
def front(shared_site: Site) -> RunningGateway:
    """A gateway that prompts may leave for one host."""
    gateway = shared_site.gateway([shared_site.engine(**INSTANT)], remote_engines="gpu.example")
    gateway.wait_ready("sim-model")
    return gateway


class Plane:
    """Calls of the admin plane by role, each test's under keys of its own: an author may write only so often."""

    def __init__(self, gateway: RunningGateway, client: httpx.Client) -> None:
        self._client = client
        self._keys = {role: gateway.key(f"{role}-{secrets.token_hex(4)}", roles=(role,)) for role in ROLES}

    def ask(self, role: str, method: str, path: str, **more: Any) -> httpx.Response:
        """A call, its path as it is."""
        headers = {"authorization": f"Bearer {self._keys[role]}"}
        target = {"target": path.encode()}
        return self._client.request(method, "/", headers=headers, extensions=target, **more)


@pytest.fixture
def plane(front: RunningGateway) -> Iterator[Plane]:
    with httpx.Client(base_url=front.admin_url, trust_env=False, timeout=20) as client:
        yield Plane(front, client)


def written(gateway: RunningGateway) -> Any:
    """What any write to the store would move."""
    store, run = gateway.gateway.core.store, gateway.site.run
    return run(store.versions()), run(store.audit_head())


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://169.254.169.254:80/latest/meta-data",
        "http://10.0.0.7:8000",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://2130706433:8000",
        "http://0x7f.1:8000",
        "http://127.1:8000",
        "http://localhost.evil.example:8000",
        "http://gpu.example:8000",
        "https://evil.example:8443",
        "https://gpu.example.evil.example",
        "https://xgpu.example",
        "https://169.254.169.254",
        "http://user:hunter2@127.0.0.1:8000",
        "http://127.0.0.1:8000@evil.example",
        "http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000?x=1",
        "http://127.0.0.1:8000#x",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:8000\n",
        "http://127.0.0.1:8000\r\nx: y",
        "http://127.0.0.1\x00:8000",
        "http://127。0。0。1:8000",
        "file:///etc/passwd",
        "unix:///run/engine.sock",
        "//127.0.0.1:8000",
        "127.0.0.1:8000",
        "",
        "http://" + "a" * 10_000,
        "http://[" + ":" * 10_000 + "]",
    ],
)
def test_an_engine_where_prompts_may_not_go_is_not_added(url: str, front: RunningGateway, plane: Plane) -> None:
    before, known = written(front), front.gateway.core.registry.replicas
    answer = plane.ask("operator", "POST", "/admin/fleet", json={"url": url})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert "expected" in answer.json()["error"]["message"]
    assert "hunter2" not in answer.text
    assert "evil" not in answer.text
    assert len(answer.text) < 500
    assert written(front) == before
    assert front.gateway.core.registry.replicas == known
    result = Desk(front)("add", "--", url)
    assert result.exit_code in {1, 2}
    assert "expected" in result.output
    assert "hunter2" not in result.output
    assert written(front) == before


def test_a_host_that_is_listed_may_be_added(plane: Plane) -> None:
    answer = plane.ask("operator", "POST", "/admin/fleet", json={"url": "https://GPU.example"})
    assert answer.status_code == 201
    assert (answer.json()["url"], answer.json()["replica"]["state"]) == ("https://gpu.example:443", "found")
    assert plane.ask("operator", "POST", "/admin/fleet-remove/gpu.example:443").status_code == 200


@pytest.mark.parametrize(
    "engine_id",
    [
        "a/b",
        "a%2Fb:80",
        "..",
        "..%2f..%2fkeys",
        "%2e%2e/keys",
        "../keys",
        "127.0.0.1:8001/../../keys",
        "127.0.0.1:8001/%2e%2e/%2e%2e/keys",
        "x" * 10_000 + ":80",
        "127.0.0.1:8001%00",
        "127.0.0.1:8001%0a",
        "127.0.0.1:8001%1b[31m",
        "http:%2f%2f127.0.0.1:8001",
        "user:hunter2@127.0.0.1:8001",
        "127.0.0.1",
        "[::1",
        "';%20drop%20table%20engine_orders;%20--:80",
    ],
)
def test_an_id_that_is_none_changes_nothing_and_is_not_repeated(
    engine_id: str, front: RunningGateway, plane: Plane
) -> None:
    before = written(front)
    for method, verb in (("GET", ""), *(("POST", f"-{verb}") for verb in ("remove", "drain", "undrain", "warm"))):
        answer = plane.ask("operator", method, f"/admin/fleet{verb}/{engine_id}")
        assert answer.status_code in {400, 403, 404, 405, 431}, (verb, answer.text)
        assert "hunter2" not in answer.text
        assert len(answer.text) < 500
    assert written(front) == before


def test_a_viewer_sees_and_does_nothing(front: RunningGateway, plane: Plane) -> None:
    before = written(front)
    (engine,) = front.gateway.core.registry.replicas
    assert plane.ask("viewer", "GET", "/admin/fleet").status_code == 200
    assert plane.ask("viewer", "GET", f"/admin/fleet/{engine.id}").status_code == 200
    for verb in ("-remove", "-drain", "-undrain", "-warm"):
        refused = plane.ask("viewer", "POST", f"/admin/fleet{verb}/{engine.id}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "verb_forbidden")
    assert plane.ask("viewer", "POST", "/admin/fleet", json={"url": "http://127.0.0.1:9"}).status_code == 403
    assert written(front) == before
    assert engine.life.state.value == "ready"


def test_no_answer_holds_a_secret_or_a_prompt(site: Site) -> None:
    engine = site.engine(**INSTANT)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")
    canary = "canary-078-05-1120"
    key = gateway.key()
    with httpx.Client(trust_env=False, timeout=20) as client:
        body = {**CHAT, "messages": [{"role": "user", "content": canary}]}
        asked = client.post(f"{gateway.base_url}/chat/completions", json=body, headers={"x-api-key": key})
        assert asked.status_code == 200
    desk = Desk(gateway)
    shown = desk.ok("list", "--json").output + desk.ok("show", id_of(engine), "--json").output
    for secret in (canary, key, gateway.gateway.core.held.admin_token.reveal()):
        assert secret not in shown


def test_how_the_fleet_stands_is_told_while_the_store_is_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = site.engine(**INSTANT)
    gateway = site.gateway([engine])
    gateway.wait_ready("sim-model")

    async def gone(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is gone")

    for name in ("engine_orders", "versions", "drain_engine", "note"):
        monkeypatch.setattr(gateway.gateway.core.store, name, gone)
    desk = Desk(gateway)
    result = desk.ok("list")
    assert id_of(engine) in result.stdout
    assert "The state store cannot be read now" in result.stderr
    for verb in ("drain", "warm"):
        assert "disk" not in desk.refused(verb, id_of(engine))
    assert gateway.gateway.core.registry.replicas[0].life.state.value == "ready"
