"""SGLang's judgement of a request body, and the plan of its answer: it accepts much that vLLM refuses (captured)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from loadtests.engine import validate
from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.plan import (
    Choice,
    Plan,
    Prompt,
    chat_turns,
    ids_prompt,
    plan_choice,
    plan_of,
    schema_of,
    tokenised,
)
from loadtests.engine.refusal import HandlerCrashed, Refusal
from loadtests.engine.sglang.errors import Fault, media_type_refusal, schema_refusal
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import pieces, render_chat
from loadtests.engine.validate import Body

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
NO_MODEL = "default"
"""What an answer names when the request named no model."""
_ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")
_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_COUNTS = ("max_tokens", "max_completion_tokens", "n", "seed", "priority", "top_logprobs")


def decode_body(request: ReceivedRequest) -> Body:
    """The JSON object of a request. Raises Refusal, or HandlerCrashed when it is JSON but no object."""
    if (request.header(b"content-type") or b"").split(b";")[0].strip().lower() != b"application/json":
        raise media_type_refusal()
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        words = error.msg if request.body else "input data is empty"
        fault = _fault("json_invalid", ("body", error.pos), "JSON decode error", {})
        raise schema_refusal([{**fault, "ctx": {"error": words}}], request.path) from None
    if not isinstance(body, dict):
        raise HandlerCrashed
    return body


def _fault(kind: str, place: tuple[object, ...], message: str, value: object) -> Fault:
    return {"type": kind, "loc": place, "msg": message, "input": value}


def _check_fields(body: Body, required: tuple[str, ...], path: str) -> None:
    faults = list(_field_faults(body, required))
    if faults:
        raise schema_refusal(faults, path)


def _field_faults(body: Body, required: tuple[str, ...]) -> Iterator[Fault]:
    shown = {**body, "tool_choice": body.get("tool_choice", "auto" if body.get("tools") else "none")}
    for name in required:
        if name not in body:
            yield _fault("missing", ("body", name), "Field required", shown)
    if "messages" in body and not isinstance(body["messages"], list):
        yield _fault("list_type", ("body", "messages"), "Input should be a valid list", body["messages"])
    for name in _COUNTS:
        if name in body and not _is_count(body[name]):
            words = "Input should be a valid integer, unable to parse string as an integer"
            yield _fault("int_parsing", ("body", name), words, body[name])


def _is_count(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().lstrip("+-").isdecimal()
    return value is None or isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _role_faults(messages: list[Any]) -> Iterator[Fault]:
    """A role that is not known fails twice: as one of the general roles, and as a user's."""
    for number, message in enumerate(messages):
        role = message.get("role", "user") if isinstance(message, dict) else "user"
        if role == "user" or str(role).lower() in _ROLES:
            continue
        known = ", ".join(f"'{name}'" for name in _ROLES)
        words = f"'role' must be one of {known} (case-insensitive)."
        general = "function-after[validate_thinking_parts_role(), ChatCompletionMessageGenericParam]"
        place = ("body", "messages", number)
        fault = _fault("value_error", (*place, general, "role"), f"Value error, {words}", role)
        yield {**fault, "ctx": {"error": ValueError(words)}}
        users = "function-after[validate_thinking_parts_role(), ChatCompletionMessageUserParam]"
        fault = _fault("literal_error", (*place, users, "role"), "Input should be 'user'", role)
        yield {**fault, "ctx": {"expected": "'user'"}}


def _check_media(messages: list[Any]) -> None:
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    for part in parts:
        kind = str(part.get("type", "text"))
        if kind not in ("text", "input_text"):
            message = f"Model only supports text input; received unsupported content type '{kind}'."
            raise Refusal(400, message)


def _check_sampling(body: Body) -> None:
    temperature = body.get("temperature")
    if temperature is not None and float(temperature) < 0:
        raise Refusal(400, f"temperature must be a non-negative finite number, got {float(temperature)}.")


def _limit(body: Body, spec: EngineSpec) -> int | None:
    """The wanted number of output tokens; 0 is one."""
    given = body.get("max_completion_tokens")
    wanted = given if given is not None else body.get("max_tokens")
    if wanted is None:
        return None
    if int(wanted) > spec.max_model_len:
        most = f"This model supports at most {spec.max_model_len} completion tokens."
        raise Refusal(400, f"max_completion_tokens is too large: {int(wanted)}.{most}")
    return max(0, int(wanted))


def _fitting(prompt: Prompt, spec: EngineSpec) -> Prompt:
    if prompt.tokens >= spec.max_model_len:
        length = f"the model's context length ({spec.max_model_len} tokens)"
        raise Refusal(400, f"The input ({prompt.tokens} tokens) is longer than {length}.")
    return prompt


def _model(body: Body) -> str:
    """Any name is served, and echoed: SGLang does not look at it."""
    return str(body.get("model") or NO_MODEL)


def chat_prompt(body: Body, spec: EngineSpec) -> Prompt:
    """The prompt of a conversation; raises Refusal."""
    messages = body["messages"]
    if not messages:
        raise Refusal(400, "Messages cannot be empty.")
    _check_media(messages)
    return _text_prompt(render_chat(chat_turns(messages, spec)), body, spec)


def _text_prompt(text: str, body: Body, spec: EngineSpec) -> Prompt:
    return _fitting(tokenised(text, pieces(text), body, spec), spec)


def plan_chat(body: Body, spec: EngineSpec) -> Plan:
    """Judge a chat request and plan its answer; raises Refusal. Tools only show in the text, as without a parser."""
    _check_fields(body, ("messages",), CHAT)
    roles = list(_role_faults(body["messages"]))
    if roles:
        raise schema_refusal(roles, CHAT)
    limit = _limit(body, spec)
    _check_sampling(body)
    prompt = chat_prompt(body, spec)
    kind = schema_of(body).get("type")
    if isinstance(kind, str) and kind not in _JSON_TYPES:
        # The real words carry the time of day in the brackets.
        cause = f'[00:00:00] /project/cpp/json_schema_converter.cc:4175: Unsupported type "{kind}"\n'
        raise Refusal(400, f"Failed to compile json grammar: {cause}")
    top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    return _plan(body, spec, [prompt], limit, top)


def plan_completion(body: Body, spec: EngineSpec) -> Plan:
    """Judge a legacy completion request and plan its answer; raises Refusal (for a strange prompt in vLLM's words)."""
    _check_fields(body, (), COMPLETIONS)
    limit = _limit({"max_tokens": 16, **body}, spec)
    _check_sampling(body)
    prompts = [
        _text_prompt(prompt, body, spec) if isinstance(prompt, str) else _fitting(ids_prompt(prompt, body, spec), spec)
        for prompt in validate.check_prompt(body.get("prompt"))
    ]
    logprobs = body.get("logprobs")
    return _plan(body, spec, prompts, limit, None if logprobs in (None, False) else int(logprobs))


def plan_messages(body: Body, spec: EngineSpec) -> Plan:
    """Judge a request in Anthropic's form; raises Refusal."""
    _check_fields(body, ("messages", "max_tokens"), MESSAGES)
    limit = _limit({"max_tokens": body["max_tokens"]}, spec)
    _check_sampling(body)
    turns = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    prompt = chat_prompt({**body, "messages": [*turns, *body["messages"]]}, spec)
    return _plan({**body, "stop": body.get("stop_sequences")}, spec, [prompt], limit, None)


def _plan(body: Body, spec: EngineSpec, prompts: list[Prompt], limit: int | None, top: int | None) -> Plan:
    copies = int(body.get("n") or 1)
    choices: list[Choice] = [
        plan_choice((number * copies + copy, copy), prompt, body, spec, limit=limit, top=top)
        for number, prompt in enumerate(prompts)
        for copy in range(copies)
    ]
    ranked = {**body, "priority": -int(body.get("priority") or 0), "request_id": None}
    plan = plan_of(ranked, _model(body), tuple(choices), echo=bool(body.get("echo")))
    options = body.get("stream_options") or {}
    return replace(plan, continuous_usage=bool(options.get("continuous_usage_stats")))
