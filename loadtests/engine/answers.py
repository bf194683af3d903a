"""The bodies and stream events of chat and legacy completions, byte for byte as vLLM 0.32.0 writes them (captured).

A renderer knows one request; the scheduler tells it which tokens exist. Key order, nulls and spaces are vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from loadtests.engine.plan import Choice, Plan
from loadtests.engine.refusal import Refusal, error_body, error_event
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import TokenLogprob

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What makes two answers to the same request differ: the id with its prefix, the time (Unix seconds), fresh ids."""

    id: str
    created: int
    new_id: Callable[[], str]


class Renderer(Protocol):
    """Turns tokens into bytes. `cached_tokens` and `created_cache_tokens` are set by the caller before the end.

    A caller whose sequences end early puts a shorter plan in the place of `plan`.
    """

    plan: Plan
    cached_tokens: int
    created_cache_tokens: int

    def opening(self) -> list[bytes]:
        """Events that come before any token."""

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        """Events for tokens `start` to `stop` of a choice."""

    def closing(self) -> list[bytes]:
        """Events after the last token of the last choice."""

    def body(self) -> bytes:
        """The whole answer of a request that did not ask for a stream."""

    def failure(self, refusal: Refusal) -> list[bytes]:
        """Events that end a stream which failed after its headers were sent."""

    def refusal_body(self, refusal: Refusal) -> bytes:
        """The body of an answer that failed before its headers were sent."""


def sse(payload: Json) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _logprob(entry: TokenLogprob) -> Json:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.token.encode())}


def chat_logprobs(entries: tuple[TokenLogprob, ...] | None) -> Json | None:
    """The `logprobs` of a chat choice."""
    if entries is None:
        return None
    content = [
        {**_logprob(entry), "top_logprobs": [_logprob(TokenLogprob(*other)) for other in entry.others]}
        for entry in entries
    ]
    return {"content": content}


def completion_logprobs(entries: tuple[TokenLogprob, ...] | None, offset: int = 0) -> Json | None:
    """The `logprobs` of a legacy completion choice (as vLLM 0.32.0 answers: in a stream, offsets go on)."""
    if entries is None:
        return None
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [entry.logprob for entry in entries],
        "tokens": [entry.token for entry in entries],
        "top_logprobs": [dict(entry.others) or {entry.token: entry.logprob} for entry in entries],
    }


class _Base:
    """What chat and completions share: usage, the last chunk, errors."""

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        self.plan = plan
        self.stamp = stamp
        self.spec = spec
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self._done = [0] * len(plan.choices)
        self._open_choices = len(plan.choices)

    def opening(self) -> list[bytes]:
        return []

    def failure(self, refusal: Refusal) -> list[bytes]:
        return [error_event(refusal), DONE]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)

    def usage(self) -> Json:
        """The usage of a whole answer."""
        prompt, output = self.plan.prompt_tokens, self.plan.output_tokens
        details: Json | None = None
        if self.spec.prompt_tokens_details:
            details = {**self._cache_details(), "multimodal_tokens": None}
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": details,
            "completion_tokens_details": None,
        }

    def _cache_details(self) -> Json:
        return {"cached_tokens": self.cached_tokens, "created_cache_tokens": self.created_cache_tokens}

    def running_usage(self, choice: Choice) -> Json:
        """`continuous_usage_stats`: the usage so far, on each chunk."""
        prompt, output = choice.prompt.tokens, self._done[choice.index]
        usage: Json = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        return {**usage, "completion_tokens_details": None}

    def final_usage(self) -> Json:
        prompt, output = self.plan.prompt_tokens, self.plan.output_tokens
        usage: Json = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        return {**usage, "prompt_tokens_details": self._cache_details()} if self.spec.prompt_tokens_details else usage

    def envelope(self, kind: str) -> Json:
        return {"id": self.stamp.id, "object": kind, "created": self.stamp.created, "model": self.plan.model}

    def ending(self, kind: str) -> list[bytes]:
        """The usage chunk, when asked for, and the end marker."""
        if not self.plan.include_usage:
            return [DONE]
        chunk = {**self.envelope(kind), "choices": [], "usage": self.final_usage()}
        return [sse({**chunk, "system_fingerprint": self.spec.fingerprint}), DONE]

    def chunk(self, kind: str, choice: Choice, payload: Json, *, last: bool, tail: Json | None = None) -> bytes:
        """One chunk. The fingerprint comes on the very last one before the end marker, whichever that is."""
        chunk = {**self.envelope(kind), "choices": [payload]}
        if self.plan.continuous_usage:
            chunk["usage"] = self.running_usage(choice)
        if tail:
            chunk.update(tail)
        if last:
            self._open_choices -= 1
            if not self._open_choices and not self.plan.include_usage:
                chunk["system_fingerprint"] = self.spec.fingerprint
        return sse(chunk)


class ChatRenderer(_Base):
    """/v1/chat/completions."""

    _CHUNK = "chat.completion.chunk"

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        super().__init__(plan, stamp, spec)
        self._greeted = False
        self._plain: dict[int, tuple[bytes, bytes]] = {}

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        events = [] if self._greeted else [self._greeting(each) for each in self.plan.choices]
        self._greeted = True
        chosen = self.plan.choices[choice]
        last = stop == chosen.tokens
        self._done[choice] = stop
        if chosen.tool is not None:
            return events + self._tool_events(chosen, start, stop, last)
        text = "".join(chosen.shown[start:stop])
        if last or chosen.logprobs is not None or self.plan.continuous_usage:
            # At the end of text vLLM 0.32.0 sends a delta without content.
            delta: Json = {} if last and not text else {"content": text}
            return [*events, self._delta(chosen, delta, start, stop, last=last)]
        before, after = self._frame(chosen)
        events.append(before + orjson.dumps(text) + after)
        return events

    def _frame(self, choice: Choice) -> tuple[bytes, bytes]:
        """What is around the text in a plain chunk: the same for each one, and most chunks are plain."""
        frame = self._plain.get(choice.index)
        if frame is None:
            before, _, after = self._delta(choice, {"content": ""}, 0, 0, last=False).partition(b'"content":""')
            frame = self._plain[choice.index] = (before + b'"content":', after)
        return frame

    def closing(self) -> list[bytes]:
        return self.ending(self._CHUNK)

    def body(self) -> bytes:
        return orjson.dumps({
            **self.envelope("chat.completion"),
            "choices": [self._whole(choice) for choice in self.plan.choices],
            "service_tier": None,
            "system_fingerprint": self.spec.fingerprint,
            "usage": self.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        })  # fmt: skip

    def _greeting(self, choice: Choice) -> bytes:
        delta = {"role": "assistant", "content": ""}
        payload = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.chunk(
            self._CHUNK, choice, payload, last=False, tail={"prompt_token_ids": None, "prompt_text": None}
        )

    def _delta(self, choice: Choice, delta: Json, start: int, stop: int, *, last: bool) -> bytes:
        logprobs = None if choice.logprobs is None else chat_logprobs(choice.logprobs[start:stop])
        payload: Json = {"index": choice.index, "delta": delta, "logprobs": logprobs}
        payload["finish_reason"] = choice.finish_reason if last else None
        if last:
            payload["stop_reason"] = choice.stop_reason
        payload["token_ids"] = None
        return self.chunk(self._CHUNK, choice, payload, last=last)

    def _tool_events(self, choice: Choice, start: int, stop: int, last: bool) -> list[bytes]:
        """Token 0 brings the call's head, the next ones its arguments, the last one the finish reason."""
        return [self._tool_event(choice, number, last and number == stop - 1) for number in range(start, stop)]

    def _tool_event(self, choice: Choice, number: int, last: bool) -> bytes:
        assert choice.tool is not None  # noqa: S101 - the caller looked
        if last:
            return self._delta(choice, {}, 0, 0, last=True)
        call: Json
        if number == 0:
            call = {"id": f"chatcmpl-tool-{self.stamp.new_id()}", "type": "function", "index": 0}
            call["function"] = {"name": choice.tool.name}
        else:
            call = {"index": 0, "function": {"arguments": choice.tool.pieces[number - 1]}}
        return self._delta(choice, {"content": None, "tool_calls": [call]}, 0, 0, last=False)

    def _whole(self, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None}
        if choice.tool is not None:
            function = {"name": choice.tool.name, "arguments": choice.tool.arguments}
            call = {"id": f"chatcmpl-tool-{self.stamp.new_id()}", "type": "function", "function": function}
            message["tool_calls"] = [call]
        message["reasoning"] = None
        return {
            "index": choice.index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
            "routed_experts": None,
        }


class CompletionRenderer(_Base):
    """/v1/completions."""

    _CHUNK = "text_completion"

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        chosen = self.plan.choices[choice]
        last = stop == chosen.tokens
        self._done[choice] = stop
        echoed = self.plan.echo and start == 0
        text = "".join(chosen.shown[start:stop])
        logprobs = None
        if chosen.logprobs is not None:
            before = sum(len(entry.token) for entry in chosen.logprobs[:start])
            logprobs = completion_logprobs(chosen.logprobs[start:stop], before)
        payload: Json = {
            "index": chosen.index,
            "text": chosen.prompt.text + text if echoed else text,
            "logprobs": logprobs,
            "finish_reason": chosen.finish_reason if last else None,
            "stop_reason": chosen.stop_reason if last else None,
            "prompt_token_ids": list(chosen.prompt.token_ids) if echoed else None,
            "token_ids": None,
        }
        return [self.chunk(self._CHUNK, chosen, payload, last=last)]

    def closing(self) -> list[bytes]:
        return self.ending(self._CHUNK)

    def body(self) -> bytes:
        return orjson.dumps({
            **self.envelope(self._CHUNK),
            "choices": [self._whole(choice) for choice in self.plan.choices],
            "service_tier": None,
            "system_fingerprint": self.spec.fingerprint,
            "usage": self.usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        })  # fmt: skip

    def _whole(self, choice: Choice) -> Json:
        return {
            "index": choice.index,
            "text": choice.prompt.text + choice.text if self.plan.echo else choice.text,
            "logprobs": completion_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
