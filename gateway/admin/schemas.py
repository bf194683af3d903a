"""What the admin API takes and gives. Closed: an unknown field, or a value of another type, is refused.

The command line builds the same objects, so that a rule holds whichever way a change comes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.model import Limits
from gateway.policy.grants import LIMIT_BOUNDS
from gateway.policy.names import EXPECTED_ALIAS, is_alias
from gateway.stores.interfaces import KeyRecord

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_GLOB = r"^[A-Za-z0-9._:/*?-]{1,64}$"
_TEN_YEARS = 3_660 * 86_400
_MAX_OVERLAP = 90 * 86_400
_DAY = 86_400
PAGE = 500
"""How many objects a page of a list has unless it is asked for fewer."""


def key_reference(text: str) -> str:
    """The id or the name of a key as given. Raises ``ValueError``, without quoting: it may be the text of a key."""
    if re.fullmatch(_NAME, text) is None or text.endswith("\n"):
        raise ValueError("a key is meant by its id or name, 1 to 64 of A-Z a-z 0-9 . _ -")
    return text


def alias_name(text: str) -> str:
    """An alias name as given. Raises ``ValueError``."""
    if not is_alias(text):
        raise ValueError(f"expected {EXPECTED_ALIAS}")
    return text


Name = Annotated[str, Field(pattern=_NAME)]
AliasName = Annotated[str, AfterValidator(alias_name)]
AliasGlob = Annotated[str, Field(pattern=_GLOB)]
KeyReference = Annotated[str, AfterValidator(key_reference)]

_Requests = Annotated[int, Field(ge=1, le=LIMIT_BOUNDS["requests_per_minute"])]
_MinuteTokens = Annotated[int, Field(ge=1, le=LIMIT_BOUNDS["tokens_per_minute"])]
_DayTokens = Annotated[int, Field(ge=1, le=LIMIT_BOUNDS["tokens_per_day"])]
_Concurrency = Annotated[int, Field(ge=1, le=LIMIT_BOUNDS["concurrency"])]


class Closed(BaseModel):
    """The base of all that is taken and given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """The base of query strings: closed too, but their values arrive as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyPaging(Query):
    """Which keys of the list: ``limit`` of them, the first one behind the key whose id is ``after``."""

    after: KeyReference | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE)] = PAGE


class LimitsView(Closed):
    """A key's own figures; ``None`` leaves one to its roles and the defaults of the policy."""

    requests_per_minute: _Requests | None = None
    tokens_per_minute: _MinuteTokens | None = None
    tokens_per_day: _DayTokens | None = None
    concurrency: _Concurrency | None = None


class KeyOrder(Closed):
    """A key to be made. ``expires_in`` is seconds from now; ``None`` is never."""

    name: Name
    tenant: Name = "default"
    roles: Annotated[list[Name], Field(max_length=32)] = []
    aliases: Annotated[list[AliasGlob], Field(min_length=1, max_length=256)] = ["*"]
    limits: LimitsView = LimitsView()
    expires_in: Annotated[int, Field(ge=1, le=_TEN_YEARS)] | None = None


class RotateOrder(Closed):
    """Another secret for a key. The one before works for ``overlap`` more seconds, 0 ends it at once."""

    overlap: Annotated[int, Field(ge=0, le=_MAX_OVERLAP)] = _DAY


class RevokeOrder(Closed):
    """The end of a key: there is nothing to say about it, and what is said all the same is refused."""


class SecretView(Closed):
    """One secret of a key, without the secret. ``expires_at`` ``None``: as long as the key."""

    created_at: float
    expires_at: float | None
    pepper_version: int
    live: bool


class KeyView(Closed):
    """A key as shown: all but its secrets' texts. Times are Unix seconds; ``secrets`` are newest first."""

    id: str
    name: str
    tenant: str
    roles: list[str]
    aliases: list[str]
    limits: LimitsView
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    state: Literal["live", "expired", "revoked"]
    secrets: list[SecretView]


class NewKeyView(KeyView):
    """A key with a secret just made, whose text is given this once."""

    key: str


class KeyList(Closed):
    """Keys, oldest first. ``next`` is what ``after`` has to be for those that follow; ``None``: there are no more."""

    keys: list[KeyView]
    next: str | None


def key_view(record: KeyRecord, now: float) -> KeyView:
    """A stored key as shown at ``now``."""
    return KeyView(**_key_fields(record, now))


def new_key_view(record: KeyRecord, now: float, text: str) -> NewKeyView:
    """A key just made, with its text."""
    return NewKeyView(**_key_fields(record, now), key=text)


def key_state(record: KeyRecord, now: float) -> str:
    """``live``, ``expired`` or ``revoked``."""
    return "revoked" if record.revoked_at is not None else "live" if record.live(now) else "expired"


def limits_of(view: LimitsView) -> Limits:
    """Figures as the rest of the gateway knows them."""
    return Limits(**view.model_dump())


def limits_view(limits: Limits) -> LimitsView:
    """Figures as shown."""
    return LimitsView(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        tokens_per_day=limits.tokens_per_day,
        concurrency=limits.concurrency,
    )


def _key_fields(record: KeyRecord, now: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "roles": list(record.roles),
        "aliases": list(record.aliases),
        "limits": limits_view(record.limits),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "state": key_state(record, now),
        "secrets": [
            SecretView(
                created_at=secret.created_at,
                expires_at=secret.expires_at,
                pepper_version=secret.pepper_version,
                live=record.live(now) and secret.live(now),
            )
            for secret in record.secrets
        ],
    }
