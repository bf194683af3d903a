"""What the tests of known holes share: a gateway with an engine behind it, and a look at what reached the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from loadtests.rawclient import RawAnswer, RawClient

# What the gateway asks of an engine by itself.
_OWN_PATHS = {"/health", "/v1/models", "/version", "/metrics"}


@dataclass(frozen=True)
class Front:
    """A gateway, the engine behind it and a valid key."""

    engine: Any
    gateway: Any
    key: str

    def send(self, data: bytes) -> RawAnswer:
        """Send these bytes on a connection of their own; the answer, which must come."""
        with RawClient(self.gateway.address) as client:
            client.send_until_answered([data[at : at + 65_536] for at in range(0, len(data), 65_536)])
            answer = client.answer()
        assert answer is not None
        return answer

    def head(self, method: str, path: str, *headers: str, key: str | None = None, host: str | None = "gw") -> bytes:
        """A request's head. ``key`` ``""`` is none; ``host`` ``None`` is no Host header."""
        lines = [f"{method} {path} HTTP/1.1", *headers]
        if host is not None:
            lines.insert(1, f"Host: {host}")
        if key != "":
            lines.append(f"Authorization: Bearer {self.key if key is None else key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def get(self, path: str, *headers: str, **changed: Any) -> RawAnswer:
        """A GET."""
        return self.send(self.head("GET", path, *headers, **changed))

    def post(self, path: str, body: dict[str, Any] | bytes, *headers: str, **changed: Any) -> RawAnswer:
        """A POST of a JSON body."""
        octets = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = f"Content-Length: {len(octets)}"
        return self.send(
            self.head("POST", path, *headers, "Content-Type: application/json", length, **changed) + octets
        )

    def received(self) -> list[Any]:
        """What clients' requests have sent to the engine since the last call."""
        received = [request for request in list(self.engine.requests) if request.path not in _OWN_PATHS]
        self.engine.requests.clear()
        return received

    def passes(self, path: str, body: dict[str, Any] | bytes, *headers: str, status: int = 200, **changed: Any) -> Any:
        """The request reaches the engine, which answers with ``status``; what the engine got."""
        self.received()
        answer = self.post(path, body, *headers, **changed)
        assert answer.status == status, answer.body
        (request,) = self.received()
        return request

    def refuses(self, path: str, body: dict[str, Any] | bytes, *headers: str, status: int = 400, **changed: Any) -> Any:
        """The request is refused, and no engine hears of it; the error object."""
        self.received()
        answer = self.post(path, body, *headers, **changed)
        assert answer.status == status, answer.body
        assert self.received() == []
        return json.loads(answer.body)["error"]


@pytest.fixture(scope="module")
def front_of(shared_site: Any) -> Callable[..., Front]:
    """Makes fronts; ``settings`` are the gateway's."""

    def make(engine: Any, **settings: Any) -> Front:
        gateway = shared_site.gateway([engine], probe_interval=60, **settings)
        gateway.wait_ready("sim-model")
        return Front(engine, gateway, gateway.key())

    return make


@pytest.fixture(scope="module")
def policies_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder of policies: the default ones with pieces of ``guards.yaml`` replaced."""

    def make(*changes: Sequence[str]) -> Path:
        folder = tmp_path_factory.mktemp("policies") / "policies"
        shutil.copytree(str(files("policies")), folder)
        path = folder / "guards.yaml"
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        return folder

    return make
