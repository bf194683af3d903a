"""Who acts on the admin plane, and under which name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.admin.callers import Caller, Knowledge, caller_of, hand_over, recognise
from gateway.errors import Refusal, Unavailable
from gateway.model import Credential, Principal
from gateway.policy.verbs import ALL_VERBS
from gateway.secret import Secret

TOKEN = "gwadmin_" + "t" * 43
KEY = Principal("Ab12", "t1", "ops", roles=("viewer",))
JWT = Principal("jwt_0123", "t1", "ann", roles=("viewer",), credential=Credential.TOKEN)


class Callers:
    """Knows ``key`` at once, ``token`` when it is asked for, and fails on ``gone``."""

    epoch = 1
    fetched = 0

    def lookup(self, presented):
        return {"key": KEY, "bad": None}.get(presented, "miss")

    async def fetch(self, presented):
        self.fetched += 1
        if presented == "gone":
            raise Unavailable("store_unavailable", retry_after=1)
        return {"token": JWT}.get(presented)


class Failures:
    def __init__(self):
        self.sources, self.wait = [], None

    def blocked(self, source):
        return self.wait

    def failed(self, source):
        self.sources.append(source)


@pytest.fixture
def known():
    return Knowledge(Secret(TOKEN), Callers(), Failures(), lambda principal: frozenset({f"{principal.name}:read"}))


def seen(known, *headers):
    return asyncio.run(recognise([(name, value.encode()) for name, value in headers], "192.0.2.1", known))


def test_the_bootstrap_token_may_all_and_asks_nobody(known):
    for header in ((b"authorization", f"Bearer {TOKEN}"), (b"x-api-key", TOKEN)):
        assert seen(known, header) == Caller("admin-token", ALL_VERBS)
    assert known.callers.fetched == 0


def test_a_key_and_a_token_act_under_their_own_names_with_their_own_verbs(known):
    assert seen(known, (b"x-api-key", "key")) == Caller("key:Ab12 (ops)", frozenset({"ops:read"}))
    assert seen(known, (b"authorization", "Bearer token")) == Caller("token:jwt_0123", frozenset({"ann:read"}))


@pytest.mark.parametrize("text", ["bad", "unknown", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
def test_whoever_is_not_known_is_refused_alike_and_counted(known, text):
    with pytest.raises(Refusal) as refused:
        seen(known, (b"authorization", f"Bearer {text}"))
    assert (refused.value.spec.code, refused.value.message) == ("invalid_api_key", refused.value.spec.message)
    assert known.failures.sources == ["192.0.2.1"]


def test_a_source_with_too_many_failures_waits_but_holds_up_nobody_known(known):
    known.failures.wait = 7
    with pytest.raises(Refusal) as refused:
        seen(known, (b"x-api-key", "token"))
    assert (refused.value.spec.code, refused.value.retry_after) == ("rate_limited", 7)
    assert known.callers.fetched == 0
    assert seen(known, (b"x-api-key", "key")).author == "key:Ab12 (ops)"
    assert seen(known, (b"x-api-key", TOKEN)).author == "admin-token"


def test_a_credential_that_cannot_be_checked_is_not_a_wrong_one(known):
    with pytest.raises(Unavailable):
        seen(known, (b"x-api-key", "gone"))
    assert known.failures.sources == []


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", TOKEN), (b"x-api-key", TOKEN)],
        [(b"authorization", f"Bearer {TOKEN}"), (b"authorization", f"Bearer {TOKEN}")],
        [(b"authorization", f"Bearer {TOKEN}"), (b"x-api-key", TOKEN)],
    ],
)
def test_two_credentials_are_none(known, headers):
    with pytest.raises(Refusal) as refused:
        seen(known, *headers)
    assert refused.value.spec.code == "invalid_request"


def test_a_caller_is_handed_over_in_the_scope_of_its_request_alone():
    caller, scope = Caller("a", frozenset()), {"type": "http"}
    assert caller_of(SimpleNamespace(scope=hand_over(caller, scope))) is caller
    assert scope == {"type": "http"}
