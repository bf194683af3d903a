"""vLLM's judgement of a request body: the same errors with the same words (captured from 0.32.0, default flags)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from loadtests.engine.exchange import ReceivedRequest
from loadtests.engine.refusal import Refusal, RoutingRefusal, bad_parameter
from loadtests.engine.spec import EngineSpec
from loadtests.engine.text import MAX_CHARS_PER_TOKEN, in_vocabulary

Body = dict[str, Any]

_MAX_SEQUENCES = 16384
_MAX_LOGPROBS = 20


def decoded(request: ReceivedRequest) -> Body:
    """The JSON object of a request; raises as `decode_body`."""
    return decode_body(request.header(b"content-type") or b"", request.body)


def decode_body(content_type: bytes, raw: bytes) -> Body:
    """The JSON object of a request.

    Raises Refusal when the content type is not JSON, the body is no JSON, or no object; RoutingRefusal when it is not
    text at all (for example gzip).
    """
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, message, "Bad Request")
    if not raw:
        raise schema_refusal([_fault("missing", "body", "Field required", None)])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _decode_slowly(raw)
    if not isinstance(body, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        raise schema_refusal([_fault("model_attributes_type", "body", words, body)])
    return body


def _decode_slowly(raw: bytes) -> Any:
    """What orjson refuses, the standard library judges: it is more lenient, and its words are those vLLM shows."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise schema_refusal([_json_fault(error)]) from None
    except UnicodeDecodeError:
        raise RoutingRefusal(400, "There was an error parsing the body") from None


def _json_fault(error: json.JSONDecodeError) -> dict[str, object]:
    fault = _fault("json_invalid", f"body.{error.pos}", "JSON decode error", {})
    return {**fault, "ctx": {"error": error.msg}}


def _fault(kind: str, where: str, message: str, value: object) -> dict[str, object]:
    return {"type": kind, "loc": where, "msg": message, "input": _shown(value)}


def _shown(value: object) -> str:
    """A value as an error quotes it: containers by their size, anything else by at most 200 characters."""
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "...[truncated]"


def schema_refusal(faults: list[dict[str, object]]) -> Refusal:
    """A 400 of type "Bad Request" that lists pydantic's faults, one a line; `param` is the place of the first."""
    count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}:"
    return Refusal(400, "\n  ".join([count, *map(str, faults)]), "Bad Request", str(faults[0]["loc"]))


_Check = Callable[[str, object], dict[str, object] | None]


def _integer_fault(where: str, value: object) -> dict[str, object] | None:
    if value is None or isinstance(value, int):
        return None
    if isinstance(value, str):
        if value.strip().lstrip("+-").isdecimal():
            return None
        words = "Input should be a valid integer, unable to parse string as an integer"
        return _fault("int_parsing", where, words, value)
    if isinstance(value, float):
        if value.is_integer():
            return None
        words = "Input should be a valid integer, got a number with a fractional part"
        return _fault("int_from_float", where, words, value)
    return _fault("int_type", where, "Input should be a valid integer", value)


def _number_fault(where: str, value: object) -> dict[str, object] | None:
    if value is None or isinstance(value, (int, float)):
        return None
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            words = "Input should be a valid number, unable to parse string as a number"
            return _fault("float_parsing", where, words, value)
        return None
    return _fault("float_type", where, "Input should be a valid number", value)


def _list_fault(where: str, value: object) -> dict[str, object] | None:
    return None if isinstance(value, list) else _fault("list_type", where, "Input should be a valid list", value)


def _string_fault(where: str, value: object) -> dict[str, object] | None:
    if value is None or isinstance(value, str):
        return None
    return _fault("string_type", where, "Input should be a valid string", value)


def _token_fault(where: str, value: object) -> dict[str, object] | None:
    fault = _fault("int_type", where, "Input should be a valid integer", value) if value is None else None
    fault = fault or _integer_fault(where, value)
    if fault is None and int(value) < 0:  # type: ignore[call-overload]
        words = "Input should be greater than or equal to 0"
        return {**_fault("greater_than_equal", where, words, value), "ctx": {"ge": 0}}
    return fault


def _text_fault(where: str, value: object) -> dict[str, object] | None:
    return None if isinstance(value, str) else _fault("string_type", where, "Input should be a valid string", value)


def _each(check: _Check) -> Callable[[str, object], list[dict[str, object]]]:
    def faults(where: str, value: object) -> list[dict[str, object]]:
        if not isinstance(value, list):
            return [_fault("list_type", where, "Input should be a valid list", value)]
        found = (check(f"{where}.{number}", entry) for number, entry in enumerate(value))
        return [fault for fault in found if fault is not None]

    return faults


def _token_lists_faults(where: str, value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        return _TOKENS(where, value)
    return [fault for number, entry in enumerate(value) for fault in _TOKENS(f"{where}.{number}", entry)]


_TOKENS = _each(_token_fault)
_TEXTS = _each(_text_fault)
_TYPES: Mapping[str, _Check] = {
    "model": _string_fault,
    "messages": _list_fault,
    "max_tokens": _integer_fault,
    "max_completion_tokens": _integer_fault,
    "max_output_tokens": _integer_fault,
    "n": _integer_fault,
    "seed": _integer_fault,
    "priority": _integer_fault,
    "top_logprobs": _integer_fault,
    "temperature": _number_fault,
    "top_p": _number_fault,
    "presence_penalty": _number_fault,
    "frequency_penalty": _number_fault,
    "cache_salt": _string_fault,
    "request_id": _string_fault,
    "tools": lambda where, value: None if value is None else _list_fault(where, value),
}


def check_fields(body: Body, required: tuple[str, ...]) -> None:
    """Presence and types, all faults together; raises Refusal."""
    faults = [_fault("missing", f"body.{name}", "Field required", body) for name in required if name not in body]
    checked = ((name, check) for name, check in _TYPES.items() if name in body)
    found = (check(f"body.{name}", body[name]) for name, check in checked)
    faults += [fault for fault in found if fault is not None]
    if faults:
        raise schema_refusal(faults)


def check_prompt(prompt: object) -> list[str | list[int]]:
    """The prompts of a completion: a text, texts, token ids, or lists of token ids. Raises Refusal for anything else.

    vLLM tries four types and lists the faults of all when none fits (measured on 0.32.0).
    """
    if prompt is None or prompt == "":
        raise bad_parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if prompt == []:
        raise Refusal(400, "You must pass at least one prompt")
    where = "body.prompt"
    if isinstance(prompt, list):
        if all(isinstance(entry, str) for entry in prompt):
            return list(prompt)
        if not _TOKENS(where, prompt):
            return [_numbers(prompt)]
        if not _token_lists_faults(where, prompt):
            return [_numbers(entry) for entry in prompt]
    alone = _fault("string_type", where, "Input should be a valid string", prompt)
    faults = [*_TOKENS(where, prompt), *_token_lists_faults(where, prompt), alone, *_TEXTS(where, prompt)]
    raise schema_refusal(faults)


def _numbers(tokens: list[Any]) -> list[int]:
    """Token ids, all of which the model must know; raises Refusal."""
    if not tokens:
        raise Refusal(400, "The decoder prompt cannot be empty")
    numbers = [int(token) for token in tokens]
    strange = [number for number in numbers if not in_vocabulary(number)]
    if strange:
        raise Refusal(400, f"Token id {max(strange)} is out of vocabulary")
    return numbers


def check_model(body: Body, spec: EngineSpec) -> str:
    """The served name to answer with; a body without one gets the default. Raises Refusal 404 for an unknown name."""
    name = body.get("model") or spec.model
    if name not in spec.models:
        known = ", ".join(spec.models)
        message = f"The model `{name}` does not exist. Valid aliases: {known}."
        raise Refusal(404, message, "NotFoundError", "model")
    return str(name)


def check_stream_options(body: Body) -> None:
    if body.get("stream_options") is not None and not body.get("stream"):
        raise bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")


def check_cache_salt(body: Body) -> None:
    if body.get("cache_salt") == "":
        raise bad_parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def check_sampling(body: Body) -> None:
    """The bounds of n, temperature and logprobs; raises Refusal."""
    n = body.get("n")
    if n is not None and int(n) > _MAX_SEQUENCES:
        raise Refusal(
            400,
            f"n must be at most {_MAX_SEQUENCES}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable.",
        )
    if n is not None and int(n) < 1:
        raise bad_parameter(f"n must be at least 1, got {n}.", "n", n)
    temperature = body.get("temperature")
    if temperature is not None and float(temperature) < 0:
        value = float(temperature)
        raise bad_parameter(f"temperature must be non-negative, got {value}.", "temperature", value)
    top = body.get("top_logprobs")
    if body.get("logprobs") and top is not None and int(top) > _MAX_LOGPROBS:
        message = f"Requested sample logprobs of {top}, which is greater than max allowed: {_MAX_LOGPROBS}"
        raise bad_parameter(message, "logprobs", top)


def check_max_tokens(value: object, name: str, spec: EngineSpec) -> int | None:
    """The requested number of output tokens, None when there is none. Raises Refusal outside 1..max_model_len."""
    if value is None:
        return None
    wanted = int(value)  # type: ignore[call-overload]
    if wanted > spec.max_model_len:
        raise bad_parameter(
            f"{name}={wanted} cannot be greater than max_model_len={spec.max_model_len}. "
            "Please request fewer output tokens.",
            name,
            wanted,
        )
    if wanted < 1:
        raise bad_parameter(f"{name} must be at least 1, got {wanted}.", name, wanted)
    return int(wanted)


def check_prompt_chars(characters: int, spec: EngineSpec) -> None:
    """vLLM refuses by characters before it tokenises; raises Refusal."""
    most = spec.max_model_len * MAX_CHARS_PER_TOKEN
    if characters > most:
        raise bad_parameter(
            f"This model's maximum context length is {spec.max_model_len} tokens. However, your prompt contains "
            f"{characters} characters (more than {most} characters, which is the upper bound for "
            f"{spec.max_model_len} input tokens). Please reduce the length of the input prompt.",
            "input_text",
            characters,
        )


def check_context(tokens: int, spec: EngineSpec) -> None:
    """The prompt must fit into the context; raises Refusal. vLLM 0.32.0 cuts max_tokens to the room left."""
    if tokens > spec.max_model_len:
        qualifier = "at least " if tokens == spec.max_model_len + 1 else ""
        raise bad_parameter(
            f"This model's maximum context length is {spec.max_model_len} tokens. However, your prompt contains "
            f"{qualifier}{tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            tokens,
        )


def check_room(prompt_tokens: int, spec: EngineSpec) -> int:
    """How many tokens may follow a prompt; raises Refusal for none, in the words of a `max_tokens` cut to 0."""
    room = spec.max_model_len - prompt_tokens
    if room < 1:
        raise bad_parameter("max_tokens must be at least 1, got 0.", "max_tokens", 0)
    return room
