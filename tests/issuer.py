"""A small OIDC issuer for tests: a real HTTP server on a loopback port with rotating keys, and ways to misbehave.

It serves from threads of its own, so that it can be used from any event loop or from none:

    with Issuer() as issuer:
        token = issuer.token(sub="alice")
        issuer.mode = "failing"

``mode`` may be changed at any time; ``hits`` counts requests by path. While ``held()`` no answer is sent.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "gateway"
DISCOVERY, JWKS = "/.well-known/openid-configuration", "/keys"
WEAK = "weak"

_MAKERS: Mapping[str, Callable[[], Any]] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    WEAK: lambda: rsa.generate_private_key(65537, 1024),
}
_TO_JWK = {"RS": RSAAlgorithm.to_jwk, "PS": RSAAlgorithm.to_jwk, "ES": ECAlgorithm.to_jwk, "Ed": OKPAlgorithm.to_jwk}


@cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """A private key, made once in a process: the number tells keys of one kind apart."""
    return _MAKERS[algorithm]()


def jwk_of(key: Any, algorithm: str, kid: str | None, **more: Any) -> dict[str, Any]:
    """The JWK of a key as an issuer publishes it; of a private key, the private JWK."""
    members = dict(_TO_JWK[algorithm[:2]](key, as_dict=True))
    members.pop("key_ops", None)
    stated = {"kid": kid, "alg": algorithm, "use": "sig"} if kid is not None else {"alg": algorithm, "use": "sig"}
    return {**members, **stated, **more}


def b64(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw_token(
    header: bytes | str | Mapping[str, Any], claims: bytes | str | Mapping[str, Any], key: Any, sign: str
) -> str:
    """A token of exactly these octets, signed with ``sign`` whatever its header says."""
    signed = f"{b64(_octets(header))}.{b64(_octets(claims))}"
    algorithm = jwt.get_algorithm_by_name(sign)
    return f"{signed}.{b64(algorithm.sign(signed.encode(), key))}"


def _octets(value: bytes | str | Mapping[str, Any]) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


class Issuer:
    """The issuer. ``clock`` gives the Unix seconds that its tokens are made at."""

    def __init__(
        self, *algorithms: str, clock: Callable[[], float] = time.time, max_age: int | None = None, path: str = ""
    ) -> None:
        self.clock = clock
        self.max_age = max_age
        self.mode = "well"
        self.hits: Counter[str] = Counter()
        self.path = path
        self.jwks_uri: str | None = None
        self.extra_keys: list[Any] = []
        self._open = threading.Event()
        self._open.set()
        self._generation = 0
        self.signing: dict[str, tuple[str, Any]] = {}
        self.published: dict[str, dict[str, Any]] = {}
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="issuer", daemon=True)
        for algorithm in algorithms or ("RS256",):
            self.rotate(algorithm)

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode = "failing"
        self._open.set()
        self._server.shutdown()
        self._server.server_close()

    def discard(self) -> None:
        """Give the port back; for an issuer that was never asked to serve."""
        self._server.server_close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Its name, and where its discovery document is."""
        return self.origin + self.path

    def rotate(self, algorithm: str, *, withdraw: bool = False) -> str:
        """Sign with a new key from now on; the old one stays published unless ``withdraw``. Returns the new kid."""
        if withdraw and algorithm in self.signing:
            self.published.pop(self.signing[algorithm][0], None)
        kid = f"{algorithm}-{self._generation}"
        key = private_key(algorithm, self._generation)
        self._generation += 1
        self.signing[algorithm] = (kid, key)
        self.published[kid] = jwk_of(key.public_key(), algorithm, kid)
        return kid

    def claims(self, **more: Any) -> dict[str, Any]:
        """Sound claims, changed by ``more``; ``None`` removes one."""
        now = int(self.clock())
        sound = {"iss": self.url, "sub": "alice", "aud": AUDIENCE, "iat": now, "exp": now + 3_600, "tenant": "acme"}
        return {name: value for name, value in {**sound, **more}.items() if value is not None}

    def header(self, algorithm: str = "", **more: Any) -> dict[str, Any]:
        """A sound header, changed by ``more``; ``None`` removes a member."""
        algorithm = algorithm or next(iter(self.signing))
        sound = {"alg": algorithm, "typ": "at+jwt", "kid": self.signing[algorithm][0]}
        return {name: value for name, value in {**sound, **more}.items() if value is not None}

    def token(self, algorithm: str = "", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token signed with the current key; ``header`` and ``claims`` change what is sound."""
        algorithm = algorithm or next(iter(self.signing))
        key = self.signing[algorithm][1]
        return raw_token(self.header(algorithm, **(header or {})), self.claims(**claims), key, algorithm)

    def raw(self, header: bytes | str | Mapping[str, Any], claims: bytes | str | Mapping[str, Any]) -> str:
        """A token of exactly these octets, soundly signed with the first key."""
        algorithm = next(iter(self.signing))
        return raw_token(header, claims, self.signing[algorithm][1], algorithm)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No answer is sent meanwhile: a slow issuer, as slow as the test wants it."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def wait_open(self) -> None:
        self._open.wait(30)

    def key_set(self) -> bytes:
        """The JWKS document in the present mode."""
        keys: list[Any] = [*self.published.values(), *self.extra_keys, *BAD_KEYS.get(self.mode, list)()]
        if self.mode == "duplicate_kids":
            keys.append(keys[0])
        return json.dumps({"keys": keys}).encode()

    def discovery(self) -> bytes:
        """The discovery document in the present mode."""
        uri = BAD_URIS.get(self.mode, self.jwks_uri or self.origin + JWKS)
        name = self.url + "/" if self.mode == "wrong_issuer" else self.url
        return json.dumps({"issuer": name, "jwks_uri": uri}).encode()


def _private() -> list[Any]:
    return [jwk_of(private_key("RS256", 90), "RS256", "private")]


BAD_KEYS: Mapping[str, Callable[[], list[Any]]] = {
    "oct_key": lambda: [{"kty": "oct", "k": b64(b"k" * 32), "kid": "oct", "alg": "HS256", "use": "sig"}],
    "weak_key": lambda: [jwk_of(private_key(WEAK).public_key(), "RS256", "weak")],
    "private_key": _private,
    "unknown_curve": lambda: [{"kty": "EC", "crv": "secp256k1", "x": b64(b"x" * 32), "y": b64(b"y" * 32), "kid": "k1"}],
}
BAD_URIS: Mapping[str, Any] = {
    "http_elsewhere": "http://keys.example.com/jwks",
    "file_uri": "file:///etc/passwd",
    "userinfo_uri": "https://127.0.0.1@keys.example.com/jwks",
    "backslash_uri": "http://127.0.0.1\\@keys.example.com/jwks",
    "number_uri": 7,
    "bad_uri": "http://[::1",
}
BODIES: Mapping[str, bytes] = {
    "garbage": b"\x00\xff<html>",
    "list": b"[]",
    "huge": b'{"keys": [], "x": "' + b"a" * 300_000 + b'"}',
    "nested": b'{"keys": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "twice": b'{"keys": [], "keys": []}',
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        issuer = self.server.issuer
        issuer.hits[self.path] += 1
        issuer.wait_open()
        modes: Mapping[str, Callable[[], None]] = {
            "failing": lambda: self.reply(503, b""),
            "redirect": lambda: self.reply(302, b"", location=issuer.origin + "/elsewhere"),
            "endless": self.endless,
            "drip": self.drip,
        }
        with contextlib.suppress(OSError):
            modes.get(issuer.mode, self.answer)()

    def answer(self) -> None:
        issuer = self.server.issuer
        documents = {issuer.path + DISCOVERY: issuer.discovery, JWKS: issuer.key_set}
        document = documents.get(self.path)
        if document is None:
            self.reply(404, b"")
        else:
            self.reply(200, BODIES.get(issuer.mode) or document())

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        if self.server.issuer.max_age is not None:
            self.send_header("cache-control", f"public, max-age={self.server.issuer.max_age}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def endless(self) -> None:
        """Writes until the reader closes."""
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b" " * 65_536)

    def drip(self) -> None:
        """One octet at a time, until the reader closes or the mode changes."""
        self.send_response(200)
        self.end_headers()
        while self.server.issuer.mode == "drip":
            self.wfile.write(b" ")
            time.sleep(0.01)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""
