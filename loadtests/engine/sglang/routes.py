"""The routes of SGLang 0.5.23 that a gateway may call, as a table, with what answers them."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadtests.engine.acts import Look, Reply
from loadtests.engine.answers import Renderer, Stamp
from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.plan import Plan
from loadtests.engine.refusal import Refusal, RoutingRefusal
from loadtests.engine.routes import (
    DRAINING,
    PREFLIGHT,
    STALLED,
    STARTING,
    Desk,
    Generation,
    Handler,
    Outcome,
    Resolved,
    Route,
    refusing,
    wrong_method,
)
from loadtests.engine.sglang import plans
from loadtests.engine.sglang.answers import ChatRenderer, CompletionRenderer, MessagesRenderer
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import piece_of, pieces, token_id

_LOOK_EVERY, _LOOKS = 1.0, 20
"""Captured: /health makes a token and looks for it once in 1.00 s, and gives up after 20 s."""
_UP = Reply(200, content_type=None)
_DOWN = Reply(503, content_type=None)
_MODEL_BY_NAME = "/v1/models/"


def _stamp(desk: Desk, prefix: str = "") -> Stamp:
    return Stamp(prefix + desk.new_id() + desk.new_id(), int(desk.now()), desk.new_id)


def chat(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plans.plan_chat)
    return _made(plan, ChatRenderer(plan, _stamp(desk), desk.spec))


def completion(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plans.plan_completion)
    return _made(plan, CompletionRenderer(plan, _stamp(desk), desk.spec))


def messages(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plans.plan_messages)
    return _made(plan, MessagesRenderer(plan, _stamp(desk, "msg_"), desk.spec))


def _made(plan: Plan, renderer: Renderer) -> Generation:
    return Generation(plan, renderer)


def count_message_tokens(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _json({"input_tokens": plans.chat_prompt(desk.json(request), desk.spec).tokens})


def tokenize(desk: Desk, request: ReceivedRequest) -> Outcome:
    ids = [token_id(word) for word in pieces(str(desk.json(request).get("prompt", "")))]
    return _json({"tokens": ids, "count": len(ids), "max_model_len": desk.spec.max_model_len})


def detokenize(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _json({"text": "".join(piece_of(int(number)) for number in desk.json(request).get("tokens", []))})


def health(desk: Desk, _: ReceivedRequest) -> Outcome:
    """A real check: 503 at once while it starts or drains, else when the token has come, or has not for long."""
    if desk.condition() in (STARTING, DRAINING):
        return _DOWN
    return Look(_LOOK_EVERY, _LOOKS, lambda: desk.condition() != STALLED, _UP, _DOWN)


def ping(desk: Desk, _: ReceivedRequest) -> Outcome:
    """What is known without a look."""
    return _DOWN if desk.condition() in (STARTING, DRAINING) else _UP


def ready(_: Desk, __: ReceivedRequest) -> Outcome:
    return _UP


def models(desk: Desk, _: ReceivedRequest) -> Outcome:
    return _json({"object": "list", "data": [_model_card(name, desk) for name in desk.spec.models]})


def model_by_name(desk: Desk, request: ReceivedRequest) -> Outcome:
    name = request.path.removeprefix(_MODEL_BY_NAME)
    if name in desk.spec.models:
        return _json(_model_card(name, desk))
    error = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error", "param": "model"}
    return Reply(404, orjson.dumps({"error": {**error, "code": "model_not_found"}}))


def _model_card(name: str, desk: Desk) -> dict[str, object]:
    card: dict[str, object] = {"id": name, "object": "model", "created": int(desk.now()), "owned_by": "sglang"}
    return {**card, "root": name, "parent": None, "max_model_len": desk.spec.max_model_len}


def no_embeddings(_: Desk, __: ReceivedRequest) -> Outcome:
    raise Refusal(
        400,
        "This model does not appear to be an embedding model by default. Please add `--is-embedding` when launching "
        "the server or try another model.",
    )


def no_score(_: Desk, __: ReceivedRequest) -> Outcome:
    raise Refusal(400, "label_token_ids is required for generation (CausalLM) models.")


def _json(payload: Mapping[str, object]) -> Reply:
    return Reply(200, orjson.dumps(payload))


def _get(handle: Handler) -> dict[str, Route]:
    return {"GET": Route(handle)}


def _post(handle: Handler, *, anthropic: bool = False) -> dict[str, Route]:
    return {"POST": Route(handle, generation=True, anthropic=anthropic)}


ROUTES: Mapping[str, Mapping[str, Route]] = {
    "/health": _get(health),
    "/health_generate": _get(health),
    "/ping": _get(ping),
    "/ready": _get(ready),
    "/v1/models": _get(models),
    "/v1/chat/completions": _post(chat),
    "/v1/completions": _post(completion),
    "/invocations": _post(chat),
    "/v1/messages": _post(messages, anthropic=True),
    "/v1/messages/count_tokens": _post(count_message_tokens, anthropic=True),
    "/v1/tokenize": {"POST": Route(tokenize)},
    "/v1/detokenize": {"POST": Route(detokenize)},
    "/v1/embeddings": _post(no_embeddings),
    "/v1/rerank": _post(no_embeddings),
    "/v1/score": _post(no_score),
}
_ONE_MODEL = _get(model_by_name)


def resolve(method: str, path: str, spec: EngineSpec) -> Resolved:
    """The route of a request; one that refuses, as FastAPI words it, where there is none."""
    by_name = path.startswith(_MODEL_BY_NAME)
    routes = _ONE_MODEL if by_name else ROUTES.get(path)
    if routes is None:
        return Resolved(refusing(RoutingRefusal(404, "Not Found")), "none")
    route = routes.get(method)
    if route is None:
        return wrong_method(routes)
    return Resolved(route, f"{_MODEL_BY_NAME}{{model:path}}" if by_name else path)


def before_routing(request: ReceivedRequest, _: EngineSpec) -> Reply | None:
    """The CORS layer: open to every origin, with credentials."""
    if request.method != "OPTIONS" or not request.header(b"access-control-request-method"):
        return None
    headers = (
        *PREFLIGHT,
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-origin", request.header(b"origin") or b"*"),
    )
    return Reply(200, b"OK", b"text/plain; charset=utf-8", extra=headers, cors=False)
