"""The bodies and stream events of SGLang 0.5.23, byte for byte as captured: key order, nulls and ids are its own."""

from __future__ import annotations

import orjson

from loadtests.engine.answers import DONE, Json, Stamp, completion_logprobs, sse
from loadtests.engine.plan import Choice, Plan
from loadtests.engine.refusal import Refusal
from loadtests.engine.sglang.errors import anthropic_error_body, error_body, error_event
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import TokenLogprob

_END_OF_TEXT = 2
"""The token that `matched_stop` names when the model ended by itself."""
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


def fresh_id(stamp: Stamp) -> str:
    """32 hex digits; X-Request-Id is not looked at."""
    return stamp.new_id() + stamp.new_id()


def matched_stop(choice: Choice) -> str | int | None:
    """What ended the text: a stop string, or the end-of-text token."""
    if choice.finish_reason != "stop":
        return None
    return choice.stop_reason if choice.stop_reason is not None else _END_OF_TEXT


def chat_logprobs(entries: tuple[TokenLogprob, ...] | None) -> Json | None:
    """The `logprobs` of a chat choice: as vLLM's, with the members in another order."""
    if entries is None:
        return None
    content = [
        {**_logprob(entry), "top_logprobs": [_logprob(TokenLogprob(*other)) for other in entry.others]}
        for entry in entries
    ]
    return {"content": content}


def _logprob(entry: TokenLogprob) -> Json:
    return {"token": entry.token, "bytes": list(entry.token.encode()), "logprob": entry.logprob}


class _Base:
    """What chat and completions share. In a stream each choice has an id of its own."""

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        self.plan = plan
        self.stamp = stamp
        self.spec = spec
        self.cached_tokens = 0
        self.created_cache_tokens = 0
        self._ids = [stamp.id, *(fresh_id(stamp) for _ in plan.choices[1:])] if plan.stream else [stamp.id]
        self._last = stamp.id

    def opening(self) -> list[bytes]:
        return []

    def failure(self, refusal: Refusal) -> list[bytes]:
        return [error_event(refusal), DONE]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return error_body(refusal)

    def envelope(self, kind: str, name: str) -> Json:
        return {"id": name, "object": kind, "created": self.stamp.created, "model": self.plan.model}

    def whole(self, kind: str, choices: list[Json]) -> bytes:
        made = self.plan.choices[0].tokens
        weights: Json = {"weight_version": "default"}
        weights["weight_versions"] = [{"version": "default", "start": 0, "end": made}]
        usage = self.usage(self.plan.prompt_tokens, self.plan.output_tokens)
        payload = {**self.envelope(kind, self.stamp.id), "choices": choices, "usage": usage}
        return orjson.dumps({**payload, "metadata": weights})

    @staticmethod
    def counts(prompt: int, output: int) -> Json:
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    def usage(self, prompt: int, output: int) -> Json:
        details: Json = {"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}
        return {**self.counts(prompt, output), **details}


class ChatRenderer(_Base):
    """/v1/chat/completions. The finish reasons come in chunks of their own, after the text of every choice."""

    _CHUNK = "chat.completion.chunk"

    def __init__(self, plan: Plan, stamp: Stamp, spec: EngineSpec) -> None:
        super().__init__(plan, stamp, spec)
        self._greeted: set[int] = set()

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        chosen = self.plan.choices[choice]
        self._last = self._ids[choice]
        events = []
        if choice not in self._greeted:
            self._greeted.add(choice)
            events.append(self._event(chosen, {"role": "assistant", "content": ""}))
        text = "".join(chosen.shown[start:stop])
        if text:
            logprobs = None if chosen.logprobs is None else chat_logprobs(chosen.logprobs[start:stop])
            usage = self.usage(chosen.prompt.tokens, stop) if self.plan.continuous_usage else None
            events.append(self._event(chosen, {"content": text}, logprobs=logprobs, usage=usage))
        return events

    def closing(self) -> list[bytes]:
        events = [self._event(choice, {}, finished=True) for choice in self.plan.choices]
        if self.plan.include_usage:
            usage = self.usage(self.plan.prompt_tokens, self.plan.output_tokens)
            events.append(sse({**self.envelope(self._CHUNK, self._last), "choices": [], "usage": usage}))
        return [*events, DONE]

    def body(self) -> bytes:
        return self.whole("chat.completion", [self._whole(choice) for choice in self.plan.choices])

    def _event(
        self,
        choice: Choice,
        delta: Json,
        *,
        logprobs: Json | None = None,
        usage: Json | None = None,
        finished: bool = False,
    ) -> bytes:
        payload: Json = {"index": choice.index, "delta": {"reasoning_content": None, **delta}, "logprobs": logprobs}
        payload["finish_reason"] = choice.finish_reason if finished else None
        payload["matched_stop"] = matched_stop(choice) if finished else None
        chunk = {**self.envelope(self._CHUNK, self._last), "choices": [payload]}
        return sse(chunk if usage is None else {**chunk, "usage": usage})

    @staticmethod
    def _whole(choice: Choice) -> Json:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "reasoning_content": None},
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "matched_stop": matched_stop(choice),
        }


class CompletionRenderer(_Base):
    """/v1/completions. The finish reason comes with the last text, and `usage` is in every chunk."""

    _CHUNK = "text_completion"

    def tokens(self, choice: int, start: int, stop: int) -> list[bytes]:
        chosen = self.plan.choices[choice]
        self._last = self._ids[choice]
        text = "".join(chosen.shown[start:stop])
        probs = None if chosen.logprobs is None else chosen.logprobs[start:stop]
        payload = self._choice(chosen, text, probs, first=start == 0, finished=stop >= chosen.tokens)
        usage = self._short_usage(chosen.prompt.tokens, stop) if self.plan.continuous_usage else None
        return [sse({**self.envelope(self._CHUNK, self._last), "choices": [payload], "usage": usage})]

    def closing(self) -> list[bytes]:
        if not self.plan.include_usage:
            return [DONE]
        usage = self._short_usage(self.plan.prompt_tokens, self.plan.output_tokens)
        return [sse({**self.envelope(self._CHUNK, self._last), "choices": [], "usage": usage}), DONE]

    def body(self) -> bytes:
        return self.whole(self._CHUNK, [self._whole(choice) for choice in self.plan.choices])

    def _whole(self, choice: Choice) -> Json:
        return self._choice(choice, choice.text, choice.logprobs, first=True, finished=True)

    def _choice(
        self, choice: Choice, text: str, probs: tuple[TokenLogprob, ...] | None, *, first: bool, finished: bool
    ) -> Json:
        return {
            "index": choice.index,
            "text": choice.prompt.text + text if first and self.plan.echo else text,
            "logprobs": completion_logprobs(probs),
            "finish_reason": choice.finish_reason if finished else None,
            "matched_stop": matched_stop(choice) if finished else None,
        }

    def _short_usage(self, prompt: int, output: int) -> Json:
        return {**self.counts(prompt, output), "reasoning_tokens": 0}


class MessagesRenderer:
    """/v1/messages: Anthropic's interface. The input is counted at the start of a stream, the output at its end."""

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
        text = "".join(self.plan.choices[choice].shown[start:stop])
        if text:
            delta = {"type": "text_delta", "text": text}
            events.append(_named({"type": "content_block_delta", "index": 0, "delta": delta}))
        return events

    def closing(self) -> list[bytes]:
        usage = {"output_tokens": self.plan.output_tokens}
        return [
            _named({"type": "content_block_stop", "index": 0}),
            _named({"type": "message_delta", "delta": self._stop(), "usage": usage}),
            _named({"type": "message_stop"}),
        ]

    def body(self) -> bytes:
        content = [{"type": "text", "text": self.plan.choices[0].text}]
        usage = {"input_tokens": self.plan.prompt_tokens, "output_tokens": self.plan.output_tokens}
        message = {**self._message(content), **self._stop(), "usage": usage}
        return orjson.dumps(message)

    def failure(self, refusal: Refusal) -> list[bytes]:
        return [_named({"type": "error", "error": {"type": "api_error", "message": refusal.message}})]

    def refusal_body(self, refusal: Refusal) -> bytes:
        return anthropic_error_body(refusal)

    def _message(self, content: list[Json]) -> Json:
        head: Json = {"id": self.stamp.id, "type": "message", "role": "assistant"}
        return {**head, "content": content, "model": self.plan.model}

    def _stop(self) -> Json:
        choice = self.plan.choices[0]
        if choice.stop_reason is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        return {"stop_reason": _STOP_REASONS.get(choice.finish_reason)}

    def _beginning(self) -> list[bytes]:
        usage = {"input_tokens": self.plan.prompt_tokens, "output_tokens": 0}
        block = {"type": "text", "text": ""}
        return [
            _named({"type": "message_start", "message": {**self._message([]), "usage": usage}}),
            _named({"type": "content_block_start", "index": 0, "content_block": block}),
        ]


def _named(payload: Json) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(payload["type"]).encode(), orjson.dumps(payload))
