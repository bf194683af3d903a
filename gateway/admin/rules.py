"""The access policy as operators see it: what it makes of a key and an alias, and how it stands with its files."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.admin.news import PolicyNews, Standing
from gateway.admin.operations import principal_of
from gateway.admin.schemas import AliasName, Closed, KeyReference, Query, key_state
from gateway.errors import CODES
from gateway.policy.access import Access
from gateway.policy.explain import explain
from gateway.stores.interfaces import KeyRecord

_MAX_NAMED = 50


class CheckView(Closed):
    """One of the lists that must all cover the alias: of the roles, of the credential, of the tenant."""

    rule: str
    passed: bool
    because: str


class AppliedLimitView(Closed):
    """A limit that a call counts against, whose budget it is, and where its figure comes from."""

    holder: str
    limit: str
    value: int
    source: str


class ExplanationView(Closed):
    """What the gateway would answer to a call of an alias with a key, and why.

    ``code`` is the error code of the answer, ``None`` when the call would go through. ``allowed`` is what the policy
    says, be the alias there and the key live or not. ``priority``, which ``priority_from`` gave it, and the ``weight``
    of its tenant count where the call has to wait.
    """

    key: str
    name: str
    state: str
    tenant: str
    alias: str
    allowed: bool
    code: str | None
    status: int
    reason: str
    roles: list[str]
    unknown_roles: list[str]
    checks: list[CheckView]
    limits: list[AppliedLimitView]
    verbs: list[str]
    priority: str
    priority_from: str
    weight: float


class ExplainQuery(Query):
    """Which key, by id or name, and which alias, be it there or not."""

    key: KeyReference
    alias: AliasName


class PolicyView(Closed):
    """How the policy in force stands with its files.

    ``epoch`` counts its replacements since the start, ``loaded_at`` is when it came into force (Unix seconds). While
    ``valid`` is false the files hold something else that was refused: ``faults`` says where and what was expected.
    """

    valid: bool
    epoch: int
    loaded_at: float
    faults: list[str]


def policy_view(news: PolicyNews, policies: Standing) -> PolicyView:
    """How the policy in force stands now."""
    return PolicyView(
        valid=policies.valid,
        epoch=policies.epoch,
        loaded_at=news.loaded_at,
        faults=[] if policies.valid else list(news.faults),
    )


def unknown_roles(access: Access, roles: Sequence[str]) -> str | None:
    """What is wrong with roles for a new key, without quoting them; ``None``: the policy knows them all."""
    if all(role in access.roles for role in roles):
        return None
    known = sorted(access.roles)
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return f"expected roles of the access policy, which knows {', '.join(known[:_MAX_NAMED]) or 'none'}{more}"


def explanation(access: Access, key: KeyRecord, alias: str, *, exists: bool, now: float) -> ExplanationView:
    """What ``access`` makes of a call of ``alias`` with ``key`` at ``now``; ``exists``: there is such an alias."""
    told = explain(access, principal_of(key), alias, exists)
    state = key_state(key, now)
    code = told.code if state == "live" else "invalid_api_key"
    return ExplanationView(
        key=key.id,
        name=key.name,
        state=state,
        tenant=key.tenant,
        alias=alias,
        allowed=told.allowed,
        code=code,
        status=200 if code is None else CODES[code].status,
        reason=told.reason if state == "live" else f"The key is {state}. {told.reason}",
        roles=list(told.roles),
        unknown_roles=list(told.unknown_roles),
        checks=[CheckView(rule=one.rule, passed=one.passed, because=one.because) for one in told.checks],
        limits=[
            AppliedLimitView(holder=one.holder, limit=one.limit, value=one.value, source=one.source)
            for one in told.limits
        ],
        verbs=list(told.verbs),
        priority=told.standing.priority,
        priority_from=told.standing.source,
        weight=told.weight,
    )
