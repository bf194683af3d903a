"""Who may call, and how much, through whole gateways: keys, tokens, policies and limits as clients meet them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from gateway.model import Limits
from tests.conftest import RunningGateway, Site
from tests.issuer import Issuer
from tests.redisserver import RedisServer

ALIAS = "internal-general"
CHAT = {"model": ALIAS, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer("RS256", "ES256", "EdDSA") as issuer:
        yield issuer


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A folder of policies to change."""
    folder = tmp_path / "policies"
    folder.mkdir()
    for name in ("guards.yaml", "access.yaml"):
        shutil.copy(str(files("policies").joinpath(name)), folder / name)
    return folder


def _trusts(issuer: Issuer) -> str:
    """An access policy that takes the issuer's tokens: its group ``staff`` is the role ``user`` of tenant ``acme``."""
    return f"""
roles:
  user: {{aliases: ["*"]}}
  viewer: {{admin: [viewer]}}
default_roles: []
unlisted_tenants: allow
issuers:
  corp:
    issuer: {issuer.url}
    audiences: [{issuer.claims()["aud"]}]
    algorithms: [RS256, ES256, EdDSA]
    tenant: {{fixed: acme}}
    roles: {{claim: groups, values: {{staff: user, ops: viewer}}}}
"""


@pytest.fixture
def new_client() -> Iterator[Callable[[RunningGateway, str], openai.OpenAI]]:
    """OpenAI clients that never retry, closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(gateway: RunningGateway, key: str) -> openai.OpenAI:
            http = stack.enter_context(httpx.Client(trust_env=False))
            return openai.OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0, http_client=http)

        yield make


def _ask(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(
        model=ALIAS, messages=[{"role": "user", "content": "hello"}], max_completion_tokens=4
    )
    return answer.choices[0].finish_reason


def _post(gateway: RunningGateway, key: str, **body: object) -> httpx.Response:
    with httpx.Client(trust_env=False) as http:
        return http.post(
            f"{gateway.base_url}/chat/completions",
            json={**CHAT, **body},
            headers={"authorization": f"Bearer {key}"},
        )


def _serving(site: Site, **flags: object) -> RunningGateway:
    gateway = site.gateway([site.engine(model="served", step_time=0.001)], **flags)
    gateway.wait_ready("served")
    gateway.alias(ALIAS, "served")
    return gateway


# --- tokens


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_of_a_trusted_issuer_is_a_principal(site, issuer, policies, algorithm, new_client):
    (policies / "access.yaml").write_text(_trusts(issuer))
    gateway = _serving(site, policies=policies)
    assert _ask(new_client(gateway, issuer.token(algorithm, groups=["staff", "else"]))) == "length"
    record = gateway.records.last(status=200)
    assert record["tenant"] == "acme"
    assert record["key_id"].startswith("jwt_")
    assert issuer.claims()["sub"] not in str(record)


def test_what_no_rule_maps_is_not_granted(site, issuer, policies, new_client):
    (policies / "access.yaml").write_text(_trusts(issuer))
    gateway = _serving(site, policies=policies)
    with pytest.raises(openai.PermissionDeniedError):
        _ask(new_client(gateway, issuer.token(groups=["other"])))
    assert new_client(gateway, issuer.token(groups=["staff"])).models.list().data[0].id == ALIAS
    assert new_client(gateway, issuer.token(groups=[])).models.list().data == []


def test_a_rotated_key_is_taken_at_once_and_a_withdrawn_one_is_out(site, issuer, policies):
    (policies / "access.yaml").write_text(_trusts(issuer))
    gateway = _serving(site, policies=policies)
    old = issuer.token("ES256", groups=["staff"])
    assert _post(gateway, old).status_code == 200
    issuer.rotate("ES256")
    assert _post(gateway, issuer.token("ES256", groups=["staff"])).status_code == 200
    assert _post(gateway, old).status_code == 200


def test_a_cached_token_never_waits_for_a_slow_issuer(site, issuer, policies):
    (policies / "access.yaml").write_text(_trusts(issuer))
    gateway = _serving(site, policies=policies)
    token = issuer.token(groups=["staff"])
    assert _post(gateway, token).status_code == 200
    strange = issuer.token(header={"kid": "not-there"}, groups=["staff"])
    with issuer.held():

        async def both() -> tuple[float, int]:
            headers = {"authorization": f"Bearer {strange}"}
            async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=30) as http:
                hits = issuer.hits.total()
                waiting = asyncio.create_task(http.post("/chat/completions", json=CHAT, headers=headers))
                while issuer.hits.total() == hits:
                    await asyncio.sleep(0.005)
                begun = time.monotonic()
                for _ in range(5):
                    answer = await http.post(
                        "/chat/completions", json=CHAT, headers={"authorization": f"Bearer {token}"}
                    )
                    assert answer.status_code == 200
                took = time.monotonic() - begun
                assert not waiting.done()
                waiting.cancel()
                await asyncio.wait([waiting])
                return took

        assert asyncio.run(both()) < 5.0


def test_roles_of_a_token_open_the_admin_plane_as_far_as_their_verbs_go(site, issuer, policies):
    (policies / "access.yaml").write_text(_trusts(issuer))
    gateway = _serving(site, policies=policies)
    headers = {"authorization": f"Bearer {issuer.token(groups=['ops'])}"}
    with httpx.Client(base_url=gateway.admin_url, trust_env=False, headers=headers) as http:
        assert http.get("/admin/keys").status_code == 200
        refused = http.post("/admin/keys", json={"name": "mine"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "verb_forbidden")
        http.headers["authorization"] = f"Bearer {issuer.token(groups=['staff'])}"
        assert http.get("/admin/keys").status_code == 403


# --- policy files


def test_a_changed_policy_is_in_force_without_a_restart_and_a_faulty_one_is_not(site, policies, wait_until):
    gateway = _serving(site, policies=policies)
    key = gateway.key("app")
    with httpx.Client(trust_env=False, headers={"authorization": f"Bearer {key}"}) as http:  # one connection, kept

        def status() -> int:
            return http.post(f"{gateway.base_url}/chat/completions", json=CHAT).status_code

        assert status() == 200
        shipped = (policies / "access.yaml").read_text()
        (policies / "access.yaml").write_text('roles: {user: {aliases: ["other-*"]}}\ndefault_roles: [user]\n')
        wait_until(lambda: status() == 404, "the new policy")
        (policies / "access.yaml").write_text("roles: {user: {aliases: 7, nonsense: 1}}\n")
        wait_until(lambda: "gateway_policy_valid 0.0" in gateway.metrics(), "the fault in the metrics")
        assert status() == 404
        told = next(text for text in gateway.reports if "policy files are not valid" in text)
        assert all(word in told for word in ("aliases", "nonsense", "default_roles"))
        (policies / "access.yaml").write_text(shipped)
        wait_until(lambda: status() == 200, "the policy of before")
        assert "gateway_policy_valid 1.0" in gateway.metrics()
        assert sum("policy files were read again" in text for text in gateway.reports) == 2


# --- limits


def test_a_reached_limit_is_the_clients_own_exception(site, new_client):
    gateway = _serving(site)
    key = gateway.key("app", limits=Limits(requests_per_minute=1))
    client = new_client(gateway, key)
    _ask(client)
    with pytest.raises(openai.RateLimitError) as refused:
        _ask(client)
    assert refused.value.code == "rate_limited"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    direct = anthropic.DefaultHttpxClient(trust_env=False)
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0, http_client=direct) as other,
        pytest.raises(anthropic.RateLimitError),
    ):
        other.messages.create(model=ALIAS, max_tokens=4, messages=CHAT["messages"])


def _state(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite://{tmp_path / 'shared' / 'state.db'}"
    server = RedisServer(tmp_path / "redis")
    request.addfinalizer(server.close)
    return server.url()


@pytest.fixture(params=["sqlite", "redis"])
def pair(request, site, tmp_path, monkeypatch) -> tuple[RunningGateway, RunningGateway]:
    """Two instances on one state, in front of one engine. A host that stands still is no lost store here."""
    monkeypatch.setattr("gateway.limits.open.LIMITS_TIMEOUT", 10.0)
    monkeypatch.setattr("gateway.limits.open._DEADLINE", 10.0)
    (tmp_path / "redis").mkdir()
    state = _state(request.param, tmp_path, request)
    engine = site.engine(model="served", step_time=0.001)
    flags = {"state_folder": tmp_path / "shared"} if request.param == "redis" else {}
    gateways = [site.gateway([engine], state=state, **flags) for _ in range(2)]
    for gateway in gateways:
        gateway.wait_ready("served")
        gateway.alias(ALIAS, "served")
    return gateways[0], gateways[1]


def test_a_revoked_key_is_refused_by_another_instance_within_two_seconds(pair):
    one, other = pair
    key = one.key("app")
    took = []
    for _ in range(3):
        assert _post(other, key).status_code == 200
        record = one.site.run(one.gateway.core.store.revoke_key("app", at=time.time(), author="test"))
        begun = time.monotonic()
        while (status := _post(other, key).status_code) == 200:
            assert time.monotonic() - begun < 2.0
        took.append(time.monotonic() - begun)
        assert (status, record.revoked_at is not None) == (401, True)
        key = one.key("app")
    assert max(took) < 2.0


async def _many(gateways: tuple[RunningGateway, ...], key: str, count: int) -> list[httpx.Response]:
    async def one(number: int) -> httpx.Response:
        gateway = gateways[number % len(gateways)]
        return await http.post(
            f"{gateway.base_url}/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"}
        )

    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(trust_env=False, timeout=30, limits=limits) as http:
        return await asyncio.gather(*(one(number) for number in range(count)))


@pytest.mark.parametrize("figure", ["requests_per_minute", "tokens_per_minute", "tokens_per_day"])
def test_parallel_requests_do_not_slip_past_a_limit_that_instances_share(pair, figure):
    """On SQLite each instance counts by itself: all go to one. On Redis they count together."""
    shared = pair[0].gateway.settings.state.startswith("redis")
    gateways = pair if shared else pair[:1]
    # Four bytes of the body for a token and what it asks for; of that an engine uses less.
    reserved = -(-len(httpx.Request("POST", "http://x", json=CHAT).content) // 4) + CHAT["max_tokens"]
    room = 7 if figure == "requests_per_minute" else 7 * reserved + 5
    key = pair[0].key("app", limits=Limits(**{figure: room}))
    answers = asyncio.run(_many(gateways, key, 24))
    counted = Counter(answer.status_code for answer in answers)
    assert set(counted) == {200, 429}
    if figure == "requests_per_minute":
        assert counted[200] == 7
    else:
        used = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
        assert counted[200] >= 7
        assert used <= room
    codes = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 429}
    assert codes == {"rate_limited" if figure == "requests_per_minute" else "tokens_limited"}


def test_as_many_at_once_as_the_limit_says(pair):
    shared = pair[0].gateway.settings.state.startswith("redis")
    gateways = pair if shared else pair[:1]
    key = pair[0].key("app", limits=Limits(concurrency=3))

    async def use() -> tuple[list[int], int]:
        body = {**CHAT, "max_tokens": 4_000, "ignore_eos": True, "stream": True}
        headers = {"authorization": f"Bearer {key}"}
        begun: list[int] = []
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:

            async def one(number: int) -> None:
                url = f"{gateways[number % len(gateways)].base_url}/chat/completions"
                async with http.stream("POST", url, json=body, headers=headers) as answer:
                    begun.append(answer.status_code)
                    if answer.status_code == 200:
                        await over.wait()

            over = asyncio.Event()
            calls = [asyncio.create_task(one(number)) for number in range(9)]
            while len(begun) < 9:
                await asyncio.sleep(0.01)
            over.set()
            await asyncio.gather(*calls)
            deadline = time.monotonic() + 5
            after = 429
            while after != 200:
                assert time.monotonic() < deadline
                answer = await http.post(f"{gateways[0].base_url}/chat/completions", json=CHAT, headers=headers)
                after = answer.status_code
                await asyncio.sleep(0.02)
            return begun, after

    begun, after = asyncio.run(use())
    assert Counter(begun) == {200: 3, 429: 6}
    assert after == 200


def test_a_cut_stream_is_charged_for_what_was_sent(site):
    gateway = _serving(site)
    key = gateway.key("app", limits=Limits(tokens_per_minute=9_000))
    headers = {"authorization": f"Bearer {key}"}

    async def leave_early() -> None:
        body = {**CHAT, "max_tokens": 8_000, "ignore_eos": True, "stream": True}
        lines = 0
        async with (
            httpx.AsyncClient(trust_env=False, timeout=30, headers=headers) as http,
            http.stream("POST", f"{gateway.base_url}/chat/completions", json=body) as answer,
        ):
            async for line in answer.aiter_lines():
                lines += line.startswith("data: ")
                if lines == 50:
                    return

    begun = time.monotonic()
    asyncio.run(leave_early())
    events = gateway.records.last(status=499)["events"]
    left = int(_post(gateway, key).headers["x-ratelimit-remaining-tokens"])
    refilled = 9_000 / 60 * (time.monotonic() - begun)
    assert events >= 50
    assert 9_000 - events - 100 < left <= 9_000 - events + refilled
