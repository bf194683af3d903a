"""Every route that a gateway may call, as a table, with what answers it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtests.engine import pooling, speech, validate
from loadtests.engine.acts import Look, Reply
from loadtests.engine.answers import ChatRenderer, CompletionRenderer, Renderer, Stamp
from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.messages import MessagesRenderer, chat_body_of_messages, plan_messages
from loadtests.engine.plan import Plan, chat_prompt, plan_batch_chat, plan_chat, plan_completion
from loadtests.engine.refusal import ErrorForms, Refusal, RoutingRefusal
from loadtests.engine.responses import ResponsesRenderer, plan_responses
from loadtests.engine.spec import CLASSIFY, EMBED, GENERATE, SCORE, TRANSCRIBE, EngineSpec
from loadtests.engine.text import piece_of, pieces, shown_token, token_id

STARTING, SERVING, DRAINING, STALLED = "starting", "serving", "draining", "stalled"
"""The conditions of an engine, as a health check may see them."""
_CACHED_PLANS = 512
_CACHED_BODY = 65536


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that the scheduler has to run before it can be answered."""

    plan: Plan
    renderer: Renderer


Outcome = Reply | Look | Generation
Planner = Callable[[validate.Body, EngineSpec], Plan]


@dataclass(slots=True)
class Desk:
    """What a handler may use: the spec, the clock (Unix seconds), fresh ids, and plans made before.

    Benchmarks send the same bodies again and again; the plan of a body depends on nothing but the body.
    """

    spec: EngineSpec
    now: Callable[[], float]
    new_id: Callable[[], str]
    server_load: Callable[[], int]
    json: Callable[[ReceivedRequest], validate.Body]
    """The JSON object of a request; raises what its persona raises for one that is none."""
    condition: Callable[[], str]
    _plans: dict[tuple[str, bytes], Plan] = field(default_factory=dict)

    def plan(self, request: ReceivedRequest, make: Planner) -> Plan:
        """The plan of a request; raises Refusal or RoutingRefusal."""
        key = (request.path, request.body)
        known = self._plans.get(key)
        if known is not None and request.header(b"content-type") == b"application/json":
            return known
        plan = make(self.json(request), self.spec)
        if len(request.body) <= _CACHED_BODY:
            if len(self._plans) >= _CACHED_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def stamp(self, request: ReceivedRequest, prefix: str, request_id: str | None = None) -> Stamp:
        """Ids end with the client's X-Request-Id, or the body's request_id, or 16 hex digits (captured)."""
        given = request.header(b"x-request-id")
        ending = given.decode("latin-1") if given else request_id or self.new_id()
        return Stamp(prefix + ending, int(self.now()), self.new_id)


Handler = Callable[[Desk, ReceivedRequest], Outcome]


@dataclass(frozen=True, slots=True)
class Route:
    """`task` is what the model must be able to do for the route to exist (None: always there)."""

    handle: Handler
    task: str | None = None
    generation: bool = False
    """Whether faults of inference apply."""
    anthropic: bool = False
    """Errors in Anthropic's form."""


def chat(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plan_chat)
    return Generation(plan, ChatRenderer(plan, desk.stamp(request, "chatcmpl-", plan.request_id), desk.spec))


def batch_chat(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plan_batch_chat)
    return Generation(plan, ChatRenderer(plan, desk.stamp(request, "chatcmpl-", plan.request_id), desk.spec))


def completion(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plan_completion)
    return Generation(plan, CompletionRenderer(plan, desk.stamp(request, "cmpl-", plan.request_id), desk.spec))


def invocations(desk: Desk, request: ReceivedRequest) -> Outcome:
    """SageMaker's one route for everything: full inference, whatever the path rules of a proxy say."""
    return chat(desk, request) if "messages" in desk.json(request) else completion(desk, request)


def responses(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plan_responses)
    stamp = Stamp(f"resp_{desk.new_id()}", int(desk.now()), desk.new_id)
    return Generation(plan, ResponsesRenderer(plan, stamp, desk.spec))


def messages(desk: Desk, request: ReceivedRequest) -> Outcome:
    plan = desk.plan(request, plan_messages)
    return Generation(plan, MessagesRenderer(plan, desk.stamp(request, "chatcmpl-"), desk.spec))


def count_message_tokens(desk: Desk, request: ReceivedRequest) -> Outcome:
    body = chat_body_of_messages(desk.json(request))
    validate.check_fields(body, ("messages",))
    validate.check_model(body, desk.spec)
    count = chat_prompt(body, desk.spec).tokens
    return _json({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def tokenize(desk: Desk, request: ReceivedRequest) -> Outcome:
    body = desk.json(request)
    validate.check_model(body, desk.spec)
    text = chat_prompt(body, desk.spec).text if "messages" in body else str(body.get("prompt", ""))
    words = pieces(text)
    shown = [shown_token(word) for word in words] if body.get("return_token_strs") else None
    ids = [token_id(word) for word in words]
    return _json({"count": len(ids), "max_model_len": desk.spec.max_model_len, "tokens": ids, "token_strs": shown})


def detokenize(desk: Desk, request: ReceivedRequest) -> Outcome:
    body = desk.json(request)
    validate.check_model(body, desk.spec)
    return _json({"prompt": "".join(piece_of(int(number)) for number in body.get("tokens", []))})


def models(desk: Desk, _: ReceivedRequest) -> Outcome:
    created = int(desk.now())
    return _json({"object": "list", "data": [_model_card(name, created, desk) for name in desk.spec.models]})


def _model_card(name: str, created: int, desk: Desk) -> dict[str, object]:
    permission = {
        "id": f"modelperm-{desk.new_id()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": "vllm"}
    card |= {"root": desk.spec.root, "parent": None, "max_model_len": desk.spec.max_model_len}
    return {**card, "permission": [permission]}


def _json(payload: Mapping[str, Any]) -> Reply:
    return Reply(200, orjson.dumps(payload))


def health(_: Desk, __: ReceivedRequest) -> Outcome:
    return Reply(200, content_type=None)


def version(desk: Desk, _: ReceivedRequest) -> Outcome:
    return _json({"version": desk.spec.version})


def load(desk: Desk, _: ReceivedRequest) -> Outcome:
    return _json({"server_load": desk.server_load() if desk.spec.server_load_tracking else 0})


def no_events(_: Desk, __: ReceivedRequest) -> Outcome:
    return _json({})


def scale_out_disabled(_: Desk, __: ReceivedRequest) -> Outcome:
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise Refusal(403, message, "PermissionDeniedError")


def unknown_response(_: Desk, request: ReceivedRequest) -> Outcome:
    name = request.path.rsplit("/", 1)[1]
    raise Refusal(404, f"Response with id '{name}' not found.", "invalid_request_error", "response_id")


def embeddings(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _pooled(desk, request, pooling.embed)


def pooled(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _pooled(desk, request, pooling.pool)


def rerank(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _pooled(desk, request, pooling.rerank)


def score(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _pooled(desk, request, pooling.score)


def classify(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _pooled(desk, request, pooling.classify)


def _pooled(desk: Desk, request: ReceivedRequest, answer: pooling.Answer) -> Outcome:
    pooled_plan = answer(desk.json(request), desk.spec, lambda prefix: desk.stamp(request, prefix))
    return Generation(pooled_plan.plan, pooled_plan)


def transcribe(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _speech(desk, request, "transcription")


def translate(desk: Desk, request: ReceivedRequest) -> Outcome:
    return _speech(desk, request, "translation")


def _speech(desk: Desk, request: ReceivedRequest, kind: str) -> Outcome:
    form = speech.parse_form(request.header(b"content-type") or b"", request.body)
    heard = speech.SpeechRenderer(form, kind, desk.stamp(request, "trsc-"), desk.spec)
    return Generation(heard.plan, heard)


def _get(handle: Handler) -> dict[str, Route]:
    return {"GET": Route(handle)}


def _post(handle: Handler, task: str | None = GENERATE, *, anthropic: bool = False) -> dict[str, Route]:
    return {"POST": Route(handle, task, generation=True, anthropic=anthropic)}


ROUTES: Mapping[str, Mapping[str, Route]] = {
    "/health": _get(health),
    "/ping": {"GET": Route(health), "POST": Route(health)},
    "/version": _get(version),
    "/load": _get(load),
    "/kv_event_sources": _get(no_events),
    "/v1/models": _get(models),
    "/v1/chat/completions": _post(chat),
    "/v1/chat/completions/batch": _post(batch_chat),
    "/v1/completions": _post(completion),
    "/invocations": _post(invocations),
    "/v1/responses": _post(responses),
    "/v1/messages": _post(messages, anthropic=True),
    "/v1/messages/count_tokens": _post(count_message_tokens, anthropic=True),
    "/tokenize": {"POST": Route(tokenize)},
    "/detokenize": {"POST": Route(detokenize)},
    "/v1/chat/completions/render": {"POST": Route(scale_out_disabled)},
    "/v1/completions/render": {"POST": Route(scale_out_disabled)},
    "/inference/v1/generate": {"POST": Route(scale_out_disabled)},
    "/v1/embeddings": _post(embeddings, EMBED),
    "/pooling": _post(pooled, EMBED),
    "/v1/rerank": _post(rerank, SCORE),
    "/v2/rerank": _post(rerank, SCORE),
    "/rerank": _post(rerank, SCORE),
    "/v1/score": _post(score, SCORE),
    "/score": _post(score, SCORE),
    "/v1/classify": _post(classify, CLASSIFY),
    "/classify": _post(classify, CLASSIFY),
    "/v1/audio/transcriptions": _post(transcribe, TRANSCRIBE),
    "/v1/audio/translations": _post(translate, TRANSCRIBE),
}
_RESPONSE_BY_ID = _get(unknown_response)
_GUARDED = ("/v1", "/v2", "/inference")
"""The only paths that --api-key guards (captured)."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a request goes. `handler` is the name of the route in the HTTP metrics."""

    route: Route
    handler: str


def refusing(refusal: RoutingRefusal) -> Route:
    def handle(_: Desk, __: ReceivedRequest) -> Outcome:
        raise refusal

    return Route(handle)


def wrong_method(routes: Mapping[str, Route]) -> Resolved:
    """Of a path that has no such method."""
    allow = (b"allow", next(iter(routes)).encode())
    return Resolved(refusing(RoutingRefusal(405, "Method Not Allowed", (allow,))), "none")


def _redirect(desk: Desk, request: ReceivedRequest) -> Outcome:
    """A trailing slash leads to the engine's own address, not the one the client used (captured)."""
    host = (request.header(b"host") or b"").decode("latin-1")
    location = f"http://{host}{request.path.rstrip('/')}".encode()
    return Reply(307, content_type=None, late=((b"location", location),))


def _offered(path: str, spec: EngineSpec) -> Mapping[str, Route] | None:
    routes = ROUTES.get(path)
    if routes is None:
        return _RESPONSE_BY_ID if path.startswith("/v1/responses/") and path.count("/") == 3 else None
    if any(route.task is not None and route.task not in spec.tasks for route in routes.values()):
        return None
    return routes


def resolve(method: str, path: str, spec: EngineSpec) -> Resolved:
    """The route of a request; one that refuses, as FastAPI words it, where there is none."""
    routes = _offered(path, spec)
    if routes is None:
        if path.endswith("/") and _offered(path.rstrip("/"), spec) is not None:
            return Resolved(Route(_redirect), path)
        return Resolved(refusing(RoutingRefusal(404, "Not Found")), "none")
    route = routes.get(method)
    if route is None:
        return wrong_method(routes)
    return Resolved(route, path)


PREFLIGHT = (
    (
        b"vary",
        b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "
        b"Access-Control-Request-Private-Network",
    ),
    (b"access-control-allow-methods", b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"),
    (b"access-control-max-age", b"600"),
)


def before_routing(request: ReceivedRequest, spec: EngineSpec) -> Reply | None:
    """What vLLM's middlewares answer before any route is looked at: CORS preflights and wrong keys."""
    if request.method == "OPTIONS" and request.header(b"access-control-request-method"):
        body = b"Disallowed CORS origin"
        return Reply(400, body, b"text/plain; charset=utf-8", extra=PREFLIGHT, cors=False)
    if spec.api_key is not None and request.path.startswith(_GUARDED):
        given = hashlib.sha256(request.header(b"authorization") or b"").digest()
        if given != hashlib.sha256(b"Bearer " + spec.api_key.encode()).digest():
            return Reply(401, b'{"error":"Unauthorized"}', cors=False)
    return None


def refusal_reply(refusal: Refusal, forms: ErrorForms, *, anthropic: bool = False, cors: bool = True) -> Reply:
    body = forms.anthropic(refusal) if anthropic else forms.body(refusal)
    return Reply(refusal.status, body, cors=cors)


def routing_reply(refusal: RoutingRefusal) -> Reply:
    return Reply(refusal.status, orjson.dumps({"detail": refusal.detail}), extra=refusal.headers)
