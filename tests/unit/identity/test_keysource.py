"""Where keys come from: a real issuer over real sockets, in every mood, and a file that changes."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace

import httpx
import pytest

from gateway.identity.jwk import KeySetFault, KeySetReason
from gateway.identity.keysource import (
    DEFAULT_LIFETIME,
    FILE_LIFETIME,
    MAX_BODY,
    FileSource,
    Loaded,
    WebSource,
    judged_url,
    lifetime_of,
    new_client,
    source_of,
)
from gateway.policy.issuers import ClaimRule, IssuerPolicy
from tests.issuer import BAD_URIS, BODIES, DISCOVERY, JWKS, Issuer


@pytest.fixture
def issuer():
    with Issuer("ES256") as issuer:
        yield issuer


def policy_of(issuer: Issuer, **more) -> IssuerPolicy:
    rules = {"tenant": ClaimRule(fixed=("t",)), "roles": ClaimRule()}
    return IssuerPolicy("corp", issuer.url, ("gateway",), ("ES256", "RS256"), **rules, **more)


def bare_client() -> httpx.AsyncClient:
    """Without verify it does not load certificates, which would take longer than the test."""
    return httpx.AsyncClient(trust_env=False, verify=False)


def load(policy: IssuerPolicy, patience: float = 5.0, client=bare_client) -> Loaded:
    async def body() -> Loaded:
        async with client() as made:
            return await WebSource(policy, made, patience).load()

    return asyncio.run(body())


def fault(policy: IssuerPolicy, patience: float = 5.0) -> KeySetReason:
    with pytest.raises(KeySetFault) as caught:
        load(policy, patience)
    return caught.value.reason


def test_keys_by_discovery(issuer):
    loaded = load(policy_of(issuer))
    assert set(loaded.keys.keys) == {"ES256-0"}
    assert loaded.lifetime == DEFAULT_LIFETIME
    assert issuer.hits == {DISCOVERY: 1, JWKS: 1}


def test_keys_by_url_alone(issuer):
    issuer.max_age = 3_600
    loaded = load(policy_of(issuer, jwks_url=issuer.origin + JWKS))
    assert set(loaded.keys.keys) == {"ES256-0"}
    assert loaded.lifetime == 3_600
    assert issuer.hits == {JWKS: 1}


def test_discovery_below_a_path_and_with_a_slash_at_the_end():
    with Issuer("ES256", path="/realms/corp") as issuer:
        assert load(policy_of(issuer)).keys.keys
    with Issuer("ES256", path="/") as issuer:
        issuer.path = ""
        policy = replace(policy_of(issuer), issuer=issuer.url + "/")
        assert fault(policy) is KeySetReason.ISSUER  # asked at the right place, and told another name
        assert issuer.hits == {DISCOVERY: 1}


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("failing", KeySetReason.STATUS),
        ("redirect", KeySetReason.STATUS),
        ("endless", KeySetReason.TOO_LARGE),
        ("huge", KeySetReason.TOO_LARGE),
        ("garbage", KeySetReason.NOT_JSON),
        ("list", KeySetReason.NOT_JSON),
        ("nested", KeySetReason.NOT_JSON),
        ("twice", KeySetReason.NOT_JSON),
        ("duplicate_kids", KeySetReason.DUPLICATE_KID),
        ("oct_key", KeySetReason.SYMMETRIC),
        ("weak_key", KeySetReason.WEAK),
        ("private_key", KeySetReason.PRIVATE),
        ("unknown_curve", KeySetReason.CURVE),
    ],
)
def test_an_issuer_in_a_bad_mood(issuer, mode, reason):
    issuer.mode = mode
    assert fault(policy_of(issuer, jwks_url=issuer.origin + JWKS)) is reason
    assert "/elsewhere" not in issuer.hits


@pytest.mark.parametrize("mode", ["failing", "redirect", "endless", *BODIES, "wrong_issuer", *BAD_URIS])
def test_a_discovery_document_that_is_not_believed(issuer, mode):
    issuer.mode = mode
    expected = {"failing": KeySetReason.STATUS, "redirect": KeySetReason.STATUS, "endless": KeySetReason.TOO_LARGE}
    expected |= {"huge": KeySetReason.TOO_LARGE, "wrong_issuer": KeySetReason.ISSUER}
    expected |= dict.fromkeys(BAD_URIS, KeySetReason.URL)
    assert fault(policy_of(issuer)) is expected.get(mode, KeySetReason.NOT_JSON)
    assert JWKS not in issuer.hits


def test_a_body_of_the_greatest_size_is_read(issuer):
    issuer.published["pad"] = {"kty": "none", "pad": ""}
    issuer.published["pad"]["pad"] = "x" * (MAX_BODY - len(issuer.key_set()))
    policy = policy_of(issuer, jwks_url=issuer.origin + JWKS)
    assert load(policy).keys.keys
    issuer.published["pad"]["pad"] += "x"
    assert fault(policy) is KeySetReason.TOO_LARGE


@pytest.mark.parametrize("way", ["slow", "drip"])
def test_an_answer_has_a_deadline(issuer, way):
    policy = policy_of(issuer)
    if way == "drip":
        issuer.mode = "drip"
        assert fault(policy, 0.1) is KeySetReason.UNREACHABLE
        return
    with issuer.held():
        assert fault(policy, 0.1) is KeySetReason.UNREACHABLE


def test_nobody_there():
    with Issuer("ES256") as issuer:
        policy = policy_of(issuer)
    assert fault(policy) is KeySetReason.UNREACHABLE


def test_no_proxy_from_the_environment(issuer, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert load(policy_of(issuer), client=new_client).keys.keys


def test_an_https_issuer_cannot_send_to_loopback():
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        document = {"issuer": "https://id.test", "jwks_uri": "http://127.0.0.1:9200/keys"}
        return httpx.Response(200, stream=httpx.ByteStream(json.dumps(document).encode()))

    async def body() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await WebSource(policy, client).load()

    asked: list[str] = []
    policy = IssuerPolicy("corp", "https://id.test", ("g",), ("ES256",), ClaimRule(), ClaimRule())
    with pytest.raises(KeySetFault) as caught:
        asyncio.run(body())
    assert caught.value.reason is KeySetReason.URL
    assert asked == ["https://id.test/.well-known/openid-configuration"]


@pytest.mark.parametrize(
    "text",
    [
        "https://id.test/keys",
        "https://10.0.0.1:8443/k?x=1",
        "http://127.0.0.1:1/k",
        "http://localhost/k",
        "http://[::1]/k",
    ],
)
def test_a_url_that_may_be_asked(text):
    assert str(judged_url(text)) == text


@pytest.mark.parametrize(
    "text",
    [*BAD_URIS.values(), "", "id.test/keys", "//id.test", "http://id.test/", "ftp://127.0.0.1/", "https://", "https:///k",
     "http://127.0.0.1.evil.test/", "http://localhost.evil.test/", "http://127.1/", "http://2130706433/", "http://0.0.0.0/",
     "https://user:pw@id.test/", "https://id.test/#part", "https://id.test:99999/", "https://a\0b/", None, b"https://x/"],
)  # fmt: skip
def test_a_url_that_may_not(text):
    with pytest.raises(KeySetFault) as caught:
        judged_url(text)
    assert caught.value.reason is KeySetReason.URL


def test_loopback_only_where_it_is_allowed():
    with pytest.raises(KeySetFault):
        judged_url("http://127.0.0.1/k", loopback=False)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("max-age=600", 600), ("public, max-age=600, must-revalidate", 600), ("Max-Age=600", 600), ("max-age=0", 60),
        ("max-age=999999999", 86_400), ("max-age=9999999999", 300), ("max-age=-5", 300), ("max-age=abc", 300),
        ("s-maxage=600", 300), ("x-max-age=600", 300), ("", 300), ("no-store", 300),
    ],
)  # fmt: skip
def test_a_lifetime_has_bounds(header, seconds):
    assert lifetime_of({"cache-control": header}) == seconds


def write(path, issuer: Issuer, stamp: int) -> None:
    path.write_bytes(issuer.key_set())
    os.utime(path, ns=(stamp, stamp))


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    issuer, path = Issuer("ES256"), tmp_path / "keys.json"
    source = FileSource(path, ("ES256",))

    async def body() -> None:
        write(path, issuer, 1)
        first = await source.load()
        assert (set(first.keys.keys), first.lifetime) == ({"ES256-0"}, FILE_LIFETIME)
        assert (await source.load()).keys is first.keys
        issuer.rotate("ES256", withdraw=True)
        write(path, issuer, 2)
        assert set((await source.load()).keys.keys) == {"ES256-1"}

    asyncio.run(body())
    issuer.discard()


def test_a_bad_file_is_read_again_until_it_is_good(tmp_path):
    issuer, path = Issuer("ES256"), tmp_path / "keys.json"
    source = FileSource(path, ("ES256",))

    async def reason() -> KeySetReason:
        with pytest.raises(KeySetFault) as caught:
            await source.load()
        return caught.value.reason

    async def body() -> None:
        assert await reason() is KeySetReason.UNREACHABLE
        path.write_text("{")
        assert await reason() is KeySetReason.NOT_JSON
        assert await reason() is KeySetReason.NOT_JSON
        path.write_bytes(b" " * (MAX_BODY + 1))
        assert await reason() is KeySetReason.TOO_LARGE
        path.write_text(json.dumps({"keys": [{"kty": "oct", "k": "AA"}]}))
        assert await reason() is KeySetReason.SYMMETRIC
        write(path, issuer, 5)
        assert (await source.load()).keys.keys

    asyncio.run(body())
    issuer.discard()


def test_a_policy_with_a_file_asks_nobody(tmp_path, issuer):
    async def body() -> None:
        async with bare_client() as client:
            assert isinstance(source_of(policy_of(issuer, keys_file=tmp_path / "k", jwks_url="x"), client), FileSource)
            assert isinstance(source_of(policy_of(issuer), client), WebSource)

    asyncio.run(body())
