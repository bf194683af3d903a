"""How many different schemas a tenant may hand to the engines' grammar compilers in a time.

Each schema that an engine has not seen is compiled and kept, on some versions on disk and for ever (CVE-2025-29770), so
that a stream of new ones costs far more than its requests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from gateway.errors import Refusal
from gateway.model import InferenceRequest

_TENANTS = 4096  # tenants are the operator's, so more at once than this are rare


class SchemaCap:
    """Lets a tenant use at most ``limit`` different schemas in ``period`` seconds of ``monotonic``.

    Memory is bounded: ``limit`` digests for each of the tenants seen last. One that is forgotten begins anew.
    """

    def __init__(self, limit: int, period: float, monotonic: Callable[[], float], *, tenants: int = _TENANTS) -> None:
        self.limit = limit
        self._period = period
        self._monotonic = monotonic
        self._max_tenants = tenants
        # Tenants and, within each, digests stand in the order of their last use; the value is when that was.
        self._used: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()

    def admit(self, tenant: str, digest: bytes) -> None:
        """Count a use of a schema. Raises ``Refusal`` (429) for one too many; a schema in use is always admitted."""
        now = self._monotonic()
        used = self._of(tenant)
        while used and now - next(iter(used.values())) >= self._period:
            used.popitem(last=False)
        if digest not in used and len(used) >= self.limit:
            wait = next(iter(used.values())) + self._period - now
            raise Refusal("rate_limited", "Too many different schemas in this time.", retry_after=math.ceil(wait))
        used[digest] = now
        used.move_to_end(digest)

    def _of(self, tenant: str) -> OrderedDict[bytes, float]:
        used = self._used.get(tenant)
        if used is None:
            if len(self._used) >= self._max_tenants:
                self._used.popitem(last=False)
            used = self._used[tenant] = OrderedDict()
        self._used.move_to_end(tenant)
        return used


def schema_digests(request: InferenceRequest) -> list[bytes]:
    """A digest of each schema and list of choices in the request; the same object written in another order differs.

    Engines key their caches by the text of a schema, so a new order is a new entry there too.
    """
    payload = request.payload
    if _CARRIERS.isdisjoint(payload):
        return []
    return [blake2b(orjson.dumps(schema), digest_size=16).digest() for schema in _schemas(payload)]


_CARRIERS = frozenset({"response_format", "structured_outputs", "tools", "text", "output_config"})
# Where a schema stands beneath a member that may hold one.
_PATHS: tuple[tuple[str, ...], ...] = (
    ("response_format", "json_schema", "schema"),
    ("structured_outputs", "json"),
    ("structured_outputs", "choice"),
    ("text", "format", "schema"),
    ("output_config", "format", "schema"),
)
_TOOL_PATHS: tuple[tuple[str, ...], ...] = (("function", "parameters"), ("parameters",), ("input_schema",))


def _schemas(payload: Mapping[str, Any]) -> Iterator[Any]:
    for path in _PATHS:
        if (schema := _at(payload, path)) is not None:
            yield schema
    for tool in payload.get("tools") or ():
        for path in _TOOL_PATHS:
            if (schema := _at(tool, path)) is not None:
                yield schema


def _at(held: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        held = held.get(name) if type(held) is dict else None
    return held
