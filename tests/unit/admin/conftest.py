"""An admin plane over a real store, and what the tests turn and count."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.admin.build import build_admin
from gateway.admin.news import PolicyNews
from gateway.admin.operations import Mint, issue_key
from gateway.admin.rules import policy_view
from gateway.admin.schemas import KeyOrder
from gateway.admin.state import AdminState
from gateway.admin.writes import WriteLimit
from gateway.identity.keyring import KeyRing
from gateway.policy.access import parse_access
from gateway.secret import Secret
from gateway.stores.interfaces import StateStore
from gateway.stores.open import open_store
from tests.redisserver import RedisServer

TOKEN = "gwadmin_" + "t" * 43
PEPPER = "p" * 43
POLICY = """
roles:
  user: {aliases: ["*"], limits: {requests_per_minute: 60}}
  viewer: {admin: viewer}
  operator: {admin: operator}
  admin: {admin: admin}
  key-maker: {admin: [keys:read, keys:write]}
default_roles: [user]
limits: {concurrency: 8}
tenants:
  acme: {aliases: ["acme-*"], limits: {tokens_per_day: 1000}}
"""


class Failures:
    """Counts failures by source; ``wait`` blocks every source."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.wait: int | None = None

    def blocked(self, source: str) -> int | None:
        return self.wait

    def failed(self, source: str) -> None:
        self.sources.append(source)


@dataclass
class Plane:
    """An admin plane over a real store, with what the tests turn and count."""

    store: StateStore
    client: httpx.AsyncClient
    seen: dict[str, Any]
    mint: Mint

    async def key(self, name: str, *roles: str, **fields: Any) -> str:
        """A key with these roles, straight into the store; its text."""
        order = KeyOrder(name=name, roles=list(roles), **fields)
        _, text = await issue_key(self.store, self.mint, order, author="test", now=self.seen["now"])
        return text.reveal()


@dataclass
class Harness:
    """Runs a test body against a plane of its own."""

    folder: Path
    token: str = TOKEN
    pepper: str = PEPPER
    url: str = ""
    seen: dict[str, Any] = field(
        default_factory=lambda: {
            "changed": 0,
            "ready": True,
            "served": ["model-a"],
            "now": 1_000.0,
            "tick": 0.0,
            "fault": None,
            "failures": Failures(),
            "tracks": {},
            "policies": SimpleNamespace(valid=True, epoch=0),
        }
    )

    def run(self, body: Callable[[Plane], Awaitable[Any]], token: str | None = TOKEN) -> Any:
        return asyncio.run(self._run(body, token))

    async def _run(self, body: Callable[[Plane], Awaitable[Any]], token: str | None) -> Any:
        store = await open_store(self.url or f"sqlite://{self.folder / 'state.db'}")
        ring = KeyRing(store, {1: Secret(PEPPER)}, lambda: self.seen["now"])
        await ring.refresh()

        async def changed() -> None:
            self.seen["changed"] += 1
            if self.seen["fault"]:
                raise self.seen["fault"]
            await ring.refresh()

        access = parse_access(POLICY, "access.yaml")
        news = self.seen["news"] = PolicyNews(lambda: self.seen["now"])
        state = AdminState(
            store=store,
            pepper=Secret(PEPPER),
            admin_token=Secret(TOKEN),
            changed=changed,
            render_metrics=lambda: b"# HELP x x\n",
            ready=lambda: bool(self.seen["ready"]),
            served_models=lambda: self.seen["served"],
            callers=ring,
            failures=self.seen["failures"],
            access=lambda: access,
            policy=lambda: policy_view(news, self.seen["policies"]),
            compare=lambda name: self.seen["tracks"].get(name, {}),
            writes=WriteLimit(monotonic=lambda: self.seen["tick"]),
            clock=lambda: self.seen["now"],
            random=random.Random(7),
        )
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(build_admin(state), raise_app_exceptions=False, client=("192.0.2.1", 1))
        mint = Mint(Secret(PEPPER), 1, random.Random(8))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
                return await body(Plane(store, client, self.seen, mint))
        finally:
            await ring.close()
            await store.close()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A plane of the test's own."""
    return Harness(tmp_path)


@pytest.fixture(params=["redis", "sqlite"])
def each_store(request: pytest.FixtureRequest, harness: Harness) -> Iterator[Harness]:
    """A plane of the test's own, once over each kind of store."""
    if request.param == "sqlite":
        yield harness
        return
    with RedisServer(harness.folder / "redis") as server:
        harness.url = server.url()
        yield harness


@pytest.fixture
def error() -> Callable[[httpx.Response, int, str], str]:
    """Checks the form of an error answer and gives its message."""

    def message(response: httpx.Response, status: int, code: str) -> str:
        assert response.status_code == status, response.text
        body = response.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["code"] == code
        return str(body["error"]["message"])

    return message
