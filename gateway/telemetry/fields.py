"""The closed set of things that may be written about a request. What is not registered here cannot be recorded.

None of them is text from a client or an engine: names are the operator's, codes and kinds come from closed sets, the
rest are numbers and ids that the gateway made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.telemetry.trace import Trace


@dataclass(frozen=True, slots=True)
class Field:
    """One registered field. ``values`` says how many there can be: few, many, or a number."""

    name: str
    type: type | tuple[type, ...]
    meaning: str
    values: str


_FLOAT = (float, int, type(None))
_COUNT = (int, type(None))
_NAME = (str, type(None))

FIELDS: tuple[Field, ...] = (
    Field("time", float, "when the request arrived, Unix seconds", "number"),
    Field("request_id", str, "the gateway's id of the request, also the client's x-request-id", "many"),
    Field("endpoint", str, "kind of endpoint, from Endpoint", "few"),
    Field("tenant", _NAME, "tenant of the principal", "few"),
    Field("key_id", _NAME, "id of the API key, or a hash of a token's issuer and subject", "many"),
    Field("priority", _NAME, "class that the principal's requests have in the queue", "few"),
    Field("alias", _NAME, "alias that was called, once it was found and allowed", "few"),
    Field("revision", _COUNT, "revision of the alias that served the request", "number"),
    Field("track", str, "stable, or canary for the new model of a trial", "few"),
    Field("model", _NAME, "served model that the revision named", "few"),
    Field("replica", _NAME, "replica tried last, by its host and port", "few"),
    Field("attempts", int, "replicas tried", "number"),
    Field("stream", bool, "whether the client asked for a stream", "few"),
    Field("status", int, "HTTP status sent, 499 when the client left first", "few"),
    Field("error", _NAME, "error code, from errors.CODES", "few"),
    Field(
        "reason",
        _NAME,
        "how an engine failed: connect, busy, reset, protocol, timeout, hung, refused, closing, dead",
        "few",
    ),
    Field("finish", _NAME, "why the engine ended, from a closed set, else other", "few"),
    Field("prompt_tokens", _COUNT, "prompt tokens as the engine counted them", "number"),
    Field("cached_tokens", _COUNT, "those of them that came from its prefix cache", "number"),
    Field("completion_tokens", _COUNT, "tokens generated", "number"),
    Field("request_bytes", int, "size of the request body", "number"),
    Field("response_bytes", int, "size of the answer's body", "number"),
    Field("events", _COUNT, "events of a stream; not tokens", "number"),
    Field("ttft_ms", _FLOAT, "from arrival to the first event of a stream", "number"),
    Field("tpot_ms", _FLOAT, "per output token after the first", "number"),
    Field("overhead_ms", _FLOAT, "time that the gateway itself added before the answer began", "number"),
    Field("queue_ms", float, "time in the gateway's queue, waiting for a place at a replica", "number"),
    Field("duration_ms", float, "from arrival to the end", "number"),
)

# Copied for every request, which takes a view of a dict ten times as long as a dict.
_BLANK: dict[str, Any] = {field.name: getattr(Trace, field.name, None) for field in FIELDS}


def record_of(trace: Trace) -> dict[str, Any]:
    """The record of a request: every registered field, and nothing else."""
    record = {**_BLANK, **trace.__dict__}
    return record if len(record) == len(_BLANK) else {name: record[name] for name in _BLANK}
