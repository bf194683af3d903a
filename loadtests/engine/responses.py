"""/v1/responses: OpenAI's newer interface, byte for byte as vLLM 0.32.0 writes it (captured)."""

from __future__ import annotations

from typing import Any

import orjson

from loadtests.engine import validate
from loadtests.engine.answers import Json, Stamp
from loadtests.engine.plan import Plan, chat_turns, make_prompt, plan_choice
from loadtests.engine.refusal import Refusal, error_body
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import render_chat
from loadtests.engine.validate import Body

_STATUSES = {"length": "incomplete", "abort": "cancelled"}


def plan_responses(body: Body, spec: EngineSpec) -> Plan:
    """Judge a request and plan its answer; raises Refusal."""
    validate.check_fields(body, ("input",))
    model = validate.check_model(body, spec)
    limit = validate.check_max_tokens(body.get("max_output_tokens"), "max_output_tokens", spec)
    validate.check_sampling(body)
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    turns = chat_turns(items, spec)
    if body.get("instructions"):
        turns.insert(0, ("system", str(body["instructions"])))
    prompt = make_prompt(render_chat(turns), body, spec)
    choice = plan_choice((0, 0), prompt, body, spec, limit=limit)
    return Plan(model=model, choices=(choice,), stream=bool(body.get("stream")), body=body)


class ResponsesRenderer:
    """The events carry a running number and repeat the whole response at both ends."""

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        self.plan = plan
        self.stamp = stamp
        self.spec = spec
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self._item = f"msg_{stamp.new_id()}"
        self._number = 0
        self._begun = False

    def opening(self) -> list[bytes]:
        unfinished = self._response("in_progress", [], None)
        return [
            self._event({"response": unfinished}, "response.created"),
            self._event({"response": unfinished}, "response.in_progress"),
        ]

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        events = [] if self._begun else self._item_begins()
        self._begun = True
        delta = "".join(self.plan.choices[choice].shown[start:stop])
        payload = {"content_index": 0, "delta": delta, "item_id": self._item, "logprobs": [], "output_index": 0}
        return [*events, self._event(payload, "response.output_text.delta")]

    def closing(self) -> list[bytes]:
        part, item = self._part(), self._finished_item()
        place: Json = {"content_index": 0, "item_id": self._item}
        return [
            self._event(
                {**place, "logprobs": [], "output_index": 0}, "response.output_text.done", {"text": part["text"]}
            ),
            self._event({**place, "output_index": 0, "part": part}, "response.content_part.done"),
            self._event({"item": item, "output_index": 0}, "response.output_item.done"),
            self._event({"response": self._finished()}, "response.completed"),
        ]

    def body(self) -> bytes:
        return orjson.dumps(self._finished())

    def failure(self, refusal: Refusal) -> list[bytes]:
        """A `response.failed` event (from OpenAI's published interface; no failure was captured)."""
        failed = {**self._response("failed", [], None), "error": {"code": "server_error", "message": refusal.message}}
        return [self._event({"response": failed}, "response.failed")]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)

    def _event(self, payload: Json, kind: str, tail: Json | None = None) -> bytes:
        numbered = {**payload, "sequence_number": self._number, **(tail or {}), "type": kind}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(numbered))

    def _item_begins(self) -> list[bytes]:
        item: Json = {"id": self._item, "content": [], "role": "assistant", "status": "in_progress"}
        item |= {"type": "message", "phase": None}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        place: Json = {"content_index": 0, "item_id": self._item, "output_index": 0, "part": part}
        return [
            self._event({"item": item, "output_index": 0}, "response.output_item.added"),
            self._event(place, "response.content_part.added"),
        ]

    def _part(self) -> Json:
        return {"annotations": [], "text": self.plan.choices[0].text, "type": "output_text", "logprobs": None}

    def _finished_item(self) -> Json:
        item: Json = {"id": self._item, "content": [self._part()], "role": "assistant", "status": "completed"}
        return {**item, "type": "message", "phase": None}

    def _finished(self) -> Json:
        status = _STATUSES.get(self.plan.choices[0].finish_reason, "completed")
        return self._response(status, [self._finished_item()], self._usage())

    def _usage(self) -> Json:
        prompt, output = self.plan.prompt_tokens, self.plan.output_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens if self.spec.prompt_tokens_details else 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": output,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + output,
        }

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        body: dict[str, Any] = self.plan.body or {}
        tools = body.get("tools") or []
        return {
            "id": self.stamp.id,
            "created_at": self.stamp.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": self.plan.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": float(body.get("temperature", 1.0)),
            "tool_choice": body.get("tool_choice", "auto" if tools else "none"),
            "tools": tools,
            "top_p": float(body.get("top_p", 1.0)),
            "background": False,
            "max_output_tokens": body.get("max_output_tokens", self.spec.max_model_len - self.plan.prompt_tokens),
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": body.get("service_tier", "auto"),
            "status": status,
            "text": body.get("text"),
            "top_logprobs": body.get("top_logprobs"),
            "truncation": body.get("truncation", "disabled"),
            "usage": usage,
            "user": body.get("user"),
            "presence_penalty": float(body.get("presence_penalty", 0.0)),
            "frequency_penalty": float(body.get("frequency_penalty", 0.0)),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }
