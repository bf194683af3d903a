"""Where an issuer's keys come from: a file, a URL, or what its discovery document names. Thin shells around httpx.

An issuer is trusted to say who somebody is, not to spend this process's memory or to choose where it connects: answers
have a size and a deadline, redirects are not followed, and everything is https unless the issuer itself is on loopback.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import httpx

from gateway.identity.keyset import KeySet, KeySetFault, KeySetReason, parse_document
from gateway.policy.issuers import IssuerPolicy

T = TypeVar("T")

MAX_BODY = 256 * 1024
PATIENCE = 5.0
"""Seconds for all that one load asks, however slowly an answer drips."""

DEFAULT_LIFETIME = 300.0
LIFETIMES = (60.0, 86_400.0)
FILE_LIFETIME = 2.5
"""Seconds. A file's time stamp is cheap to look at."""

_PLAIN = {"accept": "application/json", "accept-encoding": "identity"}  # a small compressed answer may be a large one
_MAX_AGE = re.compile(r"(?:\A|[,\s])max-age=(\d{1,9})(?=[,\s]|\Z)").search


class Loaded(NamedTuple):
    """A key set and for how many seconds its publisher calls it fresh."""

    keys: KeySet
    lifetime: float


class KeySource(Protocol):
    """What the cache needs of a source."""

    async def load(self) -> Loaded:
        """The keys as they are now. Raises ``KeySetFault``."""
        ...


def new_client() -> httpx.AsyncClient:
    """An HTTP client for issuers: no proxies from the environment, no redirects, no connection kept."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=PATIENCE, limits=limits)


def source_of(policy: IssuerPolicy, client: httpx.AsyncClient) -> KeySource:
    """The source that a policy names: its file, else its URL, else discovery."""
    if policy.keys_file is not None:
        return FileSource(policy.keys_file, policy.algorithms)
    return WebSource(policy, client)


class FileSource:
    """A JWKS on disk, read again when the file has changed. Reads in a thread."""

    def __init__(self, path: Path, algorithms: tuple[str, ...]) -> None:
        self._path = path
        self._algorithms = algorithms
        self._seen: tuple[int, ...] = ()
        self._keys = KeySet()

    async def load(self) -> Loaded:
        """The keys as they are now. Raises ``KeySetFault``; the file is then read again next time."""
        changed = await asyncio.to_thread(self._read)
        if changed is not None:
            stamp, body = changed
            self._keys = await asyncio.to_thread(_keys_of, body, self._algorithms)
            self._seen = stamp
        return Loaded(self._keys, FILE_LIFETIME)

    def _read(self) -> tuple[tuple[int, ...], bytes] | None:
        """Time stamp and content; nothing when the stamp is the known one."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._seen:
                return None
            with self._path.open("rb") as file:
                body = file.read(MAX_BODY + 1)
        except OSError:
            raise KeySetFault(KeySetReason.UNREACHABLE) from None
        if len(body) > MAX_BODY:
            raise KeySetFault(KeySetReason.TOO_LARGE)
        return stamp, body


class WebSource:
    """A JWKS behind a URL of the policy's, or behind the one that the issuer's discovery document names."""

    def __init__(self, policy: IssuerPolicy, client: httpx.AsyncClient, patience: float = PATIENCE) -> None:
        self._policy = policy
        self._client = client
        self._patience = patience

    async def load(self) -> Loaded:
        """The keys as they are now. Raises ``KeySetFault``."""
        try:
            async with asyncio.timeout(self._patience):
                url = await self._keys_url()
                body, lifetime = await fetch(self._client, url)
        except TimeoutError:
            raise KeySetFault(KeySetReason.UNREACHABLE) from None
        # A full set of RSA keys for every algorithm takes some milliseconds.
        return Loaded(await asyncio.to_thread(_keys_of, body, self._policy.algorithms), lifetime)

    async def _keys_url(self) -> httpx.URL:
        policy = self._policy
        if policy.jwks_url is not None:
            return judged_url(policy.jwks_url)
        start = judged_url(policy.issuer.removesuffix("/") + "/.well-known/openid-configuration")
        document = parse_document((await fetch(self._client, start))[0])
        # OpenID Connect Discovery 1.0, section 4.3: exactly the one that was asked.
        if document.get("issuer") != policy.issuer:
            raise KeySetFault(KeySetReason.ISSUER)
        return judged_url(document.get("jwks_uri"), loopback=start.scheme == "http")


def _keys_of(body: bytes, algorithms: Collection[str]) -> KeySet:
    # The first set brings cryptography in: here, in the thread, and not at every start, with or without an issuer.
    from gateway.identity.jwk import parse_keys  # noqa: PLC0415

    return parse_keys(body, algorithms)


def judged_url(text: object, *, loopback: bool = True) -> httpx.URL:
    """A URL that keys may come from: https, or http to this host where ``loopback`` allows it.

    It is judged as the client will read it, since two readings of one URL are how such rules are evaded. Raises
    ``KeySetFault``.
    """
    url = _parse_url(text) if type(text) is str else None
    if url is None or not url.host or url.userinfo or url.fragment or not _is_port(url.port):
        raise KeySetFault(KeySetReason.URL)
    if url.scheme != "https" and not (loopback and url.scheme == "http" and _is_loopback(url.host)):
        raise KeySetFault(KeySetReason.URL)
    return url


def _parse_url(text: str) -> httpx.URL | None:
    return _without(httpx.InvalidURL, lambda: httpx.URL(text))


def _is_port(port: int | None) -> bool:
    return port is None or 0 < port < 65_536


def _is_loopback(host: str) -> bool:
    address = _without(ValueError, lambda: ip_address(host))
    return host == "localhost" if address is None else address.is_loopback


def _without(error: type[Exception], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except error:
        return None


async def fetch(client: httpx.AsyncClient, url: httpx.URL) -> tuple[bytes, float]:
    """The body of a 200 and its lifetime in seconds. Raises ``KeySetFault``."""
    body = bytearray()
    try:
        async with client.stream("GET", url, headers=_PLAIN, follow_redirects=False) as answer:
            if answer.status_code != 200:
                raise KeySetFault(KeySetReason.STATUS)
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > MAX_BODY:
                    raise KeySetFault(KeySetReason.TOO_LARGE)
            return bytes(body), lifetime_of(answer.headers)
    except (httpx.HTTPError, OSError):
        raise KeySetFault(KeySetReason.UNREACHABLE) from None


def lifetime_of(headers: Mapping[str, str]) -> float:
    """``max-age`` within bounds: an issuer can neither have its keys asked for all the time nor kept for ever."""
    found = _MAX_AGE(headers.get("cache-control", "").lower())
    shortest, longest = LIFETIMES
    return DEFAULT_LIFETIME if found is None else min(max(float(found[1]), shortest), longest)
