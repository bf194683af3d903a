"""Who calls: one answer for every credential that is no good, and no more work than needed to find out."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Refusal, Unavailable
from gateway.identity.keyring import MISS
from gateway.model import Principal
from gateway.steps.authenticate import authenticate, credential

PRINCIPAL = Principal("key-1", "acme")
KEY = "gw_live_0123456789"


class FakeKeys:
    """A ring whose cache and store are given."""

    def __init__(self, cached=MISS, stored=None) -> None:
        self.cached = cached
        self.stored = stored
        self.looked_up: list[str] = []
        self.fetched: list[str] = []

    def lookup(self, presented):
        self.looked_up.append(presented)
        return self.cached

    async def fetch(self, presented):
        self.fetched.append(presented)
        if isinstance(self.stored, Exception):
            raise self.stored
        return self.stored


def _call(keys, **head):
    names = {name.replace("_", "-").encode(): value for name, value in head.items()}
    return asyncio.run(authenticate(names, keys))


@pytest.mark.parametrize(
    "head",
    [
        {"authorization": b"Bearer " + KEY.encode()},
        {"authorization": b"bearer " + KEY.encode()},
        {"authorization": b"BEARER " + KEY.encode()},
        {"x_api_key": KEY.encode()},
    ],
)
def test_a_known_key_is_its_principal_without_a_look_at_the_store(head):
    keys = FakeKeys(cached=PRINCIPAL)
    assert _call(keys, **head) is PRINCIPAL
    assert keys.looked_up == [KEY]
    assert keys.fetched == []


def test_a_key_not_seen_yet_is_fetched():
    keys = FakeKeys(cached=MISS, stored=PRINCIPAL)
    assert _call(keys, x_api_key=KEY.encode()) is PRINCIPAL
    assert keys.fetched == [KEY]


def test_a_key_known_to_be_no_good_is_not_fetched_again():
    keys = FakeKeys(cached=None, stored=PRINCIPAL)
    with pytest.raises(Refusal):
        _call(keys, x_api_key=KEY.encode())
    assert keys.fetched == []


MALFORMED = [
    {},
    {"authorization": b""},
    {"authorization": b"Bearer"},
    {"authorization": b"Bearer "},
    {"authorization": KEY.encode()},
    {"authorization": b"Basic " + KEY.encode()},
    {"authorization": b"Bearer\t" + KEY.encode()},
    {"x_api_key": b""},
    {"x_api_key": b"x" * 257},
    {"authorization": b"Bearer " + b"x" * 257},
]
NO_GOOD = [*MALFORMED, {"authorization": b"Bearer " + KEY.encode()}, {"x_api_key": "schlüssel".encode()}]


@pytest.mark.parametrize("head", NO_GOOD, ids=range(len(NO_GOOD)))
def test_every_credential_that_is_no_good_gets_the_same_answer(head):
    with pytest.raises(Refusal) as refused:
        _call(FakeKeys(cached=MISS, stored=None), **head)
    with pytest.raises(Refusal) as absent:
        _call(FakeKeys())
    assert vars(refused.value) == vars(absent.value)
    assert refused.value.spec.status == 401


@pytest.mark.parametrize("head", MALFORMED, ids=range(len(MALFORMED)))
def test_what_cannot_be_a_key_is_not_looked_up(head):
    keys = FakeKeys(cached=PRINCIPAL)
    with pytest.raises(Refusal):
        _call(keys, **head)
    assert keys.looked_up == []


def test_the_longest_credential_is_256_bytes():
    assert credential({b"x-api-key": b"x" * 256}) == "x" * 256


def test_two_credentials_are_refused_whatever_they_hold():
    for bearer in (b"Bearer " + KEY.encode(), b"", b"Basic x"):
        with pytest.raises(Refusal) as refused:
            credential({b"authorization": bearer, b"x-api-key": KEY.encode()})
        assert refused.value.spec.code == "invalid_request"


def test_a_store_that_cannot_be_asked_is_503_and_never_open():
    with pytest.raises(Unavailable) as failed:
        _call(FakeKeys(cached=MISS, stored=Unavailable("store_unavailable")), x_api_key=KEY.encode())
    assert failed.value.spec.status == 503


def test_no_refusal_repeats_the_credential():
    for head in (
        {"authorization": b"Basic " + KEY.encode()},
        {"authorization": b"Bearer x", "x_api_key": KEY.encode()},
    ):
        with pytest.raises(Refusal) as refused:
            _call(FakeKeys(), **head)
        assert KEY not in refused.value.message
        assert KEY not in str(refused.value)
