"""A trial of a new model through a whole gateway: its share, its side of each conversation, its end."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from tests.conftest import RunningGateway, Site

ALIAS = "internal-general"


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=30) as http:
        yield http


def _serving(site: Site, tmp_path: Path, canary: str = "") -> tuple[RunningGateway, object]:
    policies = tmp_path / "policies"
    policies.mkdir()
    for name in ("guards.yaml", "access.yaml"):
        shutil.copy(str(files("policies").joinpath(name)), policies)
    (policies / "routing.yaml").write_text(f"canary: {{{canary}}}\n")
    engines = [site.engine(model=model, step_time=0.001) for model in ("old-model", "new-model")]
    gateway = site.gateway(engines, policies=policies)
    for model in ("old-model", "new-model"):
        gateway.wait_ready(model)
    gateway.alias(ALIAS, "old-model")
    return gateway, engines[1]


def _admin(http: httpx.Client, gateway: RunningGateway, verb: str, **order: object) -> httpx.Response:
    token = gateway.gateway.core.held.admin_token.reveal()
    return http.post(
        f"{gateway.admin_url}/admin/alias-{verb}/{ALIAS}", json=order, headers={"authorization": f"Bearer {token}"}
    )


def _talk(http: httpx.Client, gateway: RunningGateway, key: str, number: int, stream: bool = False) -> httpx.Response:
    return http.post(
        f"{gateway.base_url}/chat/completions",
        json={
            "model": ALIAS,
            "messages": [{"role": "user", "content": f"conversation {number}"}],
            "max_tokens": 2,
            "stream": stream,
        },
        headers={"authorization": f"Bearer {key}"},
    )


def test_a_trial_gets_its_share_is_compared_and_promoted_and_names_no_model(site, tmp_path, http):
    gateway, _ = _serving(site, tmp_path)
    key = gateway.key("app")
    begun = _admin(http, gateway, "canary", model="new-model", weight=30)
    assert (begun.status_code, begun.json()["revision"]) == (200, 2)
    for number in range(100):
        answer = _talk(http, gateway, key, number, stream=number % 2 == 0)
        assert answer.headers["x-gateway-alias"] == f"{ALIAS}@2"
        assert "new-model" not in answer.text + str(answer.headers)
        assert "old-model" not in answer.text + str(answer.headers)
    gateway.records.last(status=200)
    tracks = Counter(record["track"] for record in gateway.records.lines if record["revision"] == 2)
    assert 12 <= tracks["canary"] <= 50
    token = gateway.gateway.core.held.admin_token.reveal()
    told = http.get(
        f"{gateway.admin_url}/admin/alias-compare/{ALIAS}", headers={"authorization": f"Bearer {token}"}
    ).json()
    assert told["stable"]["requests"] + told["canary"]["requests"] == 100
    assert f'alias="{ALIAS}",outcome="served",revision="2",track="canary"' in gateway.metrics()
    assert _admin(http, gateway, "promote").json()["revision"] == 3
    assert _talk(http, gateway, key, 1).headers["x-gateway-alias"] == f"{ALIAS}@3"
    assert gateway.records.last(revision=3)["model"] == "new-model"


def test_a_trial_that_fails_ends_by_itself_where_policy_says_so(site, tmp_path, http, wait_until):
    gateway, engine = _serving(site, tmp_path, "abort: true")
    key = gateway.key("app")
    assert _admin(http, gateway, "canary", model="new-model", weight=50).status_code == 200

    async def break_it() -> None:
        engine.faults.set("status_burst", status=500, count=1_000_000)

    site.run(break_it())
    for number in range(160):
        _talk(http, gateway, key, number)
    aliases = gateway.gateway.core.aliases
    wait_until(lambda: aliases.table.current[ALIAS].number == 3, "the end of the trial")
    revision = aliases.table.current[ALIAS]
    assert (revision.source, revision.author) == ("rollback", "gateway")
    assert {_talk(http, gateway, key, number).status_code for number in range(20)} == {200}
