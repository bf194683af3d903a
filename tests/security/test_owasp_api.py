"""OWASP's API Security Top 10 of 2023, row by row, through whole gateways with real listeners.

Each row has its tests here, named ``test_apiN_``; ``ELSEWHERE`` says which other tests hold the rest of it.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.verbs import OPEN, TABLE
from gateway.model import BodyKind
from gateway.policy.access import load_access, parse_access
from gateway.routes import ROUTES
from gateway.settings import load_settings
from loadtests.engine.acts import Reply
from loadtests.rawclient import RawAnswer, RawClient
from tests.issuer import Issuer

TESTS = Path(__file__).parents[1]
ROWS: Mapping[str, str] = {
    "API1": "broken object level authorisation",
    "API2": "broken authentication",
    "API3": "broken object property level authorisation",
    "API4": "unrestricted resource consumption",
    "API5": "broken function level authorisation",
    "API6": "unrestricted access to sensitive business flows",
    "API7": "server side request forgery",
    "API8": "security misconfiguration",
    "API9": "improper inventory management",
    "API10": "unsafe consumption of APIs",
}
# What else a row is held to: a file of tests, or one test in it.
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "API1": ("security/test_admin_access.py::test_an_id_of_another_kind_or_of_nothing_is_not_found_alike",),
    "API2": ("security/test_brute_force.py", "security/test_jwt_attacks.py", "security/test_familiar_heads.py"),
    "API3": (
        "security/test_admin_access.py::test_a_field_that_is_not_the_callers_to_set_is_refused_at_every_write",
        "security/test_admin_access.py::test_every_answer_has_a_closed_schema_and_only_two_hold_a_text",
        "security/test_cve_engine.py::test_members_that_belong_to_the_engine",
    ),
    "API4": (
        "security/test_cve_engine.py",
        "security/test_slow_clients.py",
        "security/test_http_corpus.py",
        "security/test_limits_under_fire.py",
        "property/test_json.py",
    ),
    "API5": (
        "security/test_admin_access.py::test_a_role_opens_the_routes_of_its_verbs_and_no_other",
        "security/test_admin_access.py::test_nobody_hands_out_more_than_it_has",
        "unit/admin/test_verbs.py",
    ),
    "API6": ("security/test_admin_access.py::test_an_author_who_writes_too_much_waits_and_others_do_not",),
    "API7": (
        "security/test_cve_engine.py::test_cve_2025_6242_media_url_request_forgery",
        "security/test_cve_gateways.py::test_cve_2024_6587_upstream_named_by_the_caller",
        "security/test_jwt_attacks.py::test_a_key_by_a_url_of_the_token",
    ),
    "API8": (
        "security/test_admin_access.py::test_nothing_is_given_away_by_default",
        "security/test_canary.py",
        "unit/identity/test_secrets.py",
    ),
    "API9": ("unit/test_routes.py::test_the_table_is_this_one",),
    "API10": (
        "integration/test_faults.py::test_the_whole_menu_is_looked_at",
        "security/test_cve_engine.py::test_cve_2025_9141_code_run_by_an_old_engine",
        "security/test_canary.py::test_in_an_engines_error",
    ),
}

CHAT, RESPONSES, MODELS = "/v1/chat/completions", "/v1/responses", "/v1/models"
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
OURS, THEIRS, NOBODYS = "acme-chat", "rival-chat", "never-was"
ACCESS = """
roles:
  user: {aliases: ["*"]}
  viewer: {admin: viewer}
  operator: {admin: operator}
  admin: {admin: admin}
default_roles: [user]
tenants:
  acme: {aliases: ["acme-*"]}
  rival: {aliases: ["rival-*"]}
failures: 1000000
"""
ISSUERS = """
issuers:
  corp:
    issuer: {url}
    audiences: [gateway]
    algorithms: [ES256]
    tenant: {{fixed: acme}}
    roles: {{claim: groups, values: {{staff: user}}}}
"""
MIB = 1 << 20


def test_every_row_has_its_test() -> None:
    held = {re.match(r"test_(api\d+)_", name).group(1).upper() for name in globals() if name.startswith("test_api")}
    assert held == set(ROWS) == set(ELSEWHERE)


def test_what_is_held_elsewhere_is_there() -> None:
    for place in [place for places in ELSEWHERE.values() for place in places]:
        file, _, name = place.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {name or 'test_'}" in text, place


# --- a gateway that two tenants and its operators share


@dataclass(frozen=True)
class House:
    """A gateway with both planes, and who is who."""

    front: Any
    keys: Mapping[str, str]
    admin: httpx.Client

    @property
    def core(self) -> Any:
        return self.front.gateway.gateway.core

    def operate(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        """A call of the admin plane."""
        return self.admin.request(method, path, headers={"authorization": f"Bearer {self.keys[who]}"}, **more)

    def written(self) -> Any:
        """What any write to the store would move."""
        store, run = self.core.store, self.front.gateway.site.run
        return run(store.versions()), run(store.audit_head())


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer("ES256") as issuer:
        yield issuer


@pytest.fixture(scope="module")
def house(
    shared_site: Any, front_of: Callable[..., Any], policies_with: Callable[..., Path], issuer: Issuer
) -> Iterator[House]:
    policies = policies_with()
    (policies / "access.yaml").write_text(ACCESS + ISSUERS.format(url=issuer.url))
    front = front_of(shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0), policies=policies)
    gateway = front.gateway
    for alias in (OURS, THEIRS):
        gateway.alias(alias, "sim-model")
    keys = {tenant: gateway.key(tenant, tenant=tenant) for tenant in ("acme", "rival")}
    keys |= {role: gateway.key(role, roles=(role,)) for role in ("viewer", "operator", "admin")}
    keys["token"] = gateway.gateway.core.held.admin_token.reveal()
    with httpx.Client(base_url=gateway.admin_url, trust_env=False, timeout=20) as admin:
        yield House(front, keys, admin)


def plain(answer: RawAnswer | httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """All of an answer but the lines in which any two differ."""
    differ = {"x-request-id", "date"}
    headers = {name: value for name, value in answer.headers.items() if name not in differ}
    if isinstance(answer, RawAnswer):
        return answer.status, headers, answer.body
    return answer.status_code, headers, answer.content


def code(answer: RawAnswer | httpx.Response) -> str:
    body = answer.body if isinstance(answer, RawAnswer) else answer.content
    return str(json.loads(body)["error"]["code"])


def key_id(key: str) -> str:
    return key.split("_")[2]


def concrete(path: str) -> str:
    """A path of either table with something in its places."""
    return re.sub(r"\{[^}]*\}", "some-name", path)


# --- API1


def test_api1_an_alias_of_another_tenant_is_one_that_does_not_exist(house: House) -> None:
    front, mine = house.front, house.keys["acme"]
    front.received()
    listed = {model["id"] for model in json.loads(front.get(MODELS, key=mine).body)["data"]}
    assert listed == {OURS}
    assert front.post(CHAT, QUESTION | {"model": THEIRS}, key=house.keys["rival"]).status == 200
    front.received()
    said = {str(plain(front.get(f"{MODELS}/{name}", key=mine))) for name in (THEIRS, NOBODYS, f"{THEIRS}@1")}
    assert len(said) == 1
    for name in (THEIRS, NOBODYS, f"{THEIRS}@1", f"{OURS}@99", "sim-model"):
        answer = front.post(CHAT, QUESTION | {"model": name}, key=mine)
        said.add(str(plain(answer)))
        assert (answer.status, code(answer)) == (404, "model_not_found")
    assert len(said) == 1
    assert front.received() == []


def test_api1_no_answer_is_kept_so_that_no_id_of_one_opens_anything(house: House) -> None:
    front = house.front
    made = front.post(RESPONSES, {"model": THEIRS, "input": "hi", "max_output_tokens": 1}, key=house.keys["rival"])
    theirs = json.loads(made.body)["id"]
    front.received()
    said = set()
    for who in ("acme", "rival"):
        for kept in (theirs, "resp_0000000000000000"):
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                target = f"{RESPONSES}/{kept}{path}"
                said.add(str(plain(front.send(front.head(method, target, key=house.keys[who])))))
        for member in ({"previous_response_id": theirs}, {"conversation": theirs}):
            body = {"model": THEIRS, "input": "hi", **member}
            assert front.post(RESPONSES, body, key=house.keys[who]).status == 400
    (only,) = said
    assert only.startswith("(404, ")
    for path in ("/v1/batches/batch_1", "/v1/files/file-1", "/v1/threads/thread_1", "/v1/chat/completions/chatcmpl-1"):
        assert front.get(path, key=house.keys["acme"]).status == 404
    assert front.received() == []


def test_api1_whether_a_key_exists_is_the_operators_to_know(house: House) -> None:
    before = house.written()
    for method, rest in (("GET", ""), ("POST", "/revoke"), ("POST", "/rotate")):
        asked = (key_id(house.keys["rival"]), "rival", key_id(house.keys["acme"]), "00000000")
        said = {str(plain(house.operate("acme", method, f"/admin/keys/{name}{rest}"))) for name in asked}
        (only,) = said
        assert only.startswith("(403, ")
    assert house.written() == before


# --- API2


def test_api2_without_a_credential_every_door_but_health_is_shut(house: House) -> None:
    house.front.received()
    for (method, path), route in ROUTES.items():
        answer = house.front.send(house.front.head(method, concrete(path), key=""))
        assert (answer.status == 401) is not route.anonymous, path
    for (method, path), verb in TABLE.items():
        answer = house.admin.request(method, concrete(path))
        assert (answer.status_code == 401) is (verb != OPEN), path
    assert house.front.received() == []


def test_api2_a_credential_in_the_query_or_in_a_body_is_none(house: House) -> None:
    key = house.keys["acme"]
    for query in (f"?key={key}", f"?access_token={key}", f"?api_key={key}"):
        assert house.front.get(MODELS + query, key="").status == 404
        assert house.admin.get(f"/admin/keys{query}").status_code == 401
    body = QUESTION | {"model": OURS, "api_key": key, "access_token": key}
    assert house.front.post(CHAT, body, key="").status == 401


# --- API3


@pytest.mark.parametrize("member", ["is_admin", "tenant", "principal", "cache_salt", "request_id", "priority"])
def test_api3_no_route_takes_a_member_that_is_not_the_callers(member: str, house: House) -> None:
    front = house.front
    front.received()
    for route in ROUTES.values():
        if route.body is BodyKind.JSON:
            answer = front.post(route.path, {"model": OURS, member: 1}, key=house.keys["acme"])
            assert answer.status == 400, route.path
            assert member in json.loads(answer.body)["error"]["message"], route.path
    assert front.received() == []


@pytest.mark.parametrize(
    ("method", "path", "order"),
    [
        ("POST", "/admin/keys", {"name": "made"}),
        ("POST", "/admin/keys/acme/rotate", {}),
        ("POST", "/admin/keys/acme/revoke", {}),
        ("PUT", f"/admin/aliases/{OURS}", {"model": "sim-model"}),
        ("POST", "/admin/fleet", {"url": "http://127.0.0.1:9"}),
        ("POST", "/admin/fleet-drain/127.0.0.1:9", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_api3_no_order_takes_a_property_that_is_not_the_callers(
    method: str, path: str, order: dict[str, Any], house: House
) -> None:
    before = house.written()
    for name in ("id", "key", "digest", "secrets", "created_at", "revoked_at", "author", "verbs", "revision", "state"):
        refused = house.operate("token", method, path, json=order | {name: "x"})
        assert (refused.status_code, code(refused)) == (400, "invalid_request"), name
    assert house.written() == before
    assert house.front.get(MODELS, key=house.keys["acme"]).status == 200


# --- API4


@pytest.fixture(scope="module")
def small(shared_site: Any, front_of: Callable[..., Any], policies_with: Callable[..., Path]) -> Any:
    """A gateway that takes JSON of 1 MiB."""
    engine = shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
    return front_of(engine, policies=policies_with(("json: 8 MiB\n", "json: 1 MiB\n")))


def test_api4_a_body_over_the_limit_is_refused_by_its_head_alone(small: Any) -> None:
    small.received()
    for length in (MIB + 1, 10**14):
        lines = ("Content-Type: application/json", f"Content-Length: {length}")
        with RawClient(small.gateway.address) as client:
            client.send(small.head("POST", CHAT, *lines))
            answer = client.answer()
        assert (answer.status, code(answer), answer.closes) == (413, "body_too_large", True)
    assert small.received() == []


def test_api4_a_body_without_a_length_is_read_as_far_as_the_limit(small: Any) -> None:
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with RawClient(small.gateway.address) as client:
        client.send(small.head("POST", CHAT, "Content-Type: application/json", "Transfer-Encoding: chunked"))
        sent = client.send_until_answered(chunk for _ in range(1_024))
        answer = client.answer()
    assert (answer.status, code(answer)) == (413, "body_too_large")
    assert sent < 32 * MIB  # what the kernel's buffers take is not the gateway's


def test_api4_the_admin_plane_reads_no_body_of_whoever_may_not_send_it(house: House) -> None:
    """The answer comes by the head alone, and does not ask for the body first."""
    host, _, port = house.front.gateway.admin_url.removeprefix("http://").rpartition(":")
    lines = ("Content-Type: application/json", "Content-Length: 16", "Expect: 100-continue")

    def asked(method: str, path: str, key: str, body: bytes = b"") -> tuple[int, tuple[int, ...], bool]:
        with RawClient((host, int(port))) as client:
            client.send(house.front.head(method, path, *lines, key=key))
            assert client.readable(10)
            client.send(body)
            answer = client.answer()
        assert answer is not None
        return answer.status, answer.interim, answer.closes

    for (method, path), verb in TABLE.items():
        if verb != OPEN:
            for key, status in (("", 401), ("wrong", 401), (house.keys["acme"], 403)):
                assert asked(method, concrete(path), key) == (status, (), True), path
    assert asked("POST", "/admin/keys", house.keys["admin"], b'{"name": "made"}') == (201, (100,), False)


def peak() -> int:
    """The most bytes of memory that this process, in which the gateway lives, has held since ``forget_peak``."""
    told = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(told.group(1)) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.parametrize(
    "messages",
    [b'"' + b"a" * (MIB - 100) + b'"', b"[" + b",".join([b'"ab"'] * ((MIB - 100) // 5)) + b"]"],
    ids=["one text", "short texts"],  # a short text weighs thirteen times its bytes once it is parsed
)
def test_api4_many_of_the_largest_bodies_at_once_stay_within_a_bound(small: Any, messages: bytes) -> None:
    """All are there but for their last byte, then all are judged at once: three times what was sent, and some room."""
    body = b'{"model":"sim-model","messages":' + messages + b"}"
    head = small.head("POST", CHAT, "Content-Type: application/json", f"Content-Length: {len(body)}")
    small.received()
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(small.gateway.address)) for _ in range(48)]
        forget_peak()
        before = peak()
        for client in clients:
            assert client.send(head, body[:-1])
        for client in clients:
            client.send(body[-1:])
        assert {client.answer().status for client in clients} == {400}
        assert peak() - before < 3 * len(clients) * MIB + 32 * MIB
    assert small.received() == []


def test_api4_all_bodies_together_have_a_bound(
    shared_site: Any, front_of: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    """Whoever comes when it is reached hears so at once, and that it will pass; those who came before are served."""
    engine = shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0)
    front = front_of(engine, body_memory="1 MiB")
    held = front.gateway.gateway._inference._context.bodies
    question = {"model": "sim-model", "max_tokens": 1, "messages": [{"role": "user", "content": "a" * (6 * MIB // 10)}]}
    body = json.dumps(question).encode()
    head = front.head("POST", CHAT, "Content-Type: application/json", f"Content-Length: {len(body)}")
    for _ in range(3):
        with RawClient(front.gateway.address) as first, RawClient(front.gateway.address) as left:
            first.send(head, body[:-1])
            wait_until(lambda: held.held == len(body) - 1, "the first body, but for a byte")
            left.send(head, body[:100])
            wait_until(lambda: held.held == len(body) + 99, "some of another")
            left.close()
            wait_until(lambda: held.held == len(body) - 1, "what was left let go of")
            refused = front.send(head + body)
            assert (refused.status, code(refused), refused.closes) == (503, "overloaded", True)
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
            first.send(body[-1:])
            assert first.answer().status == 400  # longer than the engine's context
            wait_until(lambda: held.held == 0, "all let go of")


def test_api4_what_callers_invent_makes_no_new_series(house: House) -> None:
    front = house.front

    def series() -> int:
        return len(house.admin.get("/metrics").text.splitlines())

    def invent(number: int) -> None:
        front.post(CHAT, QUESTION | {"model": f"invented-{number}"}, key=house.keys["acme"])
        front.get(f"/invented/{number}")
        front.get(f"{MODELS}/invented-{number}")
        front.get(MODELS, key=f"gw_invented_{number}")
        house.admin.get(f"/admin/keys/invented-{number}")

    invent(0)
    before = series()
    for number in range(1, 12):
        invent(number)
    assert series() == before


# --- API5


@pytest.mark.parametrize("who", ["acme", "viewer", "operator", "admin"])
def test_api5_a_role_opens_its_own_routes_of_the_admin_plane(who: str, house: House) -> None:
    access = parse_access(ACCESS, "access.yaml")
    verbs = access.verbs_of([] if who == "acme" else [who])
    for (method, path), verb in TABLE.items():
        if verb == OPEN or verb in verbs:
            continue
        answer = house.operate(who, method, concrete(path))
        assert (answer.status_code, code(answer)) == (403, "verb_forbidden"), path
    assert house.operate(who, "GET", "/admin/keys").status_code == (200 if verbs else 403)


def test_api5_who_operates_calls_no_model_and_no_plane_serves_the_others_routes(house: House) -> None:
    front = house.front
    front.received()
    for who in ("viewer", "operator", "admin"):
        refused = front.post(CHAT, QUESTION | {"model": OURS}, key=house.keys[who])
        assert (refused.status, code(refused)) == (403, "alias_forbidden")
    for method, path in TABLE.keys() - {("GET", "/healthz"), ("GET", "/readyz")}:
        for who in ("acme", "admin", "token"):
            answer = front.send(front.head(method, concrete(path), key=house.keys[who]))
            assert (answer.status, code(answer)) == (404, "not_found"), path
    for method, path in ROUTES.keys() - TABLE.keys():
        for who in ("acme", "token"):
            answer = house.operate(who, method, concrete(path))
            assert (answer.status_code, code(answer)) == (404, "not_found"), path
    assert front.received() == []


# --- API6


def test_api6_making_keys_and_moving_aliases_is_limited_and_leaves_a_trail(house: House) -> None:
    """Sixty a minute of each author, both kinds together; whoever only reads, and every other author, goes on."""
    site, store = house.front.gateway.site, house.core.store
    text = house.front.gateway.key("flow", roles=("admin",))
    author = {"authorization": f"Bearer {text}"}
    line, _ = site.run(store.audit_head())
    begun, made = time.monotonic(), 0
    while True:
        if made % 2:
            answer = house.admin.put(f"/admin/aliases/flow-{made}", json={"model": "sim-model"}, headers=author)
        else:
            answer = house.admin.post("/admin/keys", json={"name": f"flow-{made}"}, headers=author)
        if not answer.is_success:
            break
        made += 1
        assert made <= 61 + time.monotonic() - begun
    assert (answer.status_code, code(answer), answer.headers["retry-after"]) == (429, "rate_limited", "1")
    assert made >= 60
    assert house.admin.get("/admin/keys", headers=author).status_code == 200
    assert house.operate("admin", "PUT", "/admin/aliases/flow-1", json={"model": "sim-model"}).is_success
    trail = site.run(store.audit(after=line, limit=1_000))
    told = [entry.subject for entry in trail if entry.author == f"key:{key_id(text)} (flow)"]
    assert len(told) == made
    assert house.operate("admin", "GET", "/admin/audit/verify").status_code == 200


# --- API7


class Trap:
    """An address that nobody has a reason to call."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}"

    def called(self) -> bool:
        """Whether somebody has connected since it was last asked."""
        called = False
        while select.select([self._socket], [], [], 0)[0]:
            self._socket.accept()[0].close()
            called = True
        return called

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    trap = Trap()
    yield trap
    trap.close()


def test_api7_a_trap_notices_a_call(trap: Trap) -> None:
    with socket.create_connection(("127.0.0.1", int(trap.host.rpartition(":")[2]))):
        assert trap.called()
    assert not trap.called()


def test_api7_nothing_in_a_call_becomes_a_host(house: House, trap: Trap) -> None:
    front, key = house.front, house.keys["acme"]
    ask = QUESTION | {"model": OURS}
    picture = {"type": "image_url", "image_url": {"url": f"{trap.url}/a.png"}}
    tool = {"type": "mcp", "server_label": "x", "server_url": trap.url}
    for path, body in (
        (CHAT, ask | {"messages": [{"role": "user", "content": [picture]}]}),
        (CHAT, ask | {"base_url": trap.url}),
        (CHAT, ask | {"model": trap.url}),
        (RESPONSES, {"model": OURS, "input": "hi", "tools": [tool]}),
    ):
        assert front.post(path, body, key=key).status in {400, 404}
    octets = json.dumps(ask).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(octets)}")
    for target in (f"{trap.url}{CHAT}", f"//{trap.host}{CHAT}", f"{CHAT}?url={trap.url}", f"@{trap.host}{CHAT}"):
        assert front.send(front.head("POST", target, *lines, key=key) + octets).status in {400, 404}
    assert front.send(front.head("CONNECT", trap.host, key=key)).status in {400, 404}
    front.received()
    heads = [f"{name}: {trap.host}" for name in ("X-Forwarded-Host", "X-Original-Host", "Forwarded", "X-Upstream")]
    heads += [f"{name}: {trap.url}" for name in ("Referer", "Origin", "X-Original-Url", "X-Callback-Url")]
    answer = front.send(front.head("POST", CHAT, *heads, *lines, key=key, host=trap.host) + octets)
    assert answer.status == 200
    (received,) = front.received()
    assert received.header(b"host") == front.engine.url.removeprefix("http://").encode()
    assert not trap.called()


def test_api7_nothing_in_a_token_or_an_order_becomes_a_host(house: House, issuer: Issuer, trap: Trap) -> None:
    front = house.front
    assert front.get(MODELS, key=issuer.token(groups=["staff"])).status == 200
    # A good token is good whatever it points to besides; nothing follows the pointer.
    pointing = issuer.token(header={"jku": f"{trap.url}/keys", "x5u": f"{trap.url}/cert"}, groups=["staff"])
    assert front.get(MODELS, key=pointing).status == 200
    for text in (issuer.token(iss=trap.url), issuer.token(header={"kid": f"{trap.url}/keys"})):
        assert front.get(MODELS, key=text).status == 401
    orders = ({"model": trap.url}, {"model": "sim-model", "source": trap.url}, {"model": trap.url, "force": True})
    said = [house.operate("admin", "PUT", "/admin/aliases/acme-elsewhere", json=order) for order in orders]
    assert [answer.status_code for answer in said] == [409, 400, 200]
    assert house.operate("admin", "POST", "/admin/keys", json={"name": "a", "webhook": trap.url}).status_code == 400
    front.received()
    assert front.post(CHAT, QUESTION | {"model": "acme-elsewhere"}, key=house.keys["acme"]).status == 503
    assert front.received() == []
    assert not trap.called()


# --- API8


def test_api8_what_is_not_configured_is_closed(tmp_path: Path) -> None:
    settings = load_settings({"state": f"sqlite://{tmp_path / 'state.db'}"}, {})
    assert settings.listen.host == settings.admin.host == "127.0.0.1"
    assert settings.listen.port != settings.admin.port
    assert (settings.trusted_hops, settings.remote_engines) == (0, ())
    access = load_access(settings.policies / "access.yaml")
    assert access.verbs_of([]) == frozenset()
    assert access.issuers == ()


def test_api8_every_installation_makes_its_own_secrets(shared_site: Any) -> None:
    made = [shared_site.gateway().gateway for _ in range(2)]
    held = [gateway.core.held for gateway in made]
    texts = [text.reveal() for each in held for text in (each.pepper, each.salt, each.admin_token)]
    assert len(set(texts)) == len(texts)
    assert min(len(text) for text in texts) >= 43
    for gateway in made:
        folder = gateway.settings.state_folder
        for name in ("pepper", "salt", "admin-token"):
            assert (folder / name).stat().st_mode & 0o077 == 0
        assert (folder / "state.db").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/redoc", "/openapi.json", "/debug", "/static", "/.env", "/favicon.ico"]
)
def test_api8_neither_plane_has_pages_that_nobody_asked_for(path: str, house: House) -> None:
    assert house.front.get(path).status == 404
    assert house.operate("token", "GET", path).status_code == 404


def test_api8_no_answer_names_its_maker_or_invites_other_origins(house: House) -> None:
    front = house.front
    origin = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")
    good = front.post(CHAT, QUESTION | {"model": OURS}, *origin, key=house.keys["acme"])
    assert good.status == 200
    answers: list[RawAnswer | httpx.Response] = [good]
    for method in ("GET", "POST", "OPTIONS", "TRACE", "HEAD", "PUT"):
        for path in (MODELS, CHAT, "/healthz", "/docs", "/admin/keys"):
            with RawClient(front.gateway.address) as client:
                client.send(front.head(method, path, *origin))
                answers.append(client.answer(head_only=method == "HEAD"))
            headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            answers.append(house.admin.request(method, path, headers=headers))
    for answer in answers:
        names = set(answer.headers)
        assert not [name for name in names if name.startswith("access-control")]
        assert not names & {"server", "x-powered-by", "via", "set-cookie", "location", "x-served-by", "x-replica"}
        assert "sim-model" not in str(answer.headers)


# --- API9

# A new route is a decision that is made here too. The inference routes stand in unit/test_routes.py with all they mean.
INFERENCE_ROUTES = {
    "GET": {"/healthz", "/readyz", "/v1/models", "/v1/models/{alias}"},
    "POST": {
        "/classify", "/detokenize", "/pooling", "/rerank", "/score", "/tokenize", "/v1/audio/transcriptions",
        "/v1/audio/translations", "/v1/chat/completions", "/v1/classify", "/v1/completions", "/v1/embeddings",
        "/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/v1/responses", "/v1/score", "/v2/rerank",
    },
}  # fmt: skip
ADMIN_ROUTES = {
    "GET /healthz": "open",
    "GET /readyz": "open",
    "GET /metrics": "open",
    "GET /admin/keys": "keys:read",
    "POST /admin/keys": "keys:write",
    "GET /admin/keys/{key_id}": "keys:read",
    "POST /admin/keys/{key_id}/revoke": "keys:write",
    "POST /admin/keys/{key_id}/rotate": "keys:write",
    "GET /admin/aliases": "aliases:read",
    "GET /admin/aliases/{name:path}": "aliases:read",
    "PUT /admin/aliases/{name:path}": "aliases:write",
    "DELETE /admin/aliases/{name:path}": "aliases:write",
    "GET /admin/alias-history/{name:path}": "aliases:read",
    "GET /admin/alias-diff/{name:path}": "aliases:read",
    "GET /admin/alias-compare/{name:path}": "aliases:read",
    "POST /admin/alias-rollback/{name:path}": "aliases:write",
    "POST /admin/alias-canary/{name:path}": "aliases:write",
    "POST /admin/alias-promote/{name:path}": "aliases:write",
    "POST /admin/alias-abort/{name:path}": "aliases:write",
    "GET /admin/fleet": "fleet:read",
    "GET /admin/fleet/{replica_id:path}": "fleet:read",
    "GET /admin/fleet-explain": "fleet:read",
    "GET /admin/fleet-explain/{request_id:path}": "fleet:read",
    "POST /admin/fleet": "fleet:write",
    "POST /admin/fleet-remove/{replica_id:path}": "fleet:write",
    "POST /admin/fleet-drain/{replica_id:path}": "fleet:write",
    "POST /admin/fleet-undrain/{replica_id:path}": "fleet:write",
    "POST /admin/fleet-warm/{replica_id:path}": "fleet:write",
    "GET /admin/instances": "aliases:read",
    "GET /admin/audit": "audit:read",
    "GET /admin/audit/verify": "audit:read",
    "GET /admin/policy": "policy:read",
    "GET /admin/policy/explain": "policy:read",
}
# What vLLM (0.32.0 as its log lists it, 0.33.0 as its source does) answers besides, with any of its switches on.
ENGINE_ROUTES = (
    "/abort_requests", "/adapters", "/adapters/a", "/collective_rpc", "/docs", "/docs/oauth2-redirect",
    "/fault_tolerance/instruction", "/fault_tolerance/status", "/finish_weight_update", "/generative_scoring",
    "/get_world_size", "/health", "/inference/v1/abort_requests", "/inference/v1/generate",
    "/init_weight_transfer_engine", "/invocations", "/is_paused", "/is_scaling_elastic_ep", "/is_sleeping",
    "/kv_event_sources", "/load", "/metrics", "/openapi.json", "/pause", "/ping", "/redoc",
    "/release_kv_cache_memory", "/reset_encoder_cache", "/reset_mm_cache", "/reset_prefix_cache", "/resume",
    "/scale_elastic_ep", "/server_info", "/shutdown_weight_transfer_engine", "/sleep", "/start_draft_weight_update",
    "/start_profile", "/start_weight_update", "/stop_profile", "/tokenizer_info", "/update_weight_version",
    "/update_weights", "/v1/audio/speech", "/v1/chat/completions/batch", "/v1/chat/completions/derender",
    "/v1/chat/completions/render", "/v1/completions/derender", "/v1/completions/render", "/v1/load_lora_adapter",
    "/v1/messages/render", "/v1/realtime", "/v1/responses/render", "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel", "/v1/systemone", "/v1/unload_lora_adapter", "/v2/embed", "/cohere/v2/embed",
    "/version", "/wake_up", "/weight_checker", "/weight_info",
)  # fmt: skip


def test_api9_the_routes_are_these(house: House) -> None:
    assert {(method, path) for method, paths in INFERENCE_ROUTES.items() for path in paths} == set(ROUTES)
    assert {f"{method} {path}": str(verb) for (method, path), verb in TABLE.items()} == ADMIN_ROUTES
    for method, paths in INFERENCE_ROUTES.items():
        for path in paths:
            answer = house.front.send(house.front.head(method, concrete(path)))
            assert answer.status != 404 or code(answer) != "not_found", path
    for row in ADMIN_ROUTES:
        method, path = row.split(" ")
        answer = house.operate("token", method, concrete(path))
        assert answer.status_code != 404 or code(answer) != "not_found", row


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_api9_nothing_else_of_an_engine_is_within_reach(method: str, house: House) -> None:
    front = house.front
    front.received()
    assert {path for _, path in ROUTES}.isdisjoint(ENGINE_ROUTES)
    with RawClient(front.gateway.address) as client:
        for path in (*ENGINE_ROUTES, *(f"{path}/" for path in ENGINE_ROUTES)):
            client.send(front.head(method, path))
            answer = client.answer()
            assert (answer.status, code(answer)) == (404, "not_found"), path
            assert not answer.closes
    for path in ENGINE_ROUTES:
        if path != "/metrics":
            answer = house.operate("token", method, path)
            assert (answer.status_code, code(answer)) == (404, "not_found"), path
    assert front.received() == []


# --- API10

SAID_BY_ENGINE = (
    (b"set-cookie", b"engine=1"),
    (b"server", b"engine/1.0"),
    (b"access-control-allow-origin", b"*"),
    (b"x-request-id", b"engine-chosen"),
    (b"x-ratelimit-remaining-requests", b"999"),
    (b"strict-transport-security", b"max-age=0"),
    (b"x-model-path", b"/models/secret"),
    (b"refresh", b"0"),
)


class Hostile:
    """An engine that changes its answers to calls, behind a gateway of its own."""

    def __init__(self, front: Any, patch: pytest.MonkeyPatch) -> None:
        self._front = front
        self._patch = patch

    def _ask(self) -> RawAnswer:
        answer: RawAnswer = self._front.post(CHAT, QUESTION | {"model": "sim-model"})
        return answer

    def says(self, **changes: Any) -> RawAnswer:
        """What the client gets of such a reply. The engine's next answer, which is as it should be, is let through."""

        def say(machines: list[Any], act: Any) -> list[Any]:
            return [replace(act, **changes)] if isinstance(act, Reply) else [act]

        self._front.engine.faults.set("split_events")  # without any fault an answer is not looked at
        with self._patch.context() as patch:
            patch.setattr("loadtests.engine.exchange.run_machines", say)
            answer = self._ask()
        self._front.engine.faults.clear()
        assert self._ask().status == 200
        return answer


@pytest.fixture
def hostile(shared_site: Any, front_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Hostile:
    return Hostile(front_of(shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0)), monkeypatch)


def test_api10_of_an_engines_head_nothing_goes_on(hostile: Hostile) -> None:
    answer = hostile.says(extra=SAID_BY_ENGINE)
    assert answer.status == 200
    own = {"date", "content-type", "content-length", "x-request-id", "x-gateway-alias", "x-gateway-overhead-ms"}
    assert set(answer.headers) <= own | {"cache-control", "x-gateway-queue-ms"}
    assert answer.headers["x-request-id"].startswith("req_")


def test_api10_where_an_engine_points_to_nobody_goes(hostile: Hostile, trap: Trap) -> None:
    place = ((b"location", f"{trap.url}/elsewhere".encode()), (b"content-location", trap.url.encode()))
    for status in (301, 302, 303, 307, 308):
        answer = hostile.says(status=status, extra=place)
        assert (answer.status, code(answer)) == (502, "engine_error"), status
        assert trap.host not in str(answer)
    assert not trap.called()


def test_api10_an_engines_page_is_no_answer(hostile: Hostile) -> None:
    for kind in (b"text/html", b"application/javascript", b"image/svg+xml", b"text/plain"):
        answer = hostile.says(content_type=kind, body=b"<script>alert(1)</script>")
        assert (answer.status, code(answer)) == (502, "engine_error"), kind
        assert b"script" not in answer.body


def test_api10_a_status_that_an_engine_has_no_reason_for_is_not_passed_on(hostile: Hostile) -> None:
    """401 and 407 would have a client send its credentials elsewhere or again."""
    for status in (204, 206, 304, 401, 402, 403, 407, 418, 451, 500, 511):
        answer = hostile.says(status=status, body=b'{"error": {"message": "secret", "code": 1}}')
        assert (answer.status, code(answer)) == (502, "engine_error"), status
        assert b"secret" not in answer.body


@pytest.mark.parametrize("mode", ["redirect", "endless"])
def test_api10_a_look_at_an_engine_goes_nowhere_else_and_has_an_end(mode: str, shared_site: Any) -> None:
    with Issuer("ES256") as server:  # a server that misbehaves, in the place of an engine
        server.mode = mode
        gateway = shared_site.gateway([server.url], probe_interval=60)
        assert set(server.hits) == {"/health"}
        assert not gateway.gateway.core.registry.any_ready()
