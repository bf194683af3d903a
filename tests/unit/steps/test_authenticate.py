"""Who calls: one answer for every credential that is no good, and no more work than needed to find out."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gateway.errors import Refusal, Unavailable
from gateway.identity.keyring import MISS
from gateway.model import Principal
from gateway.steps.authenticate import authenticate, credential, source_of

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


class FakeFailures:
    """Counts, and blocks the sources given."""

    def __init__(self, *blocked: str) -> None:
        self.sources = blocked
        self.counted: list[str] = []

    def blocked(self, source):
        return 7 if source in self.sources else None

    def failed(self, source):
        self.counted.append(source)


def _call(keys, failures=None, hops=0, forwarded=(), **head):
    names = {name.replace("_", "-").encode(): value for name, value in head.items()}
    headers = [*names.items(), *_lines(*forwarded)]
    return asyncio.run(
        authenticate(dict(headers), keys, failures or FakeFailures(), "10.0.0.9", headers=headers, hops=hops)
    )


def _lines(*forwarded):
    return [(b"x-forwarded-for", value) for value in forwarded]


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
    {"x_api_key": b"x" * 8193},
    {"authorization": b"Bearer " + b"x" * 8193},
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


def test_the_longest_credential_is_8_kib():
    assert credential({b"x-api-key": b"x" * 8192}) == "x" * 8192


def test_a_credential_that_is_no_good_counts_against_its_source_and_a_good_one_does_not():
    failures = FakeFailures()
    for cached in (None, MISS):
        with pytest.raises(Refusal):
            _call(FakeKeys(cached=cached), failures, x_api_key=KEY.encode())
    assert failures.counted == ["10.0.0.9"] * 2
    _call(FakeKeys(cached=PRINCIPAL), failures, x_api_key=KEY.encode())
    _call(FakeKeys(cached=MISS, stored=PRINCIPAL), failures, x_api_key=KEY.encode())
    assert failures.counted == ["10.0.0.9"] * 2


def test_a_blocked_source_learns_nothing_and_costs_no_look_at_the_store():
    keys = FakeKeys(cached=MISS, stored=PRINCIPAL)
    with pytest.raises(Refusal) as refused:
        _call(keys, FakeFailures("10.0.0.9"), x_api_key=KEY.encode())
    assert (refused.value.spec.status, refused.value.retry_after) == (429, 7)
    assert keys.fetched == []


def test_a_known_credential_is_not_held_up_by_others_who_fail_from_its_address():
    assert _call(FakeKeys(cached=PRINCIPAL), FakeFailures("10.0.0.9"), x_api_key=KEY.encode()) is PRINCIPAL


def test_a_store_that_cannot_be_asked_is_no_failure_of_the_source():
    failures = FakeFailures()
    with pytest.raises(Unavailable):
        _call(FakeKeys(cached=MISS, stored=Unavailable("store_unavailable")), failures, x_api_key=KEY.encode())
    assert failures.counted == []


@pytest.mark.parametrize(
    ("hops", "forwarded", "source"),
    [
        (0, [b"203.0.113.7"], "10.0.0.9"),
        (1, [b"203.0.113.7"], "203.0.113.7"),
        (1, [b"198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (2, [b"198.51.100.1, 203.0.113.7"], "198.51.100.1"),
        (2, [b"203.0.113.7"], "10.0.0.9"),
        (1, [b""], "10.0.0.9"),
        (1, [b"unknown"], "10.0.0.9"),
        (1, [b"203.0.113.7:1234"], "10.0.0.9"),
        (1, [b"\xff\xfe"], "10.0.0.9"),
        (1, [b"2001:DB8::1"], "2001:db8::1"),
        # Lines are one list in their order: a proxy may add one of its own.
        (1, [b"198.51.100.1", b"203.0.113.7"], "203.0.113.7"),
        (2, [b"198.51.100.1", b"203.0.113.7"], "198.51.100.1"),
        (2, [b"192.0.2.66, 192.0.2.67", b"198.51.100.1", b"203.0.113.7"], "198.51.100.1"),
        (3, [b"192.0.2.66, 192.0.2.67", b"198.51.100.1, 203.0.113.7"], "192.0.2.67"),
        (3, [b"192.0.2.66", b"203.0.113.7"], "10.0.0.9"),
        (2, [b"192.0.2.66", b"", b"203.0.113.7"], "10.0.0.9"),
        (1, [], "10.0.0.9"),
    ],
)
def test_only_what_trusted_proxies_appended_says_where_a_request_comes_from(hops, forwarded, source):
    assert source_of("10.0.0.9", _lines(*forwarded), hops) == source
    failures = FakeFailures()
    with pytest.raises(Refusal):
        _call(FakeKeys(cached=None), failures, hops, forwarded, x_api_key=KEY.encode())
    assert failures.counted == [source]


@pytest.mark.parametrize(("lines", "hops"), list(itertools.product(range(1, 5), range(1, 5))))
def test_how_a_list_is_cut_into_lines_changes_no_source(lines, hops):
    whole = [b"192.0.2.1", b"192.0.2.2", b"192.0.2.3", b"192.0.2.4"]
    cuts = itertools.combinations(range(1, 4), lines - 1)
    pieces = [[b", ".join(whole[a:b]) for a, b in itertools.pairwise((0, *cut, 4))] for cut in cuts]
    assert {source_of("10.0.0.9", _lines(*each), hops) for each in pieces} == {whole[-hops].decode()}


def test_a_known_credential_costs_no_look_at_where_it_comes_from():
    class Unread(list):
        def __iter__(self):
            raise AssertionError("read")

    head = {b"x-api-key": KEY.encode()}
    found = authenticate(head, FakeKeys(cached=PRINCIPAL), FakeFailures(), "10.0.0.9", headers=Unread(), hops=2)
    assert asyncio.run(found) is PRINCIPAL


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
