"""Who acts on the admin plane, and what it may do."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from starlette.requests import Request

from gateway.errors import Refusal
from gateway.model import Credential, Principal
from gateway.policy.verbs import ALL_VERBS
from gateway.secret import Secret
from gateway.steps.authenticate import Callers, Failures, authenticate, credential
from gateway.wire.headers import SINGLE, Headers

TOKEN_AUTHOR = "admin-token"  # noqa: S105 - a name in the audit trail
"""Whom the audit trail names for the bootstrap token: it is one for all, so no more is known about who holds it."""

_SCOPE_KEY = "gateway.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller: ``author`` is its name in the audit trail, ``verbs`` are what it may do."""

    author: str
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a caller is recognised by: the bootstrap token, those who know credentials, and what their roles give."""

    admin_token: Secret
    callers: Callers
    failures: Failures
    verbs: Callable[[Principal], frozenset[str]]


async def recognise(headers: Headers, peer: str, known: Knowledge) -> Caller:
    """The caller behind a request. Raises ``Refusal`` (401, 400, 429) or ``Unavailable`` (503)."""
    head = _single(headers)
    if _is(credential(head), known.admin_token):
        return Caller(TOKEN_AUTHOR, ALL_VERBS)
    principal = await authenticate(head, known.callers, known.failures, peer)
    return Caller(author_of(principal), known.verbs(principal))


def author_of(principal: Principal) -> str:
    """The name of a key or a token's subject in the audit trail."""
    if principal.credential is Credential.TOKEN:
        return f"token:{principal.id}"
    return f"key:{principal.id} ({principal.name})"


def hand_over(caller: Caller, request: Mapping[str, object]) -> dict[str, object]:
    """The request's scope with its caller, for ``caller_of``."""
    return {**request, _SCOPE_KEY: caller}


def caller_of(request: Request) -> Caller:
    """The caller that the gate let in: a dependency of routes."""
    caller: Caller = request.scope[_SCOPE_KEY]
    return caller


def _single(headers: Headers) -> Mapping[bytes, bytes]:
    """The head by name. A credential that stands twice could be read as either."""
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in SINGLE):
        raise Refusal("invalid_request", "A header that may stand once is repeated.")
    return MappingProxyType(dict(headers))


def _is(presented: str, token: Secret) -> bool:
    return hmac.compare_digest(presented.encode(), token.reveal().encode())
