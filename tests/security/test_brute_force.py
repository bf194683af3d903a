"""Guessing credentials through whole gateways: no answer, no header and no amount of work tells how wrong a guess was,
and a source that guesses is slowed down without holding up anybody whose credential is known.

What is compared is bytes and counts, not time: where the work is the same, a clock on the wire has nothing to measure.
"""

from __future__ import annotations

import functools
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.identity.jwt import verify
from gateway.identity.keys import Digester, new_key
from gateway.secret import Secret
from gateway.stores.interfaces import KeyRecord, KeySecret
from loadtests.rawclient import RawClient
from tests.issuer import Issuer, private_key, raw_token

FAILURES = 3
WAIT = 20  # seconds between two attempts that are let through then: 60 over FAILURES
CHAT = orjson.dumps({"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
OLD_PEPPER, PEPPER = "p" * 43, "q" * 43
OWN_LINES = re.compile(rb"(?:x-request-id|date): [^\r]*\r\n")
# listener, method, path, body
TARGETS: Mapping[str, tuple[str, str, str, bytes]] = {
    "models": ("url", "GET", "/v1/models", b""),
    "chat": ("url", "POST", "/v1/chat/completions", CHAT),
    "messages": ("url", "POST", "/v1/messages", CHAT),
    "admin read": ("admin_url", "GET", "/admin/keys", b""),
    "admin write": ("admin_url", "POST", "/admin/keys", b'{"name": "mine"}'),
}
BOTH = ("models", "admin read")
ACCESS = """
roles:
  user: {{aliases: ["*"]}}
  viewer: {{admin: viewer}}
default_roles: [user]
failures: {failures}
issuers:
  corp:
    issuer: {issuer}
    audiences: [gateway]
    algorithms: [ES256]
    tenant: {{fixed: acme}}
    roles: {{claim: groups, values: {{staff: user, ops: viewer}}}}
    denied_subjects: [mallory]
"""


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer("ES256") as issuer:
        yield issuer


@pytest.fixture(scope="module")
def gateway_with(shared_site: Any, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Makes gateways that let so many failures pass; all keep two peppers, the older one for keys of before."""
    engine = shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0)

    def make(failures: int, **settings: Any) -> Any:
        policies = tmp_path_factory.mktemp("policies")
        shutil.copy(str(files("policies").joinpath("guards.yaml")), policies)
        (policies / "access.yaml").write_text(ACCESS.format(failures=failures, issuer=issuer.url))
        state = tmp_path_factory.mktemp("state")
        for name, text in (("pepper", OLD_PEPPER), ("pepper-2", PEPPER)):
            keep_secret(state / name, text)
        gateway = shared_site.gateway([engine], policies=policies, state_folder=state, probe_interval=60, **settings)
        gateway.wait_ready("sim-model")
        gateway.gateway.core.failures._monotonic = gateway.clock = Clock()
        return gateway

    return make


def keep_secret(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


@pytest.fixture(scope="module")
def patient(gateway_with: Callable[..., Any]) -> Any:
    """A gateway that nobody is braked at."""
    return gateway_with(1_000_000)


@pytest.fixture
def braked(gateway_with: Callable[..., Any]) -> Any:
    """A gateway of the test's own that brakes soon; its brake has a clock that the test sets."""
    return gateway_with(FAILURES)


# --- what is sent, and what comes back


def bearer(text: str) -> tuple[str, ...]:
    return (f"Authorization: Bearer {text}",)


def say(gateway: Any, target: str, *lines: str) -> tuple[int, bytes]:
    """Status and all bytes of an answer, without the lines in which any two answers differ."""
    listener, method, path, body = TARGETS[target]
    host, _, port = getattr(gateway, listener).removeprefix("http://").rpartition(":")
    head = [f"{method} {path} HTTP/1.1", "Host: gw", "Connection: close", *lines]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    with RawClient((host, int(port))) as client:
        client.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        whole = OWN_LINES.sub(b"", client.rest())
    return int(whole.split(b" ", 2)[1]), whole


def status(gateway: Any, target: str, *lines: str) -> int:
    return say(gateway, target, *lines)[0]


def guess() -> tuple[str, ...]:
    """A credential in perfect form that nobody was ever given."""
    return bearer(new_key("test", secrets.SystemRandom()).text.reveal())


def block(gateway: Any, target: str, *lines: str) -> None:
    """Fail as often as may be."""
    assert [status(gateway, target, *guess(), *lines) for _ in range(FAILURES)] == [401] * FAILURES


def dead_keys(gateway: Any) -> dict[str, str]:
    """Keys in perfect form that are no good, as only the store can know; none has been shown yet."""
    store, now, run = gateway.gateway.core.store, time.time(), gateway.site.run
    name = secrets.token_hex(4)
    live = gateway.key(f"live-{name}")
    key_id = live.split("_")[2]
    of_before = new_key("test", secrets.SystemRandom())
    record = KeyRecord(
        id=of_before.id, name=f"old-{name}", tenant="default", roles=(), aliases=("*",), created_at=now,
        secrets=(KeySecret(now),),
    )  # fmt: skip
    rotated = gateway.key(f"rotated-{name}")
    other = Secret(new_key("test", secrets.SystemRandom(), rotated.split("_")[2]).text.reveal())
    made = {
        "unknown": new_key("test", secrets.SystemRandom()).text.reveal(),
        "wrong secret under a real id": new_key("test", secrets.SystemRandom(), key_id).text.reveal(),
        "revoked": gateway.key(f"revoked-{name}"),
        "revoked, under the older pepper": of_before.text.reveal(),
        "expired": gateway.key(f"expired-{name}", expires_at=now - 1),
        "rotated out": rotated,
    }

    async def end() -> None:
        await store.add_key(Digester(OLD_PEPPER.encode())(of_before.text.reveal()), record, author="test")
        for ended in (f"revoked-{name}", f"old-{name}"):
            await store.revoke_key(ended, at=now, author="test")
        digest = Digester(PEPPER.encode())(other.reveal())
        await store.rotate_key(
            rotated.split("_")[2], digest, KeySecret(now, pepper_version=2), overlap_until=now, author="test"
        )
        await gateway.gateway.core.keys.refresh()

    run(end())
    return made


def odd_texts(key: str) -> dict[str, str]:
    """What anybody can see is no key."""
    return {
        "another form": "sk-proj-0123456789abcdef",
        "a wrong checksum": key[:-1] + ("a" if key[-1] != "a" else "b"),
        "a part of a key": key[:-7],
        "a key and more": key + "x",
        "a key, a line and more": f"{key}%0a",
        "an id": key.split("_")[2],
        "the longest": "x" * 8_192,
        "too long": "x" * 8_193,
    }


def bad_tokens(issuer: Issuer) -> dict[str, str]:
    """One for each judge of a token; the tests of tokens have them all."""
    now = int(time.time())
    sound = issuer.token()
    return {
        "no token": "a.b.c",
        "a foreign signature": raw_token(issuer.header(), issuer.claims(), private_key("ES256", 7), "ES256"),
        "no algorithm": raw_token(issuer.header(alg="none"), issuer.claims(), None, "none"),
        "other claims": ".".join([sound.split(".")[0], issuer.token(sub="root").split(".")[1], sound.split(".")[2]]),
        "an unknown kid": issuer.token(header={"kid": "not-there"}),
        "another issuer": issuer.token(iss="https://login.example.com"),
        "another audience": issuer.token(aud="another"),
        "expired token": issuer.token(iat=now - 7_200, exp=now - 3_600),
        "not yet": issuer.token(nbf=now + 3_600),
        "for ever": issuer.token(exp=now + 10**9),
        "a denied subject": issuer.token(sub="mallory"),
        "no subject": issuer.token(sub=None),
    }


def wrong(gateway: Any, issuer: Issuer) -> dict[str, tuple[str, ...]]:
    """Header lines with every kind of credential that is no good."""
    key = gateway.key(f"seen-{secrets.token_hex(4)}")
    assert status(gateway, "models", *bearer(key)) == 200
    texts = {**dead_keys(gateway), **odd_texts(key), **bad_tokens(issuer)}
    shapes = {
        "absent": (),
        "empty": ("Authorization:",),
        "a scheme alone": ("Authorization: Bearer ",),
        "no scheme": (f"Authorization: {key}",),
        "another scheme": (f"Authorization: Basic {key}",),
        "half the scheme": (f"Authorization: Bear {key}",),
        "two in one": (f"Authorization: Bearer {key}, {key}",),
        "another header": (f"X-Key: {key}",),
        "a cookie": (f"Cookie: key={key}",),
        "an empty x-api-key": ("X-Api-Key:",),
        "x-api-key with a scheme": (f"X-Api-Key: Bearer {key}",),
    }
    direct = {f"{name}, direct": (f"X-Api-Key: {text}",) for name, text in texts.items()}
    return shapes | {name: bearer(text) for name, text in texts.items()} | direct


# --- no difference


@pytest.mark.parametrize("target", TARGETS)
def test_the_answer_does_not_tell_what_is_wrong(target: str, patient: Any, issuer: Issuer) -> None:
    said: dict[bytes, list[str]] = {}
    for name, lines in wrong(patient, issuer).items():
        said.setdefault(say(patient, target, *lines)[1], []).append(name)
    assert len(said) == 1, list(said.values())
    assert next(iter(said)).startswith(b"HTTP/1.1 401 ")


def test_what_is_good_is_let_in(patient: Any, issuer: Issuer) -> None:
    """Or all the rest would be refused for another reason than its credential."""
    admin = patient.gateway.core.held.admin_token.reveal()
    for text in (patient.key("good"), issuer.token(groups=["staff"])):
        assert [status(patient, target, *bearer(text)) for target in ("models", "chat", "messages")] == [200] * 3
    for text in (admin, patient.key("ops", roles=("viewer",)), issuer.token(groups=["ops"])):
        assert status(patient, "admin read", *bearer(text)) == 200
    # The token of the admin plane opens nothing else.
    assert status(patient, "models", *bearer(admin)) == 401


class Work:
    """Counts what is done for a credential: looks at the store, keyed hashes, and signatures verified."""

    def __init__(self, patch: pytest.MonkeyPatch, gateway: Any) -> None:
        self._done: Counter[str] = Counter()
        store = type(gateway.gateway.core.store)
        patch.setattr(store, "find_key", self._counted("reads", store.find_key))
        patch.setattr(Digester, "__call__", self._counted("hashes", Digester.__call__))
        patch.setattr("gateway.identity.tokens.verify", self._counted("signatures", verify))

    def _counted(self, name: str, does: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(does)
        def counting(*args: Any) -> Any:
            self._done[name] += 1
            return does(*args)

        return counting

    def of(self, ask: Callable[[], int]) -> tuple[int, int, int]:
        """Status, reads and hashes of one request."""
        self._done.clear()
        said = ask()
        return said, self._done["reads"], self._done["hashes"]

    def signatures(self, ask: Callable[[], int]) -> tuple[int, int]:
        """Status, and signatures verified for one request."""
        self._done.clear()
        return ask(), self._done["signatures"]


@pytest.mark.parametrize("target", BOTH)
def test_the_work_does_not_tell_what_the_store_knows(
    target: str, patient: Any, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a guesser cannot work out alone, whether an id or a secret was ever real, changes no count."""
    dead, key = dead_keys(patient), patient.key(f"shape-{target.replace(' ', '-')}")
    patient.site.run(patient.gateway.core.keys.refresh())
    work = Work(monkeypatch, patient)
    for name, text in dead.items():
        ask = functools.partial(status, patient, target, *bearer(text))
        assert (name, work.of(ask), work.of(ask)) == (name, (401, 2, 4), (401, 0, 2))
    costs = {
        work.of(lambda text=text: status(patient, target, *bearer(text)))
        for name, text in odd_texts(key).items()
        if name != "too long"
    }
    assert costs == {(401, 0, 2)}
    for text in bad_tokens(issuer).values():
        assert work.of(lambda text=text: status(patient, target, *bearer(text))) == (401, 0, 0)
    assert work.of(lambda: status(patient, target)) == (401, 0, 0)


# --- the brake


@pytest.mark.parametrize("target", BOTH)
def test_a_source_waits_after_its_failures_as_long_as_it_is_told(target: str, braked: Any) -> None:
    for _ in range(2 * FAILURES):
        assert status(braked, target) == 401  # without a credential nothing is guessed
    block(braked, target)
    refused, whole = say(braked, target, *guess())
    assert refused == 429
    assert b"\r\nretry-after: %d\r\n" % WAIT in whole
    assert b'"code":"rate_limited"' in whole
    braked.clock.now += WAIT - 0.5
    assert status(braked, target, *guess()) == 429
    braked.clock.now += 0.5
    assert [status(braked, target, *guess()) for _ in range(2)] == [401, 429]


@pytest.mark.parametrize("target", BOTH)
def test_a_blocked_source_learns_nothing_and_costs_no_look_at_the_store(
    target: str, braked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = dead_keys(braked)
    live = braked.key("not-seen-yet", roles=("user", "viewer"))
    braked.site.run(braked.gateway.core.keys.refresh())
    block(braked, target)
    work = Work(monkeypatch, braked)
    said = {say(braked, target, *bearer(text))[1] for text in (live, *dead.values())}
    assert len(said) == 1
    assert work.of(lambda: status(braked, target, *bearer(live)))[:2] == (429, 0)
    braked.clock.now += WAIT
    assert status(braked, target, *bearer(live)) == 200


@pytest.mark.parametrize("target", BOTH)
def test_for_a_blocked_source_no_signature_is_verified(
    target: str, braked: Any, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ["ops"]
    known, unknown = issuer.token(groups=groups), issuer.token(groups=groups, sub="bob")
    assert status(braked, target, *bearer(known)) == 200
    block(braked, target)
    work = Work(monkeypatch, braked)
    for text in (unknown, *bad_tokens(issuer).values()):
        assert work.signatures(functools.partial(status, braked, target, *bearer(text))) == (429, 0)
    assert work.signatures(lambda: status(braked, target, *bearer(known))) == (200, 0)
    braked.clock.now += WAIT
    assert work.signatures(lambda: status(braked, target, *bearer(unknown))) == (200, 1)


def test_a_known_credential_is_not_held_up_by_others_who_fail_from_its_address(braked: Any, issuer: Issuer) -> None:
    key, token = braked.key("known", roles=("user", "viewer")), issuer.token(groups=["ops"])
    good = {
        "models": (key, token),
        "chat": (key,),
        "admin read": (key, token, braked.gateway.core.held.admin_token.reveal()),
    }
    asked = [(target, bearer(text)) for target, texts in good.items() for text in texts]
    assert {status(braked, target, *lines) for target, lines in asked} == {200}
    block(braked, "models")
    assert status(braked, "models", *guess()) == 429
    for _ in range(3):
        assert {status(braked, target, *lines) for target, lines in asked} == {200}
    assert status(braked, "models", *guess()) == 429


@pytest.mark.parametrize(("failing", "other"), [BOTH, BOTH[::-1]])
def test_both_listeners_have_one_brake(failing: str, other: str, braked: Any) -> None:
    block(braked, failing)
    assert status(braked, other, *guess()) == 429


def test_guesses_at_the_bootstrap_token_are_braked_too(braked: Any) -> None:
    token = braked.gateway.core.held.admin_token.reveal()
    guesses = [bearer(token[:-1] + letter) for letter in "_-.~"]
    assert [status(braked, "admin read", *lines) for lines in guesses] == [401] * FAILURES + [429]


# --- where a guess comes from


def seen_by(*addresses: str) -> str:
    return "X-Forwarded-For: " + ", ".join(addresses)


@pytest.mark.parametrize("target", BOTH)
def test_without_a_proxy_in_front_nobody_says_where_he_is(target: str, braked: Any) -> None:
    for number in range(FAILURES):
        assert status(braked, target, *guess(), seen_by(f"192.0.2.{number}")) == 401
    for more in (seen_by("192.0.2.9"), "Forwarded: for=192.0.2.9", "X-Real-Ip: 192.0.2.9"):
        assert status(braked, target, *guess(), more) == 429


def test_behind_proxies_a_source_is_whom_the_outermost_saw(gateway_with: Callable[..., Any]) -> None:
    gateway = gateway_with(FAILURES, trusted_hops=2)
    block(gateway, "models", seen_by("192.0.2.1", "198.51.100.1"))
    assert status(gateway, "models", *guess(), seen_by("192.0.2.1", "198.51.100.1")) == 429
    # What the client itself put in front, and which of the inner proxies it came by, changes nothing.
    assert status(gateway, "models", *guess(), seen_by("192.0.2.7", "192.0.2.1", "198.51.100.2")) == 429
    own_line = (seen_by("192.0.2.8", "192.0.2.9"), seen_by("192.0.2.1", "198.51.100.1"))
    assert status(gateway, "models", *guess(), *own_line) == 429
    each_its_line = (seen_by("192.0.2.7"), seen_by("192.0.2.1"), seen_by("198.51.100.1"))
    assert status(gateway, "models", *guess(), *each_its_line) == 429
    assert status(gateway, "models", *guess(), seen_by("192.0.2.2", "198.51.100.1")) == 401
    # What cannot have come through both is its peer's.
    odd = ((), (seen_by("192.0.2.3"),), (seen_by("unknown", "198.51.100.1"),), (seen_by("", "198.51.100.1"),))
    assert [status(gateway, "models", *guess(), *lines) for lines in odd] == [401] * FAILURES + [429]


def test_nobody_says_of_the_admin_listener_that_proxies_stand_in_front_of_it(gateway_with: Callable[..., Any]) -> None:
    gateway = gateway_with(FAILURES, trusted_hops=1)
    for number in range(FAILURES):
        assert status(gateway, "admin read", *guess(), seen_by(f"192.0.2.{number}")) == 401
    assert status(gateway, "admin read", *guess(), seen_by("192.0.2.9")) == 429


def test_sources_without_number_are_not_remembered_without_number(gateway_with: Callable[..., Any]) -> None:
    gateway = gateway_with(FAILURES, trusted_hops=1)
    gate = gateway.gateway.core.failures
    gate._max_sources = 16
    for number in range(40):
        assert status(gateway, "models", *guess(), seen_by(f"2001:db8:0:{number:x}::1")) == 401
    assert len(gate) == 16
    # All of a host's own network are one source, and those that failed last are still held to it.
    for number in range(2, FAILURES + 1):
        assert status(gateway, "models", *guess(), seen_by(f"2001:db8:0:27::{number}")) == 401
    assert status(gateway, "models", *guess(), seen_by("2001:db8:0:27::ffff")) == 429
