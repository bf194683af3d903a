"""One test for each known way to pass with a token that is not good, over a real issuer and real signatures.

What a caller sees of a refusal is always the same: nothing. The reason is compared too, so that a test cannot pass
because its token is refused for something else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Unavailable
from gateway.identity.jwt import MAX_TOKEN
from gateway.identity.tokens import TokenRing
from gateway.model import Principal
from gateway.policy.issuers import ALGORITHMS, ClaimRule, IssuerPolicy
from tests.issuer import BAD_KEYS, DISCOVERY, JWKS, Issuer, b64, jwk_of, private_key, raw_token

NOW = 1_800_000_000
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SECOND = "https://second.test"


class Time:
    """Both clocks at once."""

    def __init__(self) -> None:
        self.passed = 0.0

    def wall(self) -> float:
        return NOW + self.passed

    def steady(self) -> float:
        return 1_000.0 + self.passed


class Door:
    """A ring that trusts one issuer for RS256, ES256 and EdDSA, and what it refused."""

    def __init__(self, *algorithms: str) -> None:
        self.time = Time()
        self.issuer = Issuer(*(algorithms or ("RS256", "ES256", "EdDSA")), clock=self.time.wall)
        self.refused: list[str] = []
        self._loop = asyncio.new_event_loop()
        # Without verify it does not load certificates, which would take longer than the test.
        self._client = httpx.AsyncClient(trust_env=False, verify=False)
        self.ring = TokenRing(
            (self.policy(),),
            self._client,
            self.time.wall,
            monotonic=self.time.steady,
            on_refused=self.refused.append,
        )

    def policy(self, **more: Any) -> IssuerPolicy:
        base = IssuerPolicy(
            "corp",
            self.issuer.url,
            ("gateway",),
            ("RS256", "ES256", "EdDSA"),
            ClaimRule(("tenant",), {"acme": "t-acme"}),
            ClaimRule(("roles",), {"dev": "user"}),
        )
        return replace(base, **more)

    def trust(self, *policies: IssuerPolicy) -> None:
        self.ring.replace(policies)

    def run(self, coroutine):
        return self._loop.run_until_complete(coroutine)

    def present(self, token: str) -> Principal | None:
        return self.run(self.ring.fetch(token))

    def admits(self, token: str) -> bool:
        return isinstance(self.present(token), Principal)

    def refuses(self, token: str, reason: str) -> bool:
        """Nothing comes out, twice (once from the cache), for this reason, and a sound token still passes."""
        self.refused.clear()
        assert self.present(token) is None
        assert self.present(token) is None
        assert self.refused == [reason, reason]
        return self.admits(self.issuer.token())

    def close(self) -> None:
        self.run(self.ring.close())
        self.run(self._client.aclose())
        self._loop.close()


@contextlib.contextmanager
def opened(*algorithms: str) -> Iterator[Door]:
    door = Door(*algorithms)
    with door.issuer:
        yield door
        door.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Door]:
    with opened() as door:
        yield door


@pytest.fixture
def door(shared: Door) -> Iterator[Door]:
    """The shared door, as new: sound, its policy as written, and a sound token passes."""
    shared.trust(shared.policy())
    assert shared.admits(shared.issuer.token())
    yield shared
    shared.time.passed = 0.0


@pytest.fixture
def own() -> Iterator[Door]:
    """A door whose issuer the test may spoil."""
    with opened() as door:
        yield door


def public_pem(algorithm: str = "RS256") -> bytes:
    return private_key(algorithm).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def hmac_token(issuer: Issuer, secret: bytes, algorithm: str = "HS256", **header: Any) -> str:
    head, claims = issuer.header(**{"alg": algorithm, **header}), issuer.claims()
    signed = f"{b64(json.dumps(head).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def claims_text(door: Door, extra: str, *without: str) -> str:
    """Sound claims as JSON text, with ``extra`` put in as it is."""
    sound = json.dumps(door.issuer.claims(**dict.fromkeys(without)))
    return sound[:-1] + f", {extra}}}"


def sign_claims(door: Door, text: str) -> str:
    return door.issuer.raw(door.issuer.header(), text)


# Algorithms


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "null"])
def test_alg_none_in_any_case(door, name):
    header, claims, signature = door.issuer.token(header={"alg": name}).split(".")
    assert door.refuses(f"{header}.{claims}.{signature}", "algorithm")
    assert door.refuses(f"{header}.{claims}.", "malformed")
    assert door.refuses(f"{header}.{claims}", "malformed")


@pytest.mark.parametrize(
    "name", ["rs256", "Rs256", "RS256 ", " RS256", "RS256\0", "RS-256", "ＲＳ256", "RSA", "ES256K", "RS1"]
)
def test_alg_is_compared_as_it_stands(door, name):
    assert door.refuses(door.issuer.token(header={"alg": name}), "algorithm")


@pytest.mark.parametrize("value", [None, 7, True, ["RS256"], {"RS256": 1}])
def test_alg_absent_or_no_text(door, value):
    header = door.issuer.header()
    header["alg"] = value
    assert door.refuses(door.issuer.raw(header, door.issuer.claims()), "algorithm")
    assert door.refuses(door.issuer.token(header={"alg": None}), "algorithm")


def test_a_policy_without_algorithms_admits_nothing(door):
    door.trust(door.policy(algorithms=()))
    assert door.present(door.issuer.token()) is None
    assert not any(name.startswith("HS") or name.lower() == "none" for name in ALGORITHMS)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("secret", ["pem", "pem without its newline", "der", "jwk", "modulus", "empty"])
def test_a_public_key_used_as_an_hmac_secret(door, algorithm, secret):
    public = private_key("RS256").public_key()
    secrets = {
        "pem": public_pem(),
        "pem without its newline": public_pem().strip(),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(jwk_of(public, "RS256", "RS256-0")).encode(),
        "modulus": public.public_numbers().n.to_bytes(256, "big"),
        "empty": b"",
    }
    assert door.refuses(hmac_token(door.issuer, secrets[secret], algorithm), "algorithm")


def test_an_hmac_signature_under_an_honest_alg(door):
    assert door.refuses(hmac_token(door.issuer, public_pem(), "RS256"), "signature")


def test_an_algorithm_of_another_key_of_the_same_issuer(door):
    """Each is allowed and each key is held, but not together."""
    es_kid = door.issuer.signing["ES256"][0]
    assert door.refuses(door.issuer.token("RS256", header={"kid": es_kid}), "algorithm")
    assert door.refuses(door.issuer.token("RS256", header={"alg": "ES256"}), "algorithm")
    assert door.refuses(door.issuer.token("EdDSA", header={"kid": es_kid, "alg": "ES256"}), "signature")


def test_an_algorithm_that_the_key_could_but_does_not_state(door):
    """RSA keys verify PS256 as well; the issuer said RS256."""
    door.trust(door.policy(algorithms=("RS256", "PS256")))
    assert door.admits(door.issuer.token("RS256"))
    claims, key = door.issuer.claims(), door.issuer.signing["RS256"][1]
    assert door.refuses(raw_token(door.issuer.header("RS256", alg="PS256"), claims, key, "PS256"), "algorithm")


def test_a_curve_that_is_not_the_algorithms():
    with opened("RS256", "ES384") as door:
        door.trust(door.policy(algorithms=("RS256", "ES256", "ES384")))
        assert door.admits(door.issuer.token("ES384"))
        assert door.refuses(door.issuer.token("ES384", header={"alg": "ES256"}), "algorithm")


# Signatures


@pytest.mark.parametrize(
    ("r", "s"),
    [
        (0, 0),
        (0, 1),
        (1, 0),
        (P256_ORDER, P256_ORDER),
        (P256_ORDER, 1),
        (1, P256_ORDER),
        (1, 1),
        (2**256 - 1, 2**256 - 1),
    ],
)
def test_ecdsa_numbers_that_are_no_signature(door, r, s):
    signed = door.issuer.token("ES256").rpartition(".")[0]
    assert door.refuses(f"{signed}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}", "signature")


def test_a_signature_of_another_shape(door):
    signed, _, signature = door.issuer.token("ES256").rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    for other in (
        encode_dss_signature(r, s),
        raw + b"\0",
        raw[:-1],
        b"\0" + raw,
        raw + raw,
        raw[:32] + b"\0" + raw[32:],
    ):
        assert door.refuses(f"{signed}.{b64(other)}", "signature")


def test_the_other_signature_that_anybody_can_make_of_an_ecdsa_one_gains_nothing(door):
    """(r, n - s) verifies as well, which no verifier can forbid: so nothing hangs on a token's text."""
    token = door.issuer.token("ES256", jti="t1")
    signed, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    r, s = decode_dss_signature(encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")))
    twin = f"{signed}.{b64(r.to_bytes(32, 'big') + (P256_ORDER - s).to_bytes(32, 'big'))}"
    assert door.present(twin) == door.present(token)
    door.trust(door.policy(denied_tokens=frozenset({"t1"})))
    assert door.refuses(twin, "denied")
    assert door.refuses(token, "denied")


def test_a_signature_of_somebody_else(door):
    for algorithm in ("RS256", "ES256", "EdDSA"):
        forged = raw_token(door.issuer.header(algorithm), door.issuer.claims(), private_key(algorithm, 77), algorithm)
        assert door.refuses(forged, "signature")


def test_a_signature_over_other_claims(door):
    header, _, signature = door.issuer.token().split(".")
    other = b64(json.dumps(door.issuer.claims(sub="root")).encode())
    assert door.refuses(f"{header}.{other}.{signature}", "signature")


# One token, one text


@pytest.mark.parametrize("change", ["=", "==", "===", "A", "AA", "\n", " ", "\0", "%3d", "."])
def test_padding_and_tails(door, change):
    token = door.issuer.token()
    header, claims, signature = token.split(".")
    for changed in (token + change, f"{header}{change}.{claims}.{signature}", f"{header}.{claims}{change}.{signature}"):
        assert door.present(changed) is None
    assert door.refuses(token + "==", "malformed")


def test_the_other_base64_alphabet(door):
    token = next(made for sub in range(99) if "-" in (made := door.issuer.token(sub=str(sub))) and "_" in made)
    assert door.admits(token)
    assert door.refuses(token.replace("-", "+"), "malformed")
    assert door.refuses(token.replace("_", "/"), "malformed")


def test_a_duplicate_claim_that_was_signed(door):
    for extra in ('"sub": "root"', '"s\\u0075b": "root"', '"tenant": "acme"', '"exp": 9999999999', '"aud": "gateway"'):
        assert door.refuses(sign_claims(door, claims_text(door, extra)), "malformed")
    nested = claims_text(door, '"x": {"a": 1, "a": 2}')
    assert door.refuses(sign_claims(door, nested), "malformed")


def test_a_duplicate_header_member(door):
    header = json.dumps(door.issuer.header())[:-1]
    for extra in ('"alg": "none"', '"alg": "RS256"', '"k\\u0069d": "x"', '"typ": "at+jwt"'):
        assert door.refuses(door.issuer.raw(f"{header}, {extra}}}", door.issuer.claims()), "malformed")


@pytest.mark.parametrize(
    "encode",
    [
        lambda t: t.encode("utf-16"),
        lambda t: t.encode("utf-8-sig"),
        lambda t: b"\xff" + t.encode(),
        lambda t: b"",
        str.strip,
    ]
    + [lambda t, v=value: v for value in ("[]", "null", "7", '"text"', "{}{}", "{", "{'sub': 1}", '{"a": 1,}', "{} x")],
)
def test_parts_that_are_not_one_json_object(door, encode):
    claims, header = json.dumps(door.issuer.claims()), json.dumps(door.issuer.header())
    if encode is str.strip:  # the control: text as it is passes
        assert door.admits(door.issuer.raw(header, claims))
        return
    assert door.refuses(door.issuer.raw(header, encode(claims)), "malformed")
    assert door.refuses(door.issuer.raw(encode(header), claims), "malformed")


# Times


@pytest.mark.parametrize("member", ["exp", "iat", "nbf"])
@pytest.mark.parametrize(
    "text",
    [f'"{NOW + 60}"', "1e99", "true", "false", "-1", "-1e9", "null", "[1900000000]", '{"a": 1}', '""', "9" * 40,
     "1e400",     str(2**53), str(2**64), "9007199254740993.0"],
)  # fmt: skip
def test_a_time_that_is_none(door, member, text):
    token = sign_claims(door, claims_text(door, f'"{member}": {text}', member))
    assert door.refuses(token, "malformed" if text == "1e400" else "claims")


@pytest.mark.parametrize("member", ["exp", "iat", "nbf"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "0x7fffffff", "01800000000", "+1800000000", "1_8"])
def test_a_time_that_is_no_json(door, member, text):
    assert door.refuses(sign_claims(door, claims_text(door, f'"{member}": {text}', member)), "malformed")


@pytest.mark.parametrize("member", ["exp", "iat", "iss", "aud", "sub"])
def test_a_required_claim_that_is_absent(door, member):
    reasons = {"iss": "issuer", "aud": "audience"}
    assert door.refuses(door.issuer.token(**{member: None}), reasons.get(member, "claims"))


def test_a_token_for_ever(door):
    assert door.admits(door.issuer.token(exp=NOW + 86_400))
    assert door.refuses(door.issuer.token(exp=NOW + 86_401), "lifetime")
    assert door.refuses(door.issuer.token(exp=2**52), "lifetime")
    assert door.refuses(door.issuer.token(iat=1, exp=NOW + 60), "lifetime")
    assert door.refuses(door.issuer.token(iat=0, exp=NOW + 60), "lifetime")


def test_a_token_that_is_over_or_not_yet(door):
    assert door.refuses(door.issuer.token(iat=NOW - 600, exp=NOW - 30), "expired")
    assert door.refuses(door.issuer.token(nbf=NOW + 31), "not_yet")
    assert door.refuses(door.issuer.token(iat=NOW + 31, exp=NOW + 60), "not_yet")
    assert door.admits(door.issuer.token(iat=NOW - 600, exp=NOW - 29))
    assert door.admits(door.issuer.token(nbf=NOW + 30))


def test_a_session_does_not_outlive_its_token(door):
    """CVE-2026-12796. The token is asked for each second, so that it is in the cache all the time."""
    token = door.issuer.token(exp=NOW + 90)
    admitted = []
    for second in range(180):
        door.time.passed = float(second)
        found = door.present(token)
        if found is not None:
            admitted.append(second)
            assert found.expires_at <= NOW + 90
    assert admitted == list(range(120))  # the end, and the leeway of 30 s


def test_a_cached_token_ends_with_its_key_and_with_its_policy(own):
    token = own.issuer.token()
    assert own.admits(token)
    own.trust(own.policy(denied_subjects=frozenset({"alice"})))
    assert own.present(token) is None
    own.trust(own.policy())
    assert own.admits(token)
    del own.issuer.published["RS256-0"]
    own.time.passed = 240.0
    epoch = own.ring.epoch
    own.run(own.ring.refresh())
    deadline = time.monotonic() + 10
    while own.ring.epoch == epoch:
        assert time.monotonic() < deadline
        own.run(asyncio.sleep(0.002))
    assert own.present(token) is None


# Issuer, audience, type, subject


@pytest.mark.parametrize(
    "change",
    ["{}/", "{}/.", "{}#", "{}?", " {}", "{} ", "{}\0", "{}@evil.test", "{}.evil.test", "HTTP{4}", "{}%00", "http://evil.test",
     "https://evil.test#{}", "", "*", "null"],
)  # fmt: skip
def test_an_issuer_that_is_not_exactly_a_trusted_one(door, change):
    url = door.issuer.url
    hits = Counter(door.issuer.hits)
    name = url.replace("http", "HTTP") if change.startswith("HTTP{") else change.format(url)
    assert door.refuses(door.issuer.token(iss=name), "issuer")
    assert door.issuer.hits == hits


def test_an_issuer_that_looks_like_a_trusted_one():
    with opened() as door:
        door.trust(door.policy(issuer="https://id.acme.test", jwks_url=door.issuer.origin + JWKS))
        assert door.admits(door.issuer.token(iss="https://id.acme.test"))
        for name in (
            "https://id.аcme.test", "https://іd.acme.test", "https://id.ａcme.test", "https://id。acme.test",
            "https://id.acme\u200b.test", "https://id.acme.test\u0301", "https://ıd.acme.test", "https://ID.acme.test",
            "https://id.acme.test\u202e",
        ):  # fmt: skip
            assert door.present(door.issuer.token(iss=name)) is None
        assert set(door.refused) == {"issuer"}


@pytest.mark.parametrize("value", [7, True, ["{}"], {"a": "{}"}, "x" * 1_025])
def test_an_issuer_that_is_no_name(door, value):
    value = [door.issuer.url] if value == ["{}"] else value
    assert door.refuses(door.issuer.token(iss=value), "issuer")


def test_the_keys_of_one_issuer_do_not_speak_for_another(own):
    """Both are trusted, both may use the same kid; each signs only for itself."""
    with Issuer("RS256", clock=own.time.wall) as other:
        other.signing["RS256"] = ("RS256-0", private_key("RS256", 55))
        other.published = {"RS256-0": jwk_of(private_key("RS256", 55).public_key(), "RS256", "RS256-0")}
        rules = {"tenant": ClaimRule(("tenant",), {"acme": "t-acme", "globex": "t-globex"})}
        own.trust(own.policy(), own.policy(name="second", issuer=other.url, **rules))
        assert own.admits(own.issuer.token())
        assert own.admits(other.token())
        assert own.present(other.token(iss=own.issuer.url)) is None
        assert own.present(own.issuer.token(iss=other.url)) is None
        assert own.refused == ["signature", "signature"]
        ids = {own.present(own.issuer.token()).id, own.present(other.token()).id}
        assert len(ids) == 2  # the same subject of two issuers is two people


@pytest.mark.parametrize(
    "audience",
    ["other", "Gateway", "gateway ", "gateway/", "gateway,other", "gateway other", "", 7, True, {"gateway": 1}, [],
     [[]], ["other"], ["gateway", "other"], ["other", "gateway"], ["gateway", 7], [["gateway"]], ["gateway", None],
     ["gateway"] * 17],
)  # fmt: skip
def test_an_audience_that_is_not_only_this_one(door, audience):
    assert door.refuses(door.issuer.token(aud=audience), "audience")


def test_an_audience_list_of_nobody_else(door):
    assert door.admits(door.issuer.token(aud=["gateway"]))
    door.trust(door.policy(audiences=("gateway", "account")))
    assert door.admits(door.issuer.token(aud=["account", "gateway"]))


@pytest.mark.parametrize(
    "kind",
    [None, "", "JOSE", "id+jwt", "logout+jwt", "secevent+jwt", "dpop+jwt", "rt+jwt", "at+jwt ", "application/",
     "x/at+jwt", "application/application/at+jwt", "at+jwt\0", 7, True, ["at+jwt"], {"at+jwt": 1}, "JＷT"],
)  # fmt: skip
def test_a_type_that_is_no_access_tokens(door, kind):
    assert door.refuses(door.issuer.token(header={"typ": kind}), "type")


@pytest.mark.parametrize("claim", ["nonce", "at_hash", "c_hash", "s_hash", "events"])
@pytest.mark.parametrize("kind", ["JWT", "at+jwt"])
def test_an_id_token_or_a_logout_token(door, claim, kind):
    """Many issuers give all their tokens the type ``JWT``."""
    assert door.admits(door.issuer.token(header={"typ": kind}))
    assert door.refuses(door.issuer.token(header={"typ": kind}, **{claim: "x"}), "type")


@pytest.mark.parametrize("subject", ["", 7, True, ["alice"], {"a": 1}, "a" * 256])
def test_a_subject_that_is_none(door, subject):
    assert door.refuses(door.issuer.token(sub=subject), "claims")


def test_denied_subjects_and_tokens(door):
    door.trust(door.policy(denied_subjects=frozenset({"mallory"}), denied_tokens=frozenset({"t1"})))
    assert door.refuses(door.issuer.token(sub="mallory"), "denied")
    assert door.refuses(door.issuer.token(jti="t1"), "denied")
    for value in (7, ["t1"], "", "t" * 257):
        assert door.refuses(door.issuer.token(jti=value), "claims")
    assert door.admits(door.issuer.token(jti="t2"))


def test_claims_to_identity_only_by_the_map(door):
    """A token's own words for tenant and role are nothing until the policy lists them."""
    for tenant in ("t-acme", "ACME", "acme ", "*", "", 7, ["acme", 7], {"acme": 1}, ["other"]):
        assert door.refuses(door.issuer.token(tenant=tenant), "claims")
    found = door.present(door.issuer.token(roles=["admin", "user", "dev "], aliases=["*"], limits={"rpm": 1}))
    assert found.roles == ()
    assert door.present(door.issuer.token(roles="dev")).roles == ("user",)


# The header's other members


@pytest.mark.parametrize(
    "kid",
    [7, True, ["RS256-0"], {"a": 1}, "", "a b", "RS256-0\0", "RS256-0\n", "é", "k" * 129, "\u202eRS256"],
    ids=repr,
)
def test_a_kid_that_is_no_plain_text(door, kid):
    hits = Counter(door.issuer.hits)
    assert door.refuses(door.issuer.token(header={"kid": kid}), "key")
    assert door.refuses(door.issuer.token(header={"kid": None}), "key")
    assert door.issuer.hits == hits


@pytest.mark.parametrize(
    "kid",
    ["../../../../etc/passwd", "/dev/null", "file:///dev/null", "x'OR'1'='1", "';DROP", "|id", "$(id)", "${jndi:x}",
     "__proto__", "https://evil.test/jwks", "k" * 128],
)  # fmt: skip
def test_a_kid_that_names_something_else(own, kid):
    """It is a name to look up among an issuer's keys, and nothing else is done with it."""
    assert own.admits(own.issuer.token())
    assert own.refuses(own.issuer.token(header={"kid": kid}), "key")
    assert own.issuer.hits == {DISCOVERY: 2, JWKS: 2}
    for secret in (b"", b"\0"):
        assert own.refuses(hmac_token(own.issuer, secret, kid=kid), "algorithm")


def test_a_kid_of_a_megabyte(door):
    assert door.refuses(door.issuer.token(header={"kid": "k" * 1_000_000}), "malformed")


@pytest.mark.parametrize("member", ["jku", "x5u"])
def test_a_key_by_a_url_of_the_token(door, member):
    """Nothing is fetched from it, and what it points to is not believed."""
    with Issuer("RS256", clock=door.time.wall) as evil:
        key = private_key("RS256", 66)
        header = door.issuer.header(**{member: evil.origin + JWKS})
        assert door.refuses(raw_token(header, door.issuer.claims(), key, "RS256"), "signature")
        assert not evil.hits
        assert door.admits(door.issuer.token(header={member: evil.origin + JWKS}))
        assert not evil.hits


@pytest.mark.parametrize("member", ["jwk", "x5c", "x5t", "x5t#S256"])
def test_a_key_in_the_token(door, member):
    key = private_key("RS256", 66)
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    values = {"jwk": jwk_of(key.public_key(), "RS256", "RS256-0"), "x5c": [base64.b64encode(der).decode()]}
    header = door.issuer.header(**{member: values.get(member, b64(hashlib.sha256(der).digest()))})
    assert door.refuses(raw_token(header, door.issuer.claims(), key, "RS256"), "signature")


@pytest.mark.parametrize("value", [["x"], ["exp"], [], ["b64"], "b64", None, 7, ["alg"], [7]])
def test_critical_extensions(door, value):
    header = {**door.issuer.header(), "crit": value, "exp": 1}
    assert door.refuses(door.issuer.raw(header, door.issuer.claims()), "malformed")


@pytest.mark.parametrize("value", [False, True, None, "false"])
@pytest.mark.parametrize("critical", [{}, {"crit": ["b64"]}])
def test_an_unencoded_payload(door, value, critical):
    header = {**door.issuer.header(), "b64": value, **critical}
    assert door.refuses(door.issuer.raw(header, door.issuer.claims()), "malformed")
    assert door.refuses(f"{b64(json.dumps(header).encode())}..AAAA", "malformed")


def test_an_encrypted_token(door):
    header = b64(b'{"alg":"RSA-OAEP","enc":"A256GCM","kid":"RS256-0"}')
    assert door.refuses(f"{header}.AAAA.AAAA.AAAA.AAAA", "malformed")
    assert door.refuses(f"{header}.{b64(json.dumps(door.issuer.claims()).encode())}.AAAA", "algorithm")


def test_a_token_in_json_serialisation(door):
    protected, payload, signature = door.issuer.token().split(".")
    assert door.present(json.dumps({"protected": protected, "payload": payload, "signature": signature})) is None
    assert door.refuses(door.issuer.raw(door.issuer.header(cty="JWT"), door.issuer.token()), "malformed")


# Size


def test_nothing_is_parsed_beyond_the_cap(door, monkeypatch):
    def never(*_):
        raise AssertionError("parsed")

    monkeypatch.setattr("gateway.identity.jwt._decode", never)
    monkeypatch.setattr("gateway.identity.tokens.hashlib.sha256", never)
    monkeypatch.setattr("gateway.identity.tokens.read", never)
    for token in ("a" * (MAX_TOKEN + 1), "a.b." + "c" * 2_000_000, "." * 1_000_000):
        assert door.ring.lookup(token) is None
    assert door.refused[-3:] == ["malformed"] * 3


@pytest.mark.parametrize(
    "bomb", ["[" * 5_000, "[" * 2_000 + "]" * 2_000, '{"a":' * 900 + "1" + "}" * 900, "[" * 9 + "]" * 9]
)
@pytest.mark.parametrize("place", ["header", "claims"])
def test_a_nest_of_json(door, bomb, place):
    header, claims = json.dumps(door.issuer.header())[:-1], json.dumps(door.issuer.claims())[:-1]
    parts = {"header": header + "}", "claims": claims + "}"}
    parts[place] = parts[place][:-1] + f', "x": {bomb}}}'
    assert door.refuses(door.issuer.raw(parts["header"], parts["claims"]), "malformed")


def test_many_small_values(door):
    many = json.dumps([0] * 2_000).replace(" ", "")
    assert door.refuses(sign_claims(door, claims_text(door, f'"tenant": {many}', "tenant")), "claims")


# The caches


def test_tokens_with_equal_beginnings_are_two_tokens(door):
    """CVE-2026-35030: a cache by the first characters gave one user's entry to another."""
    alice, bob = door.issuer.token(sub="alice"), door.issuer.token(sub="bob")
    common = len([1 for a, b in zip(alice, bob, strict=False) if a == b])
    assert alice[:100] == bob[:100]
    assert common > 100
    ids = {door.present(token).id for token in (alice, bob, alice, bob)}
    assert len(ids) == 2
    assert door.present(alice[:100]) is None
    assert door.present(alice[:-4] + "AAAA") is None
    assert door.present(alice[:-1]) is None


def test_only_what_was_verified_is_cached(door):
    header, claims, _ = door.issuer.token().split(".")
    unsigned = f"{header}.{claims}.AAAA"
    before = len(door.ring._known)
    for _ in range(3):
        assert door.present(unsigned) is None
    assert len(door.ring._known) == before


def test_a_flood_of_unknown_kids_costs_the_issuer_one_request(own):
    known = own.issuer.token()
    assert own.admits(known)
    hits = sum(own.issuer.hits.values())
    for number in range(300):
        assert own.present(own.issuer.token(header={"kid": f"bogus-{number}"})) is None
        assert isinstance(own.ring.lookup(known), Principal)
    assert sum(own.issuer.hits.values()) == hits + 2


def test_a_flood_at_an_issuer_that_was_never_there(own):
    own.issuer.mode = "failing"
    for number in range(100):
        with pytest.raises(Unavailable):
            own.present(own.issuer.token(header={"kid": f"bogus-{number}"}))
    assert sum(own.issuer.hits.values()) == 1


# Key sets


@pytest.mark.parametrize(
    "mode", [*BAD_KEYS, "duplicate_kids", "endless", "huge", "garbage", "nested", "twice", "redirect"]
)
def test_a_key_set_that_may_not_be_trusted(own, mode):
    own.issuer.mode = mode
    with pytest.raises(Unavailable):
        own.present(own.issuer.token())
    assert own.issuer.hits["/elsewhere"] == 0
    own.issuer.mode = "well"
    own.time.passed += 1
    assert own.admits(own.issuer.token())
    own.issuer.mode = mode
    own.time.passed += 1
    assert own.present(own.issuer.token(header={"kid": "other"})) is None
    assert own.admits(own.issuer.token())  # the old set stands whole


def test_a_secret_in_a_key_set_verifies_nothing(own):
    """A symmetric key that an issuer publishes by mistake is known to everybody."""
    own.issuer.mode = "oct_key"
    token = hmac_token(own.issuer, b"k" * 32, kid="oct")
    assert own.present(token) is None
    own.issuer.mode = "well"
    own.trust(own.policy(algorithms=("HS256", "RS256")))  # no policy can say so; if one did, there is no such key
    assert own.present(token) is None


def test_a_weak_key_signs_nothing(own):
    own.issuer.mode = "weak_key"
    token = raw_token(own.issuer.header(kid="weak"), own.issuer.claims(), private_key("weak"), "RS256")
    with pytest.raises(Unavailable):
        own.present(token)


# Whatever else

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["acme", "gateway"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@st.composite
def changes(draw: st.DrawFn, token: str, other: str) -> str:
    """The token with something done to it."""
    place = draw(st.integers(0, len(token) - 1))
    letter = draw(st.sampled_from(ALPHABET + ".=+/ \n\0é"))
    length = draw(st.integers(1, 40))
    parts, others = token.split("."), other.split(".")
    which = draw(st.integers(0, 2))
    return draw(
        st.sampled_from(
            [
                token[:place] + letter + token[place + 1 :],
                token[:place] + letter + token[place:],
                token[:place] + token[place + length :],
                token[:place],
                token[place:],
                token[:place] + other[place:],
                token[:place] + token[place : place + length] * 2 + token[place + length :],
                token.swapcase() if which else token[::-1],
                ".".join([*parts[:which], others[which], *parts[which + 1 :]]),
                ".".join([*parts[:which], "", *parts[which + 1 :]]),
                ".".join(parts[which:] + parts[:which]),
            ]
        )
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_changed_token_is_ever_good(shared: Door, data: st.DataObject):
    algorithm = data.draw(st.sampled_from(["RS256", "ES256", "EdDSA"]))
    token, other = made(shared, algorithm, "alice"), made(shared, algorithm, "bob")
    changed = data.draw(changes(token, other))
    found = shared.present(changed)
    assert found is None or changed in (token, other)


def made(door: Door, algorithm: str, subject: str) -> str:
    """The same token each time: ECDSA signatures are made anew otherwise, and a failure could not be repeated."""
    kept = door.__dict__.setdefault("made", {})
    if (algorithm, subject) not in kept:
        kept[algorithm, subject] = door.issuer.token(algorithm, sub=subject)
    return kept[algorithm, subject]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}"))
def test_no_text_is_good(shared: Door, text: str):
    assert shared.present(text) is None


@settings(max_examples=120, deadline=None)
@given(
    header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]), JSON_VALUES, max_size=2),
    claims=st.dictionaries(
        st.sampled_from(["iss", "sub", "aud", "exp", "iat", "nbf", "jti", "tenant", "roles"]), JSON_VALUES, max_size=3
    ),
)
def test_a_signed_token_of_any_content_is_judged_without_error(shared: Door, header, claims):
    """Even an issuer's own token of strange content makes a principal of the policy's words, or none."""
    head, body = {**shared.issuer.header(), **header}, {**shared.issuer.claims(), **claims}
    found = shared.present(shared.issuer.raw(json.dumps(head), json.dumps(body)))
    assert found is None or (found.tenant == "t-acme" and set(found.roles) <= {"user"})
    if found is not None:
        assert (body["iss"], type(body["sub"])) == (shared.issuer.url, str)
        assert all(type(body[name]) in (int, float) for name in ("exp", "iat"))
        assert body["exp"] > NOW - 30
