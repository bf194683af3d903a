"""Frozen values that the parts of the gateway share. Nothing here does I/O or holds state.

What is made anew for each request is a named tuple: it costs a third of a frozen dataclass.

Vocabulary: an *alias* is the name an application uses; each assignment of it is an immutable *revision* whose
*targets* are served models with weights; a *replica* is one engine at one URL; a *principal* is who calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple


class Endpoint(StrEnum):
    """The closed set of endpoint kinds: a metric label, a record field and the key of the body rules."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    RERANK = "rerank"
    SCORE = "score"
    CLASSIFY = "classify"
    POOLING = "pooling"
    TRANSCRIPTIONS = "transcriptions"
    TRANSLATIONS = "translations"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    MODELS = "models"
    HEALTH = "health"
    OTHER = "other"

    # Enum hashes in Python code, 0.3 us for each look-up on the request path.
    __hash__ = str.__hash__


class Dialect(StrEnum):
    """Whose error object and stream grammar an endpoint speaks."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


class Priority(StrEnum):
    """How soon a request is served when it has to wait: a class of its own, which the roles of who calls give it."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"

    rank: int
    """Its place among the classes, from 0: the lower, the sooner."""

    def __init__(self, _: str) -> None:
        self.rank = len(type(self).__members__)

    __hash__ = str.__hash__


class BodyKind(StrEnum):
    """How the body of a route is read."""

    NONE = "none"
    JSON = "json"
    MULTIPART = "multipart"


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the closed route table.

    ``upstream_path`` is the engine's path for the route (``None``: the gateway answers by itself). ``streams`` says
    whether the body may ask for a stream; ``queries`` are query strings that may stand behind the path and are dropped.
    """

    method: str
    path: str
    endpoint: Endpoint
    body: BodyKind = BodyKind.NONE
    dialect: Dialect = Dialect.OPENAI
    upstream_path: str | None = None
    streams: bool = False
    anonymous: bool = False
    queries: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """Figures that bound what is used; ``None`` is no limit. A minute's and a day's figure are also its burst."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None


NO_LIMITS = Limits()


class Credential(StrEnum):
    """What a principal has shown."""

    KEY = "key"
    TOKEN = "token"  # noqa: S105 - a kind, not a secret


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: an API key or a JWT's subject, its tenant and its roles.

    ``id`` is the key's id or a hash of a token's issuer and subject: safe to record. ``aliases`` are the globs that the
    credential itself is narrowed to (what its roles grant is the policy's), ``limits`` its own figures.
    ``expires_at`` is when it must be looked at again, in Unix seconds.
    """

    id: str
    tenant: str
    name: str = ""
    roles: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ("*",)
    expires_at: float = math.inf
    limits: Limits = NO_LIMITS
    credential: Credential = Credential.KEY


class Budget(NamedTuple):
    """Limits that one holder shares among all its requests. ``holder`` is ``principal:ID`` or ``tenant:NAME``."""

    holder: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Target:
    """A served model and its share of an alias's traffic (weights are relative, at least 1)."""

    model: str
    weight: int = 1


SOURCES = frozenset({"cli", "api", "file", "automatic", "rollback", "canary"})
"""Where a revision may come from."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One immutable assignment of an alias. ``created_at`` is Unix seconds; ``source`` is one of ``SOURCES``.

    ``canary_of`` is the number of the revision that this one tries to replace: then the first target is that one's
    model, the second the new one, and their weights are percent.
    """

    alias: str
    number: int
    targets: tuple[Target, ...]
    author: str
    created_at: float
    note: str = ""
    source: str = "api"
    canary_of: int | None = None

    @property
    def label(self) -> str:
        """``name@revision``, as the response header carries it."""
        return f"{self.alias}@{self.number}"

    def track(self, model: str) -> str:
        """``canary`` for the new model of a trial, else ``stable``: a metric label."""
        return "canary" if self.canary_of is not None and model == self.targets[-1].model else "stable"


@dataclass(frozen=True, slots=True)
class Instance:
    """One running gateway, as its heartbeat tells. Times are Unix seconds.

    ``generation`` is that of the alias table it serves, ``table_age`` for how many seconds it has not heard of the
    store; ``degraded`` says that it serves what it kept, because it has not been able to read the store.
    """

    id: str
    name: str
    version: str
    admin_url: str
    started_at: float
    seen_at: float
    generation: int
    table_age: float = 0.0
    degraded: bool = False


INSTANCE_TTL = 10.0
"""Seconds after its last heartbeat during which an instance counts as live."""


@dataclass(frozen=True, slots=True)
class AliasTable:
    """All current revisions at one generation. Replaced whole; a request keeps the table it read."""

    generation: int = 0
    current: Mapping[str, Revision] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as configured or discovered: where it is and what ops say about it.

    ``server_name`` is the name that its certificate has to have when the URL holds an address that a name led to.
    """

    url: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    server_name: str | None = None

    @property
    def id(self) -> str:
        """``host:port``: what names the replica in commands, records and metrics."""
        return self.url.partition("://")[2]


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """What operators ordered about the engine at one URL.

    ``added``: the order itself makes it part of the fleet; else it is listed elsewhere, in the configuration, a file or
    DNS. ``draining``: it gets no new requests, whatever it says, until that is lifted; a restart of the engine lifts
    nothing. ``author``, ``at`` (Unix seconds) and ``note`` are those of the last change.
    """

    url: str
    added: bool = False
    draining: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    author: str = ""
    at: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class EngineOrders:
    """All orders about engines at one generation, by URL. Replaced whole."""

    generation: int = 0
    engines: Mapping[str, EngineOrder] = field(default_factory=lambda: MappingProxyType({}))


class Usage(NamedTuple):
    """Tokens as the engine reports them; ``cached`` is the part of ``prompt`` that came from its prefix cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a multipart form: a plain field (``filename`` is ``None``) or a file, its bytes untouched."""

    name: str
    data: bytes
    filename: str | None = None
    content_type: str | None = None


class InferenceRequest(NamedTuple):
    """A request after every rule of its body has been checked.

    ``alias`` is the name exactly as the caller wrote it. ``payload`` is the parsed JSON object; for a multipart route
    it is empty and ``parts`` holds the form. ``stream`` and ``include_usage`` are what the client asked for;
    ``max_tokens`` is the output limit that it gave (``None``: none); ``choices`` is how many answers make it whole: its
    ``n``, for each prompt of a list.
    """

    route: Route
    alias: str
    payload: dict[str, Any]
    parts: tuple[FormPart, ...] = ()
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    choices: int = 1
