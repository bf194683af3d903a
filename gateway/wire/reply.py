"""A whole JSON answer of an engine: what it says of tokens and ends, and the same answer under the caller's model name.

Pure. The engine's error answers are read here too: their text quotes prompts (captured, vLLM 0.32.0), so of a message
only the kind of fault that it shows is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from gateway.errors import EngineBusy, EngineClosing, EngineDead, EngineFailure, EngineProtocolError, EngineRefused
from gateway.model import Usage
from gateway.wire.sse import error_status, read_usage, says_error, swap_model
from gateway.wire.trouble import Trouble, trouble_in

_making = tuple.__new__  # a named tuple's own constructor takes three times as long


class Reply(NamedTuple):
    """An answer to pass on, with what it said."""

    body: bytes
    usage: Usage | None = None
    finish: str | None = None


def rename(body: bytes, model: str) -> Reply:
    """The answer with ``model`` in place of the served model's.

    Raises ``EngineProtocolError`` if it is not JSON, and what the engine refused with if it is an error in spite of its
    status. An answer that was aborted without a token is a refusal as well: so vLLM answers prompts of token ids while
    it shuts down (seen with 0.32.0). A list (SGLang's rerank) names no model and passes as it is.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise EngineProtocolError from None
    if not isinstance(answer, dict):
        return Reply(body)
    if says_error(answer):
        raise refusal(error_status(answer), body)
    usage = answer.get("usage")
    used = read_usage(usage) if isinstance(usage, dict) else None
    finish = _finish_of(answer)
    if finish == _ABORTED and (used is None or not used.completion):
        raise EngineClosing
    return _making(Reply, (_renamed(body, answer, model), used, finish))


def _renamed(body: bytes, answer: dict[str, Any], model: str) -> bytes:
    if "model" not in answer:
        return body
    swapped = swap_model(body, answer, model)
    if swapped is not None:
        return swapped[1]
    answer["model"] = model
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError:
        raise EngineProtocolError from None


def _finish_of(answer: dict[str, Any]) -> str | None:
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason = choices[0].get("finish_reason")
    else:
        reason = answer.get("stop_reason") or answer.get("status")
    return reason if isinstance(reason, str) else None


_ABORTED = "abort"
_CONTEXT = re.compile(rb"maximum context length|max_model_len|context window|longer than the maximum", re.IGNORECASE)
_MODEL_GONE = re.compile(rb'"NotFoundError"|"model_not_found"')
_ANY = re.compile(rb"")
_CALLERS_FAULT = frozenset({400, 413, 422})
_REFUSED = "The model server does not accept this request."

_FAILED = range(500, 600)

# First match wins: (statuses, what the body shows, our code, message, whether another replica may do better).
# 503 is vLLM's word for busy, 500 for failing or draining: a draining one answers every new request so (captured).
_REFUSALS: tuple[tuple[frozenset[int] | range, re.Pattern[bytes], str, str | None, bool], ...] = (
    (frozenset({503}), _ANY, "no_ready_replica", None, True),
    (_FAILED, _ANY, "engine_error", None, True),
    (frozenset({404}), _MODEL_GONE, "no_ready_replica", None, True),
    (frozenset({404}), _ANY, "unsupported_endpoint", None, False),
    (_CALLERS_FAULT, _CONTEXT, "context_length_exceeded", None, False),
    (_CALLERS_FAULT, _ANY, "invalid_request", _REFUSED, False),
)
_TROUBLES: Mapping[Trouble, type[EngineBusy | EngineClosing | EngineDead]] = MappingProxyType(
    {Trouble.BUSY: EngineBusy, Trouble.CLOSING: EngineClosing, Trouble.DEAD: EngineDead}
)


def refusal(status: int, body: bytes = b"", trouble: Trouble | None = None) -> EngineFailure:
    """An engine's error answer as one of the gateway's, without a word of the engine's own.

    ``trouble`` is what its error event said of the engine, where there is no body. What is not in the table, 401 and
    403 at the engine's own door above all, is the gateway's fault: ``engine_error``.
    """
    if status == 429:
        return EngineBusy()
    if status in _FAILED and (said := trouble or trouble_in(body)) is not None:
        return _TROUBLES[said]()
    for statuses, shows, code, message, elsewhere in _REFUSALS:
        if status in statuses and shows.search(body):
            return EngineRefused(code, message, elsewhere=elsewhere, fault=status in _FAILED)
    return EngineRefused("engine_error")
