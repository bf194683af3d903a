"""/v1/messages: Anthropic's interface, byte for byte as vLLM 0.32.0 writes it (captured); inside it is a chat."""

from __future__ import annotations

from typing import Any

import orjson

from loadtests.engine import validate
from loadtests.engine.answers import Json, Stamp
from loadtests.engine.plan import (
    Choice,
    Plan,
    ToolCall,
    chat_prompt,
    check_tool_choice,
    constrained_output,
    plan_choice,
)
from loadtests.engine.refusal import Refusal, anthropic_error_body
from loadtests.engine.spec import EngineSpec
from loadtests.engine.validate import Body

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}


def chat_body_of_messages(body: Body) -> Body:
    """The chat request that a messages request stands for."""
    chat = {**body, "tools": [_chat_tool(tool) for tool in body.get("tools") or ()]}
    chat["tool_choice"] = _chat_tool_choice(body.get("tool_choice") or {})
    if body.get("system") and isinstance(body.get("messages"), list):
        chat["messages"] = [{"role": "system", "content": body["system"]}, *body["messages"]]
    return chat


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _chat_tool_choice(choice: dict[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return {"any": "required", "none": "none"}.get(str(choice.get("type")), "auto")


def plan_messages(body: Body, spec: EngineSpec) -> Plan:
    """Judge a request and plan its answer; raises Refusal."""
    validate.check_fields(body, ("messages", "max_tokens"))
    model = validate.check_model(body, spec)
    chat = chat_body_of_messages(body)
    check_tool_choice(chat, spec)
    limit = validate.check_max_tokens(body["max_tokens"], "max_completion_tokens", spec)
    validate.check_sampling(body)
    prompt = chat_prompt(chat, spec)
    fixed = constrained_output(chat, prompt)
    free = {**chat, "stop": body.get("stop_sequences")}
    choice = fixed(0, limit) if fixed else plan_choice((0, 0), prompt, free, spec, limit=limit)
    return Plan(model=model, choices=(choice,), stream=bool(body.get("stream")), body=body)


class MessagesRenderer:
    """Named events; the end has no marker but `message_stop`."""

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        self.plan = plan
        self.stamp = stamp
        self.spec = spec
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self._begun = False

    def opening(self) -> list[bytes]:
        return []

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        events = [] if self._begun else self._beginning()
        self._begun = True
        return [*events, *map(_block_delta, self._deltas(self.plan.choices[choice], start, stop))]

    @staticmethod
    def _deltas(choice: Choice, start: int, stop: int) -> list[Json]:
        """Of a tool call the first token is its head and the last its end: neither shows a piece of its arguments."""
        if choice.tool is not None:
            shown = choice.tool.pieces[max(0, start - 1) : max(0, stop - 1)]
            return [{"type": "input_json_delta", "partial_json": piece} for piece in shown]
        text = "".join(choice.shown[start:stop])
        return [{"type": "text_delta", "text": text}] if text else []

    def closing(self) -> list[bytes]:
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self.plan.choices[0].stop_reason}
        usage = {"input_tokens": self.plan.prompt_tokens, "output_tokens": self.plan.output_tokens}
        return [
            _event({"type": "content_block_stop", "index": 0}),
            _event({"type": "message_delta", "delta": delta, "usage": usage}),
            _event({"type": "message_stop"}),
        ]

    def body(self) -> bytes:
        stop = self.plan.choices[0].stop_reason
        message: Json = {"id": self.stamp.id, "type": "message", "role": "assistant"}
        message |= {"content": [self._content(self.plan.choices[0])], "model": self.plan.model}
        message |= {"stop_reason": self._stop_reason()} | ({} if stop is None else {"stop_sequence": stop})
        message["usage"] = {"input_tokens": self.plan.prompt_tokens, "output_tokens": self.plan.output_tokens}
        return orjson.dumps(message)

    def failure(self, refusal: Refusal) -> list[bytes]:
        """vLLM cannot read its own error event here and reports an internal_error, then ends (read from its source)."""
        error = {"type": "internal_error", "message": refusal.message}
        return [_event({"type": "error", "error": error})]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return anthropic_error_body(refusal)

    def _content(self, choice: Choice) -> Json:
        if choice.tool is None:
            return {"type": "text", "text": choice.text}
        return {**self._tool_use(choice.tool), "input": orjson.loads(choice.tool.arguments)}

    def _tool_use(self, call: ToolCall) -> Json:
        return {"type": "tool_use", "id": f"chatcmpl-tool-{self.stamp.new_id()}", "name": call.name}

    def _stop_reason(self) -> str | None:
        choice = self.plan.choices[0]
        if choice.tool is not None:
            return "tool_use"
        return "stop_sequence" if choice.stop_reason is not None else _STOP_REASONS.get(choice.finish_reason)

    def _beginning(self) -> list[bytes]:
        message: Json = {"id": self.stamp.id, "type": "message", "role": "assistant", "content": []}
        message |= {"model": self.plan.model, "stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": self.plan.prompt_tokens, "output_tokens": 0}
        call = self.plan.choices[0].tool
        block: Json = {"type": "text", "text": ""} if call is None else {**self._tool_use(call), "input": {}}
        return [
            _event({"type": "message_start", "message": message}),
            _event({"type": "content_block_start", "content_block": block, "index": 0}),
        ]


def _block_delta(delta: Json) -> bytes:
    return _event({"type": "content_block_delta", "delta": delta, "index": 0})


def _event(payload: Json) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(payload["type"]).encode(), orjson.dumps(payload))
