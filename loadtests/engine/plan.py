"""From a judged request body to a plan: every token of the answer is known before the scheduler has run a step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.engine import validate
from loadtests.engine.refusal import Refusal
from loadtests.engine.scheduler import block_hashes
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import (
    Sampling,
    TokenLogprob,
    generated_pieces,
    logprobs_of,
    natural_length,
    piece_of,
    pieces,
    prefix_key,
    render_chat,
    token_id,
)
from loadtests.engine.validate import Body


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt. `hashes` are those of its full blocks, with the cache salt in them."""

    text: str
    tokens: int
    hashes: tuple[int, ...]
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    pieces: tuple[str, ...]
    """The arguments as the stream brings them."""
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: what each generated token shows, and how it ends."""

    index: int
    prompt: Prompt
    shown: tuple[str, ...]
    """Text by token; after a stop string has cut the text the pieces may be shorter than the tokens were."""
    tokens: int
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    tool: ToolCall | None = None

    @property
    def text(self) -> str:
        return "".join(self.shown)


@dataclass(frozen=True, slots=True)
class Plan:
    """One generation request, whole."""

    model: str
    choices: tuple[Choice, ...]
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    request_id: str | None = None
    echo: bool = False
    body: Body | None = None

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        seen = {id(choice.prompt): choice.prompt for choice in self.choices}
        return tuple(seen.values())

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def output_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)


def text_of_content(content: object, spec: EngineSpec) -> str:
    """The text of a message's content, a string or a list of parts; raises Refusal for media."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_text_of_part(part, spec) for part in parts)


def _text_of_part(part: object, spec: EngineSpec) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else ""
    if kind in ("image_url", "input_audio", "video_url", "audio_url", "image", "input_image"):
        raise Refusal(400, f"{spec.model} is not a multimodal model")
    return str(part.get("text", "")) if isinstance(part, dict) else ""


def chat_turns(messages: Iterable[Any], spec: EngineSpec) -> list[tuple[str, str]]:
    """(role, text) of each message."""
    turns = []
    for message in messages:
        fields = message if isinstance(message, dict) else {}
        turns.append((str(fields.get("role", "user")), text_of_content(fields.get("content"), spec)))
    return turns


def make_prompt(text: str, body: Body, spec: EngineSpec, *, with_ids: bool = False) -> Prompt:
    """Tokenise; raises Refusal when the prompt is longer than the context."""
    validate.check_prompt_chars(len(text), spec)
    words = pieces(text)
    validate.check_context(len(words), spec)
    return tokenised(text, words, body, spec, ids=tuple(map(token_id, words)) if with_ids else ())


def tokenised(
    text: str, keys: Sequence[str | int], body: Body, spec: EngineSpec, *, ids: tuple[int, ...] = ()
) -> Prompt:
    """The prompt whose tokens `keys` stand for in the prefix cache."""
    hashes = block_hashes(keys, spec.block_size, body.get("cache_salt")) if spec.prefix_caching else ()
    return Prompt(text, len(keys), hashes, ids)


def ids_prompt(numbers: list[int], body: Body, spec: EngineSpec) -> Prompt:
    """A prompt that came as token ids: each is exactly one token, whatever its text would be split into."""
    text = "".join(map(piece_of, numbers))
    return tokenised(text, [prefix_key(number) for number in numbers], body, spec, ids=tuple(numbers))


def chat_prompt(body: Body, spec: EngineSpec) -> Prompt:
    """The prompt of a conversation; tools are part of it, as in any chat template."""
    messages = body["messages"]
    if not messages:
        raise Refusal(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = render_chat(chat_turns(messages, spec))
    tools = body.get("tools")
    if tools and body.get("tool_choice") != "none":
        text = "<|im_start|>system\n# Tools\n" + json.dumps(tools) + "<|im_end|>\n" + text
    return make_prompt(text, body, spec)


def plan_chat(body: Body, spec: EngineSpec) -> Plan:
    """Judge a chat request and plan its answer; raises Refusal as vLLM does, in vLLM's order."""
    validate.check_fields(body, ("messages",))
    validate.check_stream_options(body)
    validate.check_cache_salt(body)
    model = validate.check_model(body, spec)
    check_tool_choice(body, spec)
    _check_response_format(body)
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    limit = validate.check_max_tokens(body.get(name), name, spec)
    validate.check_sampling(body)
    prompt = chat_prompt(body, spec)
    top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    fixed = constrained_output(body, prompt)
    choices = tuple(
        fixed(index, limit) if fixed else plan_choice((index, index), prompt, body, spec, limit=limit, top=top)
        for index in range(int(body.get("n") or 1))
    )
    return plan_of(body, model, choices)


def plan_batch_chat(body: Body, spec: EngineSpec) -> Plan:
    """/v1/chat/completions/batch: a list of conversations, answered as the choices of one body."""
    plans = [plan_chat({**body, "messages": messages}, spec) for messages in body.get("messages", [])]
    choices = [choice for plan in plans for choice in plan.choices]
    renumbered = tuple(
        Choice(i, c.prompt, c.shown, c.tokens, c.finish_reason, c.stop_reason, c.logprobs, c.tool)
        for i, c in enumerate(choices)
    )
    return plan_of({**body, "stream": False}, validate.check_model(body, spec), renumbered)


def plan_completion(body: Body, spec: EngineSpec) -> Plan:
    """Judge a legacy completion request and plan its answer; raises Refusal."""
    validate.check_fields(body, ())
    validate.check_stream_options(body)
    validate.check_cache_salt(body)
    model = validate.check_model(body, spec)
    limit = validate.check_max_tokens(body.get("max_tokens", 16), "max_tokens", spec)
    validate.check_sampling(body)
    logprobs = body.get("logprobs")
    top = int(logprobs) if logprobs is not None and logprobs is not False else None
    n = int(body.get("n") or 1)
    choices = [
        plan_choice((number * n + copy, copy), prompt, body, spec, limit=limit, top=top)
        for number, prompt in enumerate(_completion_prompts(body, spec))
        for copy in range(n)
    ]
    return plan_of(body, model, tuple(choices), echo=bool(body.get("echo")))


def _completion_prompts(body: Body, spec: EngineSpec) -> list[Prompt]:
    echo = bool(body.get("echo"))
    prompts = []
    for prompt in validate.check_prompt(body.get("prompt")):
        if isinstance(prompt, str):
            prompts.append(make_prompt(prompt, body, spec, with_ids=echo))
        else:
            validate.check_context(len(prompt), spec)
            prompts.append(ids_prompt(prompt, body, spec))
    return prompts


def plan_of(body: Body, model: str, choices: tuple[Choice, ...], echo: bool = False) -> Plan:
    """The plan of a request whose choices are made."""
    options = body.get("stream_options") or {}
    usage = bool(options.get("include_usage"))
    return Plan(
        model=model,
        choices=choices,
        stream=bool(body.get("stream")),
        include_usage=usage,
        continuous_usage=usage and bool(options.get("continuous_usage_stats")),
        priority=int(body.get("priority") or 0),
        request_id=body.get("request_id"),
        echo=echo,
        body=body,
    )


def plan_choice(
    place: tuple[int, int], prompt: Prompt, body: Body, spec: EngineSpec, *, limit: int | None, top: int | None = None
) -> Choice:
    """Free text: as long as the request says, or as the prompt happens to make it.

    `place` is the index of the choice and its number among the copies of its prompt.
    """
    index, copy = place
    temperature = body.get("temperature")
    seed = body.get("seed")
    sampling = Sampling(1.0 if temperature is None else float(temperature), None if seed is None else int(seed), copy)
    room = validate.check_room(prompt.tokens, spec)
    most = room if limit is None else min(limit, room)
    natural = most if body.get("ignore_eos") else natural_length(prompt.text, sampling, spec.mean_output_tokens)
    count = min(most, natural)
    words = generated_pieces(prompt.text, sampling, count)
    reason = "length" if count == most else "stop"
    shown, reason, stop = cut_at_stop(words, reason, body)
    probs = None if top is None else logprobs_of(prompt.text, sampling, words[: len(shown)], top)
    return Choice(index, prompt, shown, len(shown), reason, stop, probs)


def cut_at_stop(words: tuple[str, ...], reason: str, body: Body) -> tuple[tuple[str, ...], str, str | None]:
    """End the text before the first stop string; the token that completes it is generated and counted."""
    stops = body.get("stop")
    if not stops:
        return words, reason, None
    text = "".join(words)
    found = [(text.find(stop), stop) for stop in ([stops] if isinstance(stops, str) else stops)]
    hits = [(place, stop) for place, stop in found if place >= 0 and stop]
    if not hits:
        return words, reason, None
    place, stop = min(hits, key=lambda hit: hit[0] + len(hit[1]))
    shown: list[str] = []
    length = 0
    for word in words:
        if length >= place + len(stop):
            break
        shown.append(word[: max(0, place - length)])
        length += len(word)
    return tuple(shown), "stop", stop


def check_tool_choice(body: Body, spec: EngineSpec) -> None:
    """Raises Refusal when the request needs a tool parser and the engine was started without one."""
    if spec.tool_parser or not body.get("tools"):
        return
    chosen = body.get("tool_choice", "auto")
    if isinstance(chosen, dict):
        name = chosen.get("function", {}).get("name")
        raise Refusal(400, f'tool_choice=function "{name}" requires --tool-call-parser to be set')
    if chosen == "required":
        raise Refusal(400, 'tool_choice="required" requires --tool-call-parser to be set')
    if chosen == "auto":
        message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise Refusal(400, message)


_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


def _check_response_format(body: Body) -> None:
    kind = schema_of(body).get("type")
    if isinstance(kind, str) and kind not in _JSON_TYPES:
        raise Refusal(400, f"Grammar error: Invalid type: {kind}")


def schema_of(body: Body) -> dict[str, Any]:
    """The JSON schema of its `response_format`, or an empty one."""
    form = body.get("response_format")
    schema = form.get("json_schema", {}).get("schema", {}) if isinstance(form, dict) else {}
    return schema if isinstance(schema, dict) else {}


def example_of(schema: dict[str, Any]) -> Any:
    """The simplest value that a JSON schema allows (the common keywords only)."""
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        wanted = schema.get("required", list(schema.get("properties", {})))
        return {name: example_of(schema.get("properties", {}).get(name, {})) for name in wanted}
    simple: dict[str, Any] = {"array": [], "number": 0.5, "integer": 1, "boolean": False, "null": None}
    return simple.get(kind, "gari")


def _called_tool(body: Body, prompt: Prompt) -> dict[str, Any] | None:
    """The function to call: the named one, the first when a call is required, under `auto` one that the user names."""
    tools = [tool["function"] for tool in body.get("tools") or [] if isinstance(tool, dict) and "function" in tool]
    chosen = body.get("tool_choice", "auto")
    if isinstance(chosen, dict):
        name = chosen.get("function", {}).get("name")
        return next((tool for tool in tools if tool.get("name") == name), None)
    if chosen == "required":
        return tools[0] if tools else None
    if chosen == "auto":
        asked = prompt.text.rpartition("<|im_start|>user\n")[2]
        return next((tool for tool in tools if str(tool.get("name")) in asked), None)
    return None


def constrained_output(body: Body, prompt: Prompt) -> Any:
    """A maker of choices, called with index and limit, when tools or a response format fix the output; else None."""
    tool = _called_tool(body, prompt)
    if tool is not None:
        arguments = json.dumps(example_of(tool.get("parameters") or {}))
        named = isinstance(body.get("tool_choice"), dict)
        call = ToolCall(str(tool["name"]), tuple(pieces(arguments)), arguments)
        return lambda index, limit: _tool_choice(index, prompt, call, named)
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") in ("json_schema", "json_object"):
        text = json.dumps(example_of(schema_of(body) or {"type": "object"}))
        return lambda index, limit: _fixed_choice(index, prompt, text, limit)
    return None


def _tool_choice(index: int, prompt: Prompt, call: ToolCall, named: bool) -> Choice:
    """vLLM finishes a named call with `stop`, a required or automatic one with `tool_calls` (captured)."""
    reason = "stop" if named else "tool_calls"
    tokens = len(call.pieces) + 2
    return Choice(index, prompt, ("",) * tokens, tokens, reason, tool=call)


def _fixed_choice(index: int, prompt: Prompt, text: str, limit: int | None) -> Choice:
    words = tuple(pieces(text))
    shown = words[:limit] if limit is not None else words
    cut = len(shown) < len(words)
    # The end-of-text token after the closing brace is generated and counted, and shows nothing.
    shown = shown if cut else (*shown, "")
    return Choice(index, prompt, shown, len(shown), "length" if cut else "stop")
