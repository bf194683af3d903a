"""What the canned engine says, precomputed. The forms are those of vLLM 0.32.0 as captured. Pure."""

from dataclasses import dataclass

import orjson

from loadtests.bench.scenarios import MODEL

ANSWER = "The replica with the shortest expected wait answers first. " * 2
"""Text of every answer in one piece; the load generator looks for it."""

CREATED = 1_796_027_850
ANSWER_ID = "chatcmpl-930348d2e85fafb7"
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "iteration_tokens_total",
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state")
COUNTERS = ("num_preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
BUCKETS = tuple(
    step * 10.0**power for power in range(-3, 4) for step in (1.0, 2.5, 5.0)
)  # 21, as many as vLLM's widest


def response(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A whole HTTP response with the headers that vLLM sends."""
    head = (
        f"HTTP/1.1 {status}\r\ndate: Mon, 30 Nov 2026 08:37:29 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\nvary: Origin\r\n\r\n"
    )
    return head.encode("ascii") + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 08:37:30 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chat_answer() -> bytes:
    """The body of a chat answer, about 750 bytes."""
    absent = ("refusal", "annotations", "audio", "function_call", "reasoning")
    message = {"role": "assistant", "content": ANSWER, **dict.fromkeys(absent)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return orjson.dumps(
        {
            "id": ANSWER_ID,
            "object": "chat.completion",
            "created": CREATED,
            "model": MODEL,
            "choices": [choice | dict.fromkeys(("stop_reason", "token_ids", "routed_experts"))],
            "service_tier": None,
            "system_fingerprint": "vllm-0.32.0-46021380",
            "usage": usage(24) | dict.fromkeys(("prompt_tokens_details", "completion_tokens_details")),
        }
        | dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params"))
    )


def usage(completion: int) -> dict[str, object]:
    return {"prompt_tokens": 160, "total_tokens": 160 + completion, "completion_tokens": completion}


def event(choices: list[dict[str, object]], **extra: object) -> bytes:
    """One server-sent event of a streamed chat, about 230 bytes for one token."""
    base = {"id": ANSWER_ID, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
    return b"data: " + orjson.dumps({**base, "choices": choices, **extra}) + b"\n\n"


def delta(content: dict[str, str], finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": content, "logprobs": None, "finish_reason": finish, "token_ids": None}


def events(count: int) -> tuple[bytes, ...]:
    """`count` events: the role, the tokens, and the one that carries the finish reason."""
    first = event([delta({"role": "assistant", "content": ""})], prompt_token_ids=None, prompt_text=None)
    tokens = [event([delta({"content": f" word{number % 10}"})]) for number in range(count - 2)]
    return (first, *tokens, event([delta({"content": " end"}, "stop") | {"stop_reason": None}]))


def framed(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(count: int, *, with_usage: bool) -> tuple[bytes, ...]:
    """What is written, one piece at a time, after the head: one event each, ``[DONE]``, and the end of the body."""
    tail = (event([], usage=usage(count), system_fingerprint="vllm-0.32.0-46021380"),) if with_usage else ()
    return (*(framed(each) for each in (*events(count), *tail)), framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def exposition() -> bytes:
    """Metrics of the size that vLLM's have (about 45 kB), idle, so that a scrape costs the target what it costs."""
    labels = f'engine="0",model_name="{MODEL}"'
    lines: list[str] = []
    for name in GAUGES:
        lines += [f"# HELP vllm:{name} As vLLM.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} 0.0"]
    for name in COUNTERS:
        lines += [f"# HELP vllm:{name}_total As vLLM.", f"# TYPE vllm:{name}_total counter"]
        lines += [f"vllm:{name}_total{{{labels}}} 0.0", f"vllm:{name}_created{{{labels}}} {CREATED}.0"]
    for name in HISTOGRAMS:
        lines += [f"# HELP vllm:{name} As vLLM.", f"# TYPE vllm:{name} histogram"]
        lines += [f'vllm:{name}_bucket{{engine="0",le="{le}",model_name="{MODEL}"}} 0.0' for le in (*BUCKETS, "+Inf")]
        lines += [f"vllm:{name}_count{{{labels}}} 0.0", f"vllm:{name}_sum{{{labels}}} 0.0"]
    cache = (
        f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",{labels},num_gpu_blocks="16384"}} 1.0'
    )
    lines += ["# HELP vllm:cache_config_info As vLLM.", "# TYPE vllm:cache_config_info gauge", cache]
    return ("\n".join(lines) + "\n").encode()


def model_list() -> bytes:
    card = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm", "root": MODEL, "parent": None}
    return orjson.dumps({"object": "list", "data": [{**card, "max_model_len": 131_072, "permission": []}]})


def error(message: str, kind: str, code: int) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


@dataclass(frozen=True, slots=True)
class Canned:
    """Every answer of the engine, by what was asked."""

    get: dict[bytes, bytes]
    not_found: bytes
    chat: bytes
    render: bytes
    """vllm-router asks for a render with every request under its default policy; vLLM refuses it unless told not to."""
    streams: dict[bool, tuple[bytes, ...]]
    """By whether usage was asked for."""


def canned(chunks: int) -> Canned:
    """All answers, built once."""
    absent = response("404 Not Found", error("Not Found", "NotFoundError", 404))
    disabled = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    return Canned(
        get={
            b"/health": response("200 OK", b""),
            b"/ping": response("200 OK", b""),
            b"/v1/models": response("200 OK", model_list()),
            b"/metrics": response("200 OK", exposition(), "text/plain; version=0.0.4; charset=utf-8"),
            b"/version": response("200 OK", b'{"version":"0.32.0"}'),
            b"/load": response("200 OK", b'{"server_load":0}'),
        },
        not_found=absent,
        chat=response("200 OK", chat_answer()),
        render=response("403 Forbidden", error(disabled, "PermissionDeniedError", 403)),
        streams={asked: stream(chunks, with_usage=asked) for asked in (False, True)},
    )
