"""From the bytes of a body to a request whose every rule has been checked, and from that to the bytes for an engine.

The engine never sees the client's bytes: what it gets is written anew from the members that were judged, with the
served model's name, the tenant's cache salt and the request for usage put in by the gateway.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gateway.errors import Refusal
from gateway.model import BodyKind, Endpoint, FormPart, InferenceRequest, Route
from gateway.policy.context import output_limit
from gateway.policy.endpoints import EndpointGuard
from gateway.policy.guards import Guards
from gateway.wire.json import JsonFault, JsonReason, dump, parse_object
from gateway.wire.multipart import FormFault, FormReason, parse_form, render_form

JSON_TYPE = b"application/json"

_FORM = BodyKind.MULTIPART  # a member of an enumeration takes ten times as long to read as a name
_making = tuple.__new__  # a named tuple's own constructor takes five times as long, with names for its fields

_JSON_TYPE = re.compile(rb'application/json(?:[ \t]*;[ \t]*charset=(?:utf-8|"utf-8"))?[ \t]*', re.IGNORECASE)
_SAFE_FILE_TYPE = re.compile(r"(?:audio|video)/[a-z0-9.+-]{1,64}\Z")

# Endpoints whose request has `cache_salt` in vLLM's schema. Anthropic's has none and ignores it, so that prefix
# cache isolation does not reach /v1/messages.
_SALTED = frozenset(
    {
        Endpoint.CHAT,
        Endpoint.COMPLETIONS,
        Endpoint.RESPONSES,
        Endpoint.EMBEDDINGS,
        Endpoint.RERANK,
        Endpoint.SCORE,
        Endpoint.CLASSIFY,
        Endpoint.POOLING,
    }
)
# Where a stream reports usage only if asked; the other dialects always do (captured, vLLM 0.32.0).
_USAGE_ON_REQUEST = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_JSON_MESSAGES: Mapping[JsonReason, str] = MappingProxyType(
    {
        JsonReason.BOM: "The body must be UTF-8 without a byte order mark.",
        JsonReason.NOT_UTF8: "The body must be UTF-8.",
        JsonReason.NOT_JSON: "The body must be valid JSON.",
        JsonReason.NOT_OBJECT: "The body must be a JSON object.",
        JsonReason.DUPLICATE_KEY: "The body must not name a member twice.",
        JsonReason.TOO_DEEP: "The body is nested too deeply.",
        JsonReason.TOO_MANY_CONTAINERS: "The body holds too many objects and lists.",
        JsonReason.NUL_IN_KEY: "The body must not have NUL in the name of a member.",
    }
)
_FORM_MESSAGES: Mapping[FormReason, str] = MappingProxyType(
    {
        FormReason.CONTENT_TYPE: "Content-Type must be multipart/form-data with a boundary.",
        FormReason.NOT_A_FORM: "The body must be a multipart form with the boundary of its Content-Type.",
        FormReason.NOT_CLOSED: "The form must end with its closing boundary.",
        FormReason.TOO_MANY_PARTS: "The form has too many parts.",
        FormReason.PART_HEADER: "A part of the form must have Content-Disposition and at most Content-Type.",
        FormReason.FIELD_TOO_LARGE: "A field of the form is too long.",
        FormReason.FIELD_NOT_TEXT: "A field of the form must be UTF-8 text.",
        FormReason.DUPLICATE_FIELD: "The form must not have a field twice.",
    }
)


def accept(route: Route, content_type: bytes, body: bytes, guards: Guards) -> InferenceRequest:
    """The request that ``body`` makes of ``route``, its payload without the members that policy drops.

    Raises ``Refusal`` and nothing else, never quoting the body.
    """
    if not body:
        raise Refusal("invalid_request", "The request has no body.")
    guard = guards.endpoints[route.endpoint]
    if route.body is _FORM:
        return _accept_form(route, content_type, body, guards, guard)
    if content_type != JSON_TYPE and not _JSON_TYPE.fullmatch(content_type):
        raise Refusal("invalid_request", "Content-Type must be application/json.")
    _bound(body, guards.json_bytes)
    try:
        payload = parse_object(body, max_depth=guards.depth)
    except JsonFault as fault:
        raise Refusal("invalid_request", _JSON_MESSAGES[fault.reason]) from None
    guard.judge(payload)
    limit = output_limit(route.endpoint, payload)
    alias, stream, sent = payload["model"], payload.get("stream") is True, _sent(payload, guard)
    max_tokens = None if limit is None else limit[1]
    return _making(
        InferenceRequest, (route, alias, sent, (), stream, _wants_usage(payload), max_tokens, _choices(payload))
    )


def render(request: InferenceRequest, *, model: str, cache_salt: str | None) -> tuple[bytes, bytes]:
    """Content type and body for an engine that serves ``model``; ``request`` stays as it is for another attempt.

    ``cache_salt`` (``None``: shared cache) goes only to endpoints that have it. A stream is always asked for its usage
    where the dialect reports it on request; who hides it from a client that did not ask is the one that forwards.
    """
    endpoint = request.route.endpoint
    if request.route.body is _FORM:
        return _render_form(request.parts, model)
    payload = request.payload.copy()
    payload["model"] = model
    if cache_salt is not None and endpoint in _SALTED:
        payload["cache_salt"] = cache_salt
    if request.stream and endpoint in _USAGE_ON_REQUEST:
        payload["stream_options"] = _stream_options(request)
    return JSON_TYPE, dump(payload)


def _stream_options(request: InferenceRequest) -> dict[str, bool]:
    """Usage at the end; on every chunk only for a client that asked for both (vLLM takes one only with the other)."""
    asked = request.payload.get("stream_options") or {}
    if request.include_usage and asked.get("continuous_usage_stats") is True:
        return {"include_usage": True, "continuous_usage_stats": True}
    return {"include_usage": True}


def _accept_form(
    route: Route, content_type: bytes, body: bytes, guards: Guards, guard: EndpointGuard
) -> InferenceRequest:
    _bound(body, guards.form_bytes)
    try:
        parts = parse_form(body, content_type, max_parts=guards.form_parts, max_field_bytes=guards.field_bytes)
    except FormFault as fault:
        raise Refusal("invalid_request", _FORM_MESSAGES[fault.reason]) from None
    values = guard.judge_form(parts)
    kept = tuple(_plain(part) for part in parts if part.name not in guard.dropped)
    return InferenceRequest(route, values["model"], {}, kept, stream=values.get("stream") is True)


def _render_form(parts: tuple[FormPart, ...], model: str) -> tuple[bytes, bytes]:
    """A form whose boundary is a digest of all its data, which no part can be made to hold."""
    sent = [replace(part, data=model.encode()) if part.name == "model" else part for part in parts]
    digest = hashlib.blake2b(digest_size=16)
    for part in sent:
        digest.update(part.data)
    boundary = digest.hexdigest().encode()
    return b"multipart/form-data; boundary=" + boundary, render_form(sent, boundary)


def _plain(part: FormPart) -> FormPart:
    """``part`` with a content type that says audio or video, or nothing in particular; none for a text field."""
    if part.filename is None:
        return replace(part, content_type=None)
    known = part.content_type is not None and _SAFE_FILE_TYPE.match(part.content_type)
    return part if known else replace(part, content_type="application/octet-stream")


def _bound(body: bytes, limit: int) -> None:
    if len(body) > limit:
        raise Refusal("body_too_large", f"The request body is larger than {limit} bytes.")


def _sent(payload: dict[str, Any], guard: EndpointGuard) -> dict[str, Any]:
    """What of a judged payload goes on: without what policy drops, with what it always sends."""
    if not guard.dropped.isdisjoint(payload):
        payload = {name: value for name, value in payload.items() if name not in guard.dropped}
    return {**payload, **guard.always} if guard.always else payload


def _wants_usage(payload: Mapping[str, Any]) -> bool:
    options = payload.get("stream_options")
    return options is not None and options.get("include_usage") is True


def _choices(payload: Mapping[str, Any]) -> int:
    """Answers to expect: ``n`` for each prompt of a list."""
    prompt = payload.get("prompt")
    return (payload.get("n") or 1) * (len(prompt) if type(prompt) is list else 1)
