"""Each known hole of gateways and proxies like this one that a request can carry, named after its advisory.

The attack gets nothing and no engine hears of it; the same request in order is served. What only a token, a file or the
parser can carry is tested elsewhere; ``ELSEWHERE`` says where. ``IDS`` is the list that this file is held to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadtests.rawclient import RawClient

CHAT = "/v1/chat/completions"
Body = dict[str, Any]
SOUND: Body = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
# The headers that the gateway writes to an engine; anything else would be a client's.
OWN_HEADERS = {b"host", b"accept-encoding", b"content-type", b"content-length", b"x-request-id"}

IDS = {
    # LiteLLM
    "CVE-2026-42208", "CVE-2026-42271", "CVE-2026-47101", "CVE-2026-47102", "CVE-2026-40217", "CVE-2026-49468",
    "CVE-2024-6587", "CVE-2026-12796",
    # Starlette, Bifrost, Envoy AI Gateway, APISIX, OPA-Envoy, Fabio, oauth2-proxy
    "CVE-2026-48710", "GHSA-w98g-5w9p-p3rc", "GHSA-4gph-2hhr-5mwg", "CVE-2026-39999", "CVE-2026-49230",
    "CVE-2026-49872", "CVE-2026-31908", "CVE-2026-39998", "CVE-2026-26205", "CVE-2025-48865", "CVE-2025-54576",
    "CVE-2025-64484", "CVE-2026-40575",
}  # fmt: skip
ELSEWHERE = {
    "CVE-2026-35030": "tokens with equal beginnings: the tests of tokens",
    "CVE-2026-32597": "an unknown crit in a token: the tests of tokens",
    "GHSA-g53w-w6mj-hrpp": "default and short secrets: unit/identity/test_secrets.py",
}


def plain(advisory: str) -> str:
    return "_" + advisory.lower().replace("-", "_") + "_"


def test_every_advisory_has_its_test() -> None:
    names = [f"_{name}_" for name in globals() if name.startswith("test_")]
    assert [advisory for advisory in sorted(IDS) if not any(plain(advisory) in name for name in names)] == []
    assert IDS.isdisjoint(ELSEWHERE)


def test_every_test_of_an_advisory_names_one_that_is_listed() -> None:
    named = [name for name in globals() if name.startswith(("test_cve_", "test_ghsa_"))]
    assert [name for name in named if not any(plain(advisory) in f"_{name}_" for advisory in IDS)] == []


@pytest.fixture(scope="module")
def front(shared_site: Any, front_of: Callable[..., Any]) -> Any:
    return front_of(shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0))


@pytest.fixture(scope="module")
def media(shared_site: Any, front_of: Callable[..., Any], policies_with: Callable[..., Any]) -> Any:
    engine = shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
    return front_of(engine, policies=policies_with(("images: none ", "images: data ")))


def refuses(front: Any, attack: bytes, status: int) -> None:
    """These bytes get ``status`` and reach no engine; the same gateway still serves."""
    front.received()
    answer = front.send(attack)
    assert answer.status == status, answer.body
    assert front.received() == []
    front.passes(CHAT, SOUND)


# --- credentials


@pytest.mark.parametrize(
    ("credential", "status"),
    [
        ("' OR 1=1 --", 401),
        ("gw_test_'; DROP TABLE keys; --", 401),
        ('" UNION SELECT digest FROM keys --', 401),
        ("gw_test_%27%20OR%201=1", 401),
        ("\\x27 or 1=1", 401),
        ("a\x00b", 400),
        ("a' \xe9", 400),
        ("a" * 300, 401),
        ("a" * (1 << 20), 431),
    ],
    ids=["quote", "drop", "union", "encoded", "escaped", "nul", "latin", "long", "1MB"],
)
def test_cve_2026_42208_sql_in_the_credential(credential: str, status: int, front: Any) -> None:
    refuses(front, front.head("GET", "/v1/models", key=credential), status)
    answers = {front.get("/v1/models", key=key).body for key in ("' OR 1=1 --", "gw_test_unknown", "x")}
    assert len(answers) == 1


def test_cve_2026_42208_a_credential_that_adds_a_line(front: Any) -> None:
    refuses(front, front.head("GET", "/v1/models", key=f"x\r\nX-Api-Key: {front.key}"), 400)


def test_cve_2026_12796_a_connection_outlives_its_key(front: Any) -> None:
    """What a connection has learned of its caller ends with the key."""
    ends = time.time() + 2.0
    key = front.gateway.key("short", expires_at=ends)
    body = json.dumps(SOUND).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    request = front.head("POST", CHAT, *lines, key=key) + body
    with RawClient(front.gateway.address) as client:
        client.send(request)
        first = client.answer()
        assert first is not None
        assert first.status == 200
        while time.time() < ends:
            time.sleep(0.01)
        front.received()
        client.send(request)
        second = client.answer()
        assert second is not None
        assert second.status == 401
    assert front.received() == []


def test_a_hash_of_a_key_is_not_a_key(front: Any) -> None:
    """Hardening of April 2026: hashes that leaked could be used as credentials."""
    digest = hashlib.sha256(front.key.encode())
    for key in (
        digest.hexdigest(),
        base64.urlsafe_b64encode(digest.digest()).decode(),
        f"gw_test_{digest.hexdigest()}",
    ):
        front.refuses(CHAT, SOUND, status=401, key=key)
    files = front.gateway.gateway.settings.state_folder.rglob("*")
    kept = b"".join(path.read_bytes() for path in files if path.is_file())
    assert front.key.encode() not in kept
    assert digest.digest() not in kept
    assert digest.hexdigest().encode() not in kept


def token(head: Body, *parts: str) -> str:
    def coded(value: Body) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": "https://issuer.example", "sub": "root", "tenant": "default", "exp": 1 << 40}
    return ".".join([coded(head), coded(claims), *parts])


def test_cve_2026_39999_token_whose_algorithm_is_the_callers_choice(front: Any) -> None:
    for head in ({"alg": "none"}, {"alg": "None"}, {"alg": "HS256"}, {"alg": "HS256", "kid": "../../dev/null"}):
        for signature in ("", "AAAA", base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("=")):
            front.refuses(CHAT, SOUND, status=401, key=token(head, signature))


def test_cve_2026_49230_encrypted_token(front: Any) -> None:
    head = {"alg": "dir", "enc": "A256GCM"}
    front.refuses(CHAT, SOUND, status=401, key=token(head, "AAAA", "AAAA", "AAAA"))


# --- who is told to be calling, and from where


@pytest.mark.parametrize(
    "header",
    ["X-Consumer-Username: root", "X-Credential-Identifier: root", "X-Userinfo: eyJzdWIiOiJyb290In0=", "X-User: root"],
)
def test_cve_2026_49872_cve_2026_31908_cve_2026_39998_identity_in_a_header(header: str, front: Any) -> None:
    request = front.passes(CHAT, SOUND, header)
    assert {name for name, _ in request.headers} == OWN_HEADERS
    assert front.gateway.records.last(status=200)["tenant"] == "default"
    front.refuses(CHAT, SOUND, header, status=401, key="")


@pytest.mark.parametrize("header", ["X_Forwarded_User: root", "X-Forwarded_User: root", "AUTHORIZATION_: a", "_: a"])
def test_cve_2025_64484_underscore_twin_of_a_header(header: str, front: Any) -> None:
    front.refuses(CHAT, SOUND, header)


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-Uri: /healthz",
        "X-Original-URL: /healthz",
        "X-Rewrite-URL: /healthz",
        "X-Forwarded-Prefix: /healthz",
    ],
)
def test_cve_2026_40575_path_in_a_header(header: str, front: Any) -> None:
    front.refuses(CHAT, SOUND, header, status=401, key="")
    assert front.get("/v1/models", header, key="").status == 401


@pytest.mark.parametrize("agent", ["GoogleHC/1.0", "kube-probe/1.30", "ELB-HealthChecker/2.0", "Prometheus/3.0"])
def test_health_check_by_user_agent_is_no_credential(agent: str, front: Any) -> None:
    assert front.get("/v1/models", f"User-Agent: {agent}", key="").status == 401
    assert front.get("/healthz", f"User-Agent: {agent}", key="").status == 200


@pytest.mark.parametrize(
    "tokens",
    ["X-Forwarded-For", "close, Authorization", "Authorization", "keep-alive, Host", "Content-Length", "upgrade"],
)
def test_cve_2025_48865_connection_names_a_header_to_delete(tokens: str, front: Any) -> None:
    front.refuses(CHAT, SOUND, f"Connection: {tokens}")
    front.passes(CHAT, SOUND, "Connection: keep-alive, TE")


# --- which path


@pytest.mark.parametrize(
    "host", ["gw/healthz?", "gw/healthz#", "gw?", "gw#", "a@b", "gw /healthz", "gw\\healthz", "gw:80/healthz", "", None]
)
def test_cve_2026_49468_cve_2026_48710_host_decides_the_path(host: str | None, front: Any) -> None:
    for key in ("", front.key):
        refuses(front, front.head("GET", "/v1/models", host=host, key=key), 400)
        front.refuses(CHAT, SOUND, host=host, key=key)


def test_cve_2026_49468_two_hosts(front: Any) -> None:
    for second in ("gw", "gw/healthz?"):
        refuses(front, front.head("GET", "/v1/models", f"Host: {second}"), 400)


@pytest.mark.parametrize(
    "path",
    [
        "//admin/keys", "//v1/models", "/v1//models", "/./v1/models", "/v1/../v1/models", "/v1/%2e%2e/v1/models",
        "/v1%2fmodels", "/v1%5cmodels", "/v1/models%00", "/v1/models;x=1", "/healthz/../v1/models", "\\v1\\models",
    ],
)  # fmt: skip
def test_cve_2026_26205_path_read_in_two_ways(path: str, front: Any) -> None:
    for key in ("", front.key):
        answer = front.get(path, key=key)
        assert answer.status in (400, 404)
        assert b"sim-model" not in answer.body
    assert front.get("/v1/models").status == 200


@pytest.mark.parametrize(
    "path", ["/v1/models?/healthz", "/v1/models?next=/healthz", "/v1/models#/healthz", "/healthz?/../v1/models"]
)
def test_cve_2025_54576_query_or_fragment_passes_for_a_path(path: str, front: Any) -> None:
    for key in ("", front.key):
        answer = front.get(path, key=key)
        assert answer.status == 404
        assert b"sim-model" not in answer.body


# --- which host is called


@pytest.mark.parametrize("name", ["api_base", "base_url", "api_key", "custom_llm_provider", "litellm_params", "proxy"])
def test_cve_2024_6587_upstream_named_by_the_caller(name: str, front: Any) -> None:
    error = front.refuses(CHAT, SOUND | {name: "http://127.0.0.1:9/v1"})
    assert (error["code"], error["param"]) == ("invalid_request", name)
    front.refuses(f"{CHAT}?{name}=http://127.0.0.1:9/v1", SOUND, status=404)
    request = front.passes(CHAT, SOUND, f"X-LiteLLM-{name.replace('_', '-')}: http://127.0.0.1:9/v1")
    assert {header for header, _ in request.headers} == OWN_HEADERS


@pytest.mark.parametrize("header", ["X-Portkey-Custom-Host", "X-Custom-Host", "X-Forwarded-Host", "X-Upstream"])
def test_upstream_named_in_a_header(header: str, front: Any) -> None:
    request = front.passes(CHAT, SOUND, f"{header}: 127.0.0.1:9")
    assert {name for name, _ in request.headers} == OWN_HEADERS


@pytest.mark.parametrize(
    "host", ["100.64.0.1", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[fec0::1]", "[::ffff:127.0.0.1]", "2130706433", "0"]
)
def test_ghsa_w98g_5w9p_p3rc_address_that_a_deny_list_misses(host: str, media: Any) -> None:
    """Nothing is fetched, so there is no list to miss an address; images pass as data alone."""
    part = {"type": "image_url", "image_url": {"url": f"http://{host}/a.png"}}
    media.refuses(CHAT, SOUND | {"messages": [{"role": "user", "content": [part]}]})
    media.passes(CHAT, SOUND)


@pytest.mark.parametrize("path", ["/mcp-rest/test/connection", "/mcp-rest/test/tools/list", "/mcp", "/sse", "/v1/mcp"])
def test_cve_2026_42271_connection_test_that_runs_a_command(path: str, front: Any) -> None:
    front.refuses(path, {"command": "id", "args": []}, status=404)
    tool = {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1/", "command": "id"}
    front.refuses("/v1/responses", {"model": "sim-model", "input": "hi", "tools": [tool]})
    front.refuses(CHAT, SOUND | {"mcp_servers": [tool]})


# --- members


@pytest.mark.parametrize("name", ["Model", "MODEL", "mOdel", "model ", "mod\u212bl", "\uff4dodel", "ſtream"])
def test_ghsa_4gph_2hhr_5mwg_member_matched_without_case(name: str, front: Any) -> None:
    front.refuses(CHAT, SOUND | {name: "another-model"})
    front.refuses(CHAT, {name if key == "model" else key: value for key, value in SOUND.items()})


@pytest.mark.parametrize("second", ['"model":"another"', '"mod\\u0065l":"another"', '"\\u006dodel":"another"'])
def test_ghsa_4gph_2hhr_5mwg_member_written_twice(second: str, front: Any) -> None:
    whole = json.dumps(SOUND)
    front.refuses(CHAT, f"{whole[:-1]},{second}}}".encode())
    front.refuses(CHAT, f"{{{second},{whole[1:]}".encode())


def test_ghsa_4gph_2hhr_5mwg_model_is_the_one_that_was_judged(front: Any) -> None:
    body = json.dumps(SOUND).replace('"model"', '"mod\\u0065l"').encode()
    assert json.loads(front.passes(CHAT, body).body)["model"] == "sim-model"


@pytest.mark.parametrize(
    "member",
    [
        {"allowed_routes": ["/*"]},
        {"user_role": "proxy_admin"},
        {"guardrail": "import os"},
        {"id": "x"},
        {"digest": "x"},
    ],
)
def test_cve_2026_47101_cve_2026_47102_cve_2026_40217_what_a_caller_adds_to_a_key(member: Body, front: Any) -> None:
    """Orders of the admin API are closed: a member that is not known makes nothing."""
    core = front.gateway.gateway.core
    name = "mass-assignment"
    with httpx.Client(base_url=front.gateway.admin_url, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {core.held.admin_token.reveal()}"
        refused = client.post("/admin/keys", json={"name": name, **member})
        assert refused.status_code in (400, 422)
        assert name not in client.get("/admin/keys").text
        assert client.post("/admin/keys", json={"name": f"sound-{next(iter(member))}"}).status_code == 201
