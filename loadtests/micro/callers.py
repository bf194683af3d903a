"""Credentials that are known already, and limits that hold: what each request of a caller pays."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from gateway.admin.operations import Mint, issue_key
from gateway.admin.schemas import KeyOrder
from gateway.identity.callers import Callers
from gateway.identity.keyring import KeyRing
from gateway.identity.tokens import TokenRing
from gateway.limits.local import LocalLimiter
from gateway.model import Budget, Limits
from gateway.policy.issuers import ClaimRule, IssuerPolicy
from gateway.secret import Secret
from gateway.stores.sqlite import SqliteStore

_TIMES = 2_000
_ISSUER = "https://issuer.example"
_FIGURES = Limits(10**9, 10**12, 10**12, 1_000)

Run = Callable[[], object]


class NotKnown(RuntimeError):
    """A credential that was just made is not taken: what would be measured is a refusal."""


@asynccontextmanager
async def key() -> AsyncIterator[tuple[Run, int]]:
    """An API key of a store."""
    pepper = Secret("p" * 43)
    with tempfile.TemporaryDirectory() as folder:
        async with _store(folder) as store:
            _, text = await issue_key(
                store, Mint(pepper, 1, Random(1)), KeyOrder(name="a"), author="x", now=time.time()
            )
            async with _rings(KeyRing(store, {1: pepper}), ()) as callers:
                yield await _looked_up(callers, text.reveal())


@asynccontextmanager
async def token() -> AsyncIterator[tuple[Run, int]]:
    """A token of an issuer whose keys are in a file."""
    private, now = ec.generate_private_key(ec.SECP256R1()), int(time.time())
    claims = {
        "iss": _ISSUER,
        "aud": "gateway",
        "sub": "somebody",
        "tenant": "acme",
        "iat": now,
        "nbf": now,
        "exp": now + 3_600,
    }
    text = jwt.encode(claims, private, "ES256", {"kid": "one", "typ": "at+jwt"})
    public = {**ECAlgorithm.to_jwk(private.public_key(), as_dict=True), "kid": "one", "alg": "ES256", "use": "sig"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"keys": [public]}))
        policy = IssuerPolicy(
            "corp",
            _ISSUER,
            ("gateway",),
            ("ES256",),
            ClaimRule(("tenant",), {"acme": "acme"}),
            ClaimRule(),
            keys_file=path,
        )
        async with _store(folder) as store, _rings(KeyRing(store, {1: Secret("p" * 43)}), (policy,)) as callers:
            yield await _looked_up(callers, text)


@asynccontextmanager
async def limits() -> AsyncIterator[tuple[Run, int]]:
    """What a request takes of its key and of its tenant, and gives back."""
    limiter, budgets = LocalLimiter(), (Budget("principal:one", _FIGURES), Budget("tenant:acme", _FIGURES))

    def run() -> None:
        for _ in range(_TIMES):
            lease = limiter.admit(budgets, 400)
            lease.settle(190)
            lease.close()

    yield run, _TIMES


@asynccontextmanager
async def _store(folder: str) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(Path(folder) / "state.db")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _rings(keys: KeyRing, issuers: tuple[IssuerPolicy, ...]) -> AsyncIterator[Callers]:
    async with httpx.AsyncClient(trust_env=False) as client:
        tokens = TokenRing(issuers, client)
        try:
            await keys.refresh()
            await tokens.refresh()
            yield Callers(keys, tokens)
        finally:
            await keys.close()
            await tokens.close()


async def _looked_up(callers: Callers, text: str) -> tuple[Run, int]:
    """Raises ``NotKnown``."""
    if await callers.fetch(text) is None or callers.lookup(text) is None:
        raise NotKnown

    def run() -> None:
        for _ in range(_TIMES):
            callers.lookup(text)

    return run, _TIMES
