"""A gateway whose shared store is gone: what goes on, what is refused, and for how long, feature by feature."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.identity.secrets import SecretFault
from gateway.model import Limits, Principal
from gateway.stores.interfaces import StoreUnavailable
from gateway.stores.kept import kept_table
from tests.conftest import RunningGateway, Site, wait_until
from tests.issuer import Issuer
from tests.redisserver import RedisServer

ALIAS = "internal-general"
CHAT = {"model": ALIAS, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
FAULTS: dict[str, Callable[[RedisServer], None]] = {
    "frozen": RedisServer.freeze,
    "killed": RedisServer.kill,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder) as server:
        yield server


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer("ES256") as issuer:
        yield issuer


def _gateway(site: Site, server: RedisServer, folder: Path, issuer: Issuer, grace: float = 300) -> RunningGateway:
    policies = folder / "policies"
    policies.mkdir()
    shutil.copy(str(files("policies").joinpath("guards.yaml")), policies)
    (policies / "access.yaml").write_text(f"""
roles: {{user: {{aliases: ["*"]}}}}
default_roles: [user]
outage: {{limit_share: 0.5, key_grace: {grace}}}
issuers:
  corp:
    issuer: {issuer.url}
    audiences: [{issuer.claims()["aud"]}]
    algorithms: [ES256]
    tenant: {{fixed: acme}}
    roles: {{fixed: [user]}}
""")
    engine = site.engine(model="served", step_time=0.001)
    gateway = site.gateway([engine], state=server.url(), state_folder=folder / "state", policies=policies)
    gateway.wait_ready("served")
    gateway.alias(ALIAS, "served")
    return gateway


@pytest.fixture(params=FAULTS)
def fault(request) -> Callable[[RedisServer], None]:
    return FAULTS[request.param]


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30) as http:
        yield http


def _chat(http: httpx.Client, gateway: RunningGateway, key: str) -> httpx.Response:
    return http.post(f"{gateway.base_url}/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"})


def _known(http: httpx.Client, gateway: RunningGateway, name: str, **fields: Any) -> str:
    """A key that the instance has in its cache, to stay: it has heard of the key's making, after which it forgets what
    it read of the key before. What is read while another write is being taken in is not kept."""
    key = gateway.key(name, **fields)
    ring = gateway.gateway.core.keys
    gateway.site.run(ring.refresh())
    wait_until(lambda: _chat(http, gateway, key).status_code == 200 and isinstance(ring.lookup(key), Principal), name)
    return key


def test_without_its_store_a_gateway_serves_what_it_knows_and_refuses_the_rest(
    site, server, tmp_path, issuer, fault, http
):
    gateway = _gateway(site, server, tmp_path, issuer)
    unknown = gateway.key("unknown")
    known, token = _known(http, gateway, "known"), issuer.token()
    assert _chat(http, gateway, token).status_code == 200
    fault(server)
    wait_until(lambda: any("state store" in text for text in gateway.reports), "the report of the outage")

    # Keys that are known work; one that is not cannot be checked, which is no 401.
    assert _chat(http, gateway, known).status_code == 200
    refused = _chat(http, gateway, unknown)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert refused.headers["retry-after"] == "1"
    # Tokens need no store; aliases stay as they were last seen; readiness stays.
    assert _chat(http, gateway, token).status_code == 200
    assert http.get(f"{gateway.url}/readyz").status_code == 200
    # Nothing is written, and nothing is read that could be old.
    admin = {"authorization": f"Bearer {gateway.gateway.core.held.admin_token.reveal()}"}
    for method, path, body in (
        ("POST", "/admin/keys", {"name": "new"}),
        ("POST", "/admin/keys/known/revoke", None),
        ("POST", "/admin/keys/known/rotate", {}),
        ("PUT", f"/admin/aliases/{ALIAS}", {"model": "served"}),
        ("GET", "/admin/keys", None),
        ("GET", "/admin/audit", None),
    ):
        answer = http.request(method, gateway.admin_url + path, headers=admin, json=body)
        assert (method, path, answer.status_code) == (method, path, 503)
    assert http.get(f"{gateway.admin_url}/metrics").status_code == 200


def test_limits_do_not_vanish_with_the_store_each_instance_grants_its_share(
    site, server, tmp_path, issuer, fault, http
):
    gateway = _gateway(site, server, tmp_path, issuer)
    limited = _known(http, gateway, "limited", limits=Limits(requests_per_minute=20))
    fault(server)
    seen = Counter(_chat(http, gateway, limited).status_code for _ in range(20))
    # Half of twenty, give or take what a slow host lets a limit get back, or had it count alone before.
    assert set(seen) == {200, 429}
    assert 9 <= seen[200] <= 12
    assert any("limits" in text for text in gateway.reports)


def test_the_store_is_used_again_when_it_is_back(site, server, tmp_path, issuer, http):
    gateway = _gateway(site, server, tmp_path, issuer)
    unknown = gateway.key("unknown")
    known = _known(http, gateway, "known", limits=Limits(requests_per_minute=1_000))
    server.freeze()
    assert _chat(http, gateway, unknown).status_code == 503
    server.thaw()
    wait_until(lambda: _chat(http, gateway, unknown).status_code == 200, "the store to be asked again")
    core = gateway.gateway.core
    wait_until(lambda: _chat(http, gateway, known).status_code == 200 and not core.limits.alone(), "shared limits")


def test_keys_stop_working_when_the_store_was_gone_for_too_long(site, server, tmp_path, issuer, http):
    gateway = _gateway(site, server, tmp_path, issuer, grace=2)
    known, token = _known(http, gateway, "known"), issuer.token()
    server.freeze()
    begun = time.monotonic()
    while (answer := _chat(http, gateway, known)).status_code == 200:
        assert time.monotonic() - begun < 10
    assert time.monotonic() - begun > 1.0
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert _chat(http, gateway, token).status_code == 200


def test_an_instance_that_starts_without_the_store_serves_its_last_known_table(
    site, server, tmp_path, issuer, http, wait_until
):
    first = _gateway(site, server, tmp_path, issuer)
    key, token = _known(http, first, "known"), issuer.token()
    kept = first.gateway.core.aliases.table
    wait_until(lambda: kept_table(tmp_path / "state") == kept, "the table to be kept")
    server.freeze()
    flags = {"state_folder": tmp_path / "state", "policies": tmp_path / "policies"}
    second = site.gateway([first.gateway.settings.engines[0].url], state=server.url(), **flags)
    second.wait_ready("served")
    assert any("started without it" in text for text in second.reports)
    assert second.gateway.core.aliases.table == kept
    assert _chat(http, second, token).status_code == 200
    assert _chat(http, second, key).json()["error"]["code"] == "store_unavailable"
    assert http.get(f"{second.url}/readyz").status_code == 200
    server.thaw()
    wait_until(lambda: _chat(http, second, key).status_code == 200, "keys to be checked again")
    wait_until(lambda: not second.gateway.core.aliases.degraded, "the table to be read again")


def test_an_instance_that_never_knew_anything_does_not_start_without_the_store(site, server, tmp_path, issuer):
    server.freeze()
    with pytest.raises(StoreUnavailable):
        site.gateway(["http://127.0.0.1:9"], state=server.url(), state_folder=tmp_path / "state")


def test_another_pepper_is_found_out_when_the_store_is_back(site, server, tmp_path, issuer, wait_until):
    first = _gateway(site, server, tmp_path, issuer)
    wait_until((tmp_path / "state" / "aliases.json").exists, "the table to be kept")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "state" / "aliases.json", other)
    server.freeze()
    url = first.gateway.settings.engines[0].url
    second = site.gateway([url], state=server.url(), state_folder=other, policies=tmp_path / "policies")
    server.thaw()
    failed = second.gateway.core.supervisor.failed
    wait_until(failed.done, "the instance to notice")
    assert isinstance(failed.result(), SecretFault)
