"""Each known way to hurt an engine with a request, named after its advisory and sent through a whole gateway.

The attack is refused and the engine hears nothing of it; its twin, the same request in order, is served. "PR" and
"issue" numbers are those of the vLLM project. ``IDS`` is the list that the tests of this file are held to.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadtests.rawclient import RawClient

CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS, TOKENIZE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/tokenize",
)
Body = dict[str, Any]
QUESTION = {"role": "user", "content": "hi"}
SOUND: dict[str, Body] = {
    CHAT: {"model": "sim-model", "messages": [QUESTION], "max_tokens": 2},
    COMPLETIONS: {"model": "sim-model", "prompt": "hi", "max_tokens": 2},
    RESPONSES: {"model": "sim-model", "input": "hi", "max_output_tokens": 2},
    MESSAGES: {"model": "sim-model", "messages": [QUESTION], "max_tokens": 2},
    EMBEDDINGS: {"model": "sim-model", "input": "hi"},
    TOKENIZE: {"model": "sim-model", "prompt": "hi"},
}
OBJECT = {"type": "object"}
BLIND = 400  # what the engine, which has a model for text, says of an image that has reached it

# Advisories of vLLM that a request, a head or an old engine can carry: each has a test here.
IDS = {
    "CVE-2024-8768", "CVE-2024-8939", "CVE-2026-34756", "CVE-2025-48956", "CVE-2025-59425", "CVE-2026-48746",
    "CVE-2025-46570", "CVE-2025-46722", "CVE-2025-29770", "CVE-2025-48942", "CVE-2025-48943", "CVE-2025-48944",
    "GHSA-rwxx-mrjm-wc2m", "GHSA-q9q8-922v-2c42", "issue-54003", "CVE-2025-48887", "PR-55473", "CVE-2025-9141",
    "CVE-2025-61620", "CVE-2025-62426", "CVE-2025-62164", "PR-54632", "CVE-2025-62372", "CVE-2025-6242",
    "CVE-2026-24779", "CVE-2026-22778", "CVE-2026-22773", "CVE-2026-5497", "PR-47010", "PR-44970", "CVE-2025-46560",
    "CVE-2026-44223", "CVE-2026-9540", "PR-51447", "PR-54721", "PR-47845", "PR-44968", "PR-16529", "GHSA-4fv6",
    "GHSA-m9fh", "GHSA-83mh", "GHSA-rp22",
}  # fmt: skip
# Those that no request carries: they load a hostile model, or reach a port that the manifests close.
OF_THE_DEPLOYMENT = {
    "CVE-2025-24357", "CVE-2025-66448", "CVE-2026-22807", "CVE-2026-53923", "CVE-2025-29783", "CVE-2025-32444",
    "CVE-2025-47277", "CVE-2025-30165", "CVE-2025-30202", "CVE-2025-25183",
}  # fmt: skip


def plain(advisory: str) -> str:
    """An id as it stands in the name of a test."""
    return "_" + advisory.lower().replace("-", "_") + "_"


def test_every_advisory_has_its_test() -> None:
    names = [f"_{name}_" for name in globals() if name.startswith("test_")]
    assert [advisory for advisory in sorted(IDS) if not any(plain(advisory) in name for name in names)] == []
    assert IDS.isdisjoint(OF_THE_DEPLOYMENT)


def test_every_test_of_an_advisory_names_one_that_is_listed() -> None:
    named = [name for name in globals() if name.startswith(("test_cve_", "test_ghsa_", "test_pr_", "test_issue_"))]
    assert [name for name in named if not any(plain(advisory) in f"_{name}_" for advisory in IDS)] == []


# --- the gateways


class Wall:
    """The default gateway and one that takes images and masks an alias, in front of one engine."""

    def __init__(self, front: Any, media: Any) -> None:
        self.front = front
        self.media = media

    def refuses(self, path: str, param: str, *, twin: Body | None = None, media: bool = False, **members: Any) -> None:
        """The body with ``members`` is refused because of ``param``; with those of ``twin`` it is served."""
        front = self.media if media else self.front
        front.passes(path, SOUND[path] | (twin or {}), status=BLIND if "data:image" in str(twin) else 200)
        error = front.refuses(path, SOUND[path] | members)
        assert (error.get("param", param), error["type"]) == (param, "invalid_request_error")
        if path == MESSAGES:
            assert param in error["message"]
        else:
            assert (error["code"], error["param"]) == ("invalid_request", param)

    def refuses_part(self, part: Body) -> None:
        """Among the parts of a message, where images are allowed."""
        parts = [{"type": "text", "text": "a"}]
        twin = {"messages": [{"role": "user", "content": [*parts, picture(png())]}]}
        attack = [{"role": "user", "content": [*parts, part]}]
        self.refuses(CHAT, "messages", twin=twin, media=True, messages=attack)

    def refuses_schema(self, schema: Any) -> None:
        """Wherever a schema may stand."""
        for path, param, member in schema_places(schema):
            twin = next(held for at, name, held in schema_places(OBJECT) if (at, name) == (path, param))
            self.refuses(path, param, twin={param: twin}, **{param: member})


@pytest.fixture(scope="module")
def wall(shared_site: Any, front_of: Callable[..., Any], policies_with: Callable[..., Any]) -> Wall:
    tasks = frozenset({"generate", "embed"})
    engine = shared_site.engine(step_time=0.0, prefill_tokens_per_second=0.0, tasks=tasks, max_model_len=4096)
    penalties = "presence_penalty, frequency_penalty, repetition_penalty"
    masked = f"aliases: [{{match: [masked], forbid: [{penalties}], vocabulary: 50000}}]"
    folder = policies_with(
        ("images: none ", "images: data "), ("aliases: []", masked), ("distinct_per_hour: 200", "distinct_per_hour: 3")
    )
    media = front_of(engine, policies=folder)
    media.gateway.alias("masked", "sim-model")
    return Wall(front_of(engine), media)


def schema_places(schema: Any) -> list[tuple[str, str, Any]]:
    """Path, member and the member's value, for each place."""
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    flat = {"type": "function", "name": "f", "parameters": schema}
    named = {"type": "json_schema", "name": "x", "schema": schema}
    return [
        (CHAT, "response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
        (CHAT, "structured_outputs", {"json": schema}),
        (COMPLETIONS, "structured_outputs", {"json": schema}),
        (CHAT, "tools", [function]),
        (MESSAGES, "tools", [{"name": "f", "input_schema": schema}]),
        (RESPONSES, "tools", [flat]),
        (RESPONSES, "text", {"format": named}),
    ]


def png(width: int = 1, height: int = 1, before: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + head + b"crc4" + before + b"\0\0\0\0IDATcrc4"


def picture(data: bytes, kind: str = "png") -> Body:
    return at_url(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def at_url(url: Any) -> Body:
    return {"type": "image_url", "image_url": {"url": url}}


# --- counts and sizes


def test_cve_2024_8768_empty_prompt(wall: Wall) -> None:
    wall.refuses(COMPLETIONS, "prompt", prompt="")
    wall.refuses(COMPLETIONS, "prompt", prompt=[])
    wall.refuses(COMPLETIONS, "prompt", twin={"prompt": ["a", "b"]}, prompt=["a", ""])
    wall.refuses(CHAT, "messages", messages=[])
    wall.refuses(CHAT, "messages", messages=[{"role": "user", "content": ""}])
    wall.refuses(RESPONSES, "input", input="")
    wall.refuses(MESSAGES, "messages", messages=[{"role": "user", "content": ""}])
    wall.refuses(EMBEDDINGS, "input", input="")


def test_cve_2024_8939_best_of(wall: Wall) -> None:
    wall.refuses(COMPLETIONS, "best_of", best_of=100_000)
    wall.refuses(CHAT, "best_of", best_of=2)


@pytest.mark.parametrize("n", [0, -1, 9, 16_384, 10**18, 1.5, "8", True])
def test_cve_2026_34756_n_unbounded(n: Any, wall: Wall) -> None:
    wall.refuses(CHAT, "n", twin={"n": 8}, n=n)
    wall.refuses(COMPLETIONS, "n", twin={"n": 8}, n=n)


def test_cve_2025_46560_quadratic_placeholders(wall: Wall) -> None:
    many = {"role": "user", "content": "<|image|>"}
    wall.refuses(CHAT, "messages", twin={"messages": [many] * 9}, messages=[many] * 2049)
    large = SOUND[CHAT] | {"messages": [{"role": "user", "content": "x" * (8 << 20)}]}
    assert wall.front.refuses(CHAT, large, status=413)["code"] == "body_too_large"


def test_pr_51447_stop_strings(wall: Wall) -> None:
    for path in (CHAT, COMPLETIONS):
        for stop in (["a"] * 5, ["a" * 65], [""], ["a"] * 100_000):
            wall.refuses(path, "stop", twin={"stop": ["a"] * 4}, stop=stop)
    wall.refuses(MESSAGES, "stop_sequences", twin={"stop_sequences": ["a"] * 4}, stop_sequences=["a"] * 5)


@pytest.mark.parametrize(
    "name", ["stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids", "prompt_logprobs"]
)
def test_pr_54721_token_ids_outside_the_vocabulary(name: str, wall: Wall) -> None:
    for path in (CHAT, COMPLETIONS, RESPONSES):
        wall.refuses(path, name, **{name: [10**9]})


def test_pr_47845_logit_bias(wall: Wall) -> None:
    full = {str(n): 1 for n in range(300)}
    wall.refuses(CHAT, "logit_bias", twin={"logit_bias": full}, logit_bias=full | {"300": 1})
    for key in ("-1", "1e3", " 1", "\u0663", "", "0x1", "1" * 10):
        wall.refuses(CHAT, "logit_bias", logit_bias={key: 1})


def test_pr_47845_logit_bias_past_the_vocabulary_of_an_alias(wall: Wall) -> None:
    wall.refuses(
        CHAT, "logit_bias", media=True, twin={"model": "masked", "logit_bias": {"49999": 1}},
        model="masked", logit_bias={"50000": 1},
    )  # fmt: skip
    wall.media.passes(CHAT, SOUND[CHAT] | {"logit_bias": {"50000": 1}})


def test_pr_44968_prompts_in_one_list(wall: Wall) -> None:
    wall.refuses(COMPLETIONS, "prompt", twin={"prompt": ["a"] * 16}, prompt=["a"] * 17)
    wall.refuses(COMPLETIONS, "prompt", prompt=[[1, 2], [3]])
    wall.refuses(COMPLETIONS, "prompt", prompt=[1, 2, 3])
    wall.refuses(EMBEDDINGS, "input", twin={"input": ["a", "b"]}, input=[[10**9]])


def test_pr_16529_batch_of_conversations(wall: Wall) -> None:
    wall.refuses(CHAT, "messages", messages=[[QUESTION]])
    error = wall.front.refuses("/v1/chat/completions/batch", SOUND[CHAT] | {"messages": [[QUESTION]]}, status=404)
    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    "members",
    [
        {"stop": ["a"] * 500}, {"stop_token_ids": [1 << 40]}, {"bad_words": ["a"] * 1000},
        {"logit_bias": {str(n): 1 for n in range(3000)}}, {"messages": [[QUESTION]] * 2},
    ],
)  # fmt: skip
def test_ghsa_4fv6_ghsa_m9fh_ghsa_83mh_ghsa_rp22_lists_without_end(members: Body, wall: Wall) -> None:
    wall.refuses(CHAT, next(iter(members)), **members)


def test_logprobs_of_the_whole_prompt(wall: Wall) -> None:
    twin = {"logprobs": True, "top_logprobs": 5}
    wall.refuses(CHAT, "top_logprobs", twin=twin, logprobs=True, top_logprobs=-1)
    wall.refuses(CHAT, "top_logprobs", twin=twin, logprobs=True, top_logprobs=6)
    wall.refuses(COMPLETIONS, "logprobs", twin={"logprobs": 5}, logprobs=-1)
    wall.refuses(CHAT, "prompt_logprobs", prompt_logprobs=-1)
    wall.refuses(COMPLETIONS, "echo", twin={"echo": True}, echo=True, logprobs=5)


def test_output_that_leaves_no_room_for_a_prompt(wall: Wall) -> None:
    for path, name in ((CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens")):
        for asked in (4096, 1 << 20):
            wall.front.passes(path, SOUND[path] | {name: 9, "temperature": 0})
            error = wall.front.refuses(path, SOUND[path] | {name: asked})
            assert (error["code"], error["param"]) == ("context_length_exceeded", name)


# --- heads


def test_cve_2025_48956_giant_header(wall: Wall) -> None:
    request = wall.front.passes(CHAT, SOUND[CHAT], "X-Large: " + "a" * 16_384)
    assert request.header(b"x-large") is None
    for size in (40_000, 1 << 20, 4 << 20):
        assert wall.front.refuses(CHAT, SOUND[CHAT], "X-Large: " + "a" * size, status=431)
    assert wall.front.refuses(CHAT, SOUND[CHAT], *[f"X-{n}: 1" for n in range(257)])


def test_cve_2025_59425_engine_key_guessed_letter_by_letter(wall: Wall) -> None:
    """What a client sends as its credential never reaches the comparison in the engine."""
    request = wall.front.passes(CHAT, SOUND[CHAT])
    assert {name for name, _ in request.headers} & {b"authorization", b"x-api-key", b"cookie"} == set()
    for key in ("a", "token-abc", wall.front.key[:-1], wall.front.key + "a"):
        assert wall.front.refuses(CHAT, SOUND[CHAT], status=401, key=key)["code"] == "invalid_api_key"


def test_cve_2026_48746_host_passes_the_engine_key(wall: Wall) -> None:
    own = wall.front.engine.url.removeprefix("http://").encode()
    for host in ("gw", "localhost", "127.0.0.1:9", "[::1]:8000"):
        request = wall.front.passes(CHAT, SOUND[CHAT], host=host)
        assert [value for name, value in request.headers if name == b"host"] == [own]
    for host in ("gw/v1?", "gw/../v1", "gw#", "a@b", "gw:8000/health", ""):
        assert wall.front.refuses(CHAT, SOUND[CHAT], host=host)


# --- the prefix cache


def test_cve_2025_46570_prefix_cache_timing(wall: Wall) -> None:
    own = wall.front.gateway.key("second key")
    other = wall.front.gateway.key("other tenant", tenant="other")
    for path in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS):
        wall.refuses(path, "cache_salt", cache_salt="another tenant's")
        salts = [
            json.loads(wall.front.passes(path, SOUND[path], key=key).body)["cache_salt"]
            for key in (wall.front.key, other, own, other)
        ]
        assert salts[0] == salts[2] != salts[1] == salts[3]
        assert min(map(len, salts)) > 16


def test_cve_2025_46722_image_hash_collision(wall: Wall) -> None:
    """Images are off, and where they are on, a tenant's cache is its own."""
    message = {"messages": [{"role": "user", "content": [picture(png())]}]}
    wall.refuses(CHAT, "messages", **message)
    assert json.loads(wall.media.passes(CHAT, SOUND[CHAT] | message, status=BLIND).body)["cache_salt"]


# --- grammars, tools, templates


def test_cve_2025_29770_grammar_cache_filled(wall: Wall) -> None:
    wall.refuses(CHAT, "structured_outputs", structured_outputs={"json": OBJECT, "backend": "outlines"})
    wall.refuses(CHAT, "guided_decoding_backend", guided_decoding_backend="outlines")


def test_cve_2025_29770_a_new_schema_in_each_request(wall: Wall) -> None:
    key = wall.media.gateway.key("grammars", tenant="grammars")

    def body(number: int) -> Body:
        return SOUND[CHAT] | {"structured_outputs": {"json": {"type": "object", "title": f"number {number}"}}}

    for number in (1, 2, 3, 1, 2, 3):
        wall.media.passes(CHAT, body(number), key=key)
    assert wall.media.refuses(CHAT, body(4), status=429, key=key)["code"] == "rate_limited"
    wall.media.passes(CHAT, body(3), key=key)
    wall.media.passes(CHAT, body(4), key=wall.media.gateway.key("others", tenant="others"))


def test_cve_2025_48942_invalid_json_schema(wall: Wall) -> None:
    for schema in ({"type": "nonsense"}, {"type": 1}, {"properties": {"a": "string"}}, "{}", [], 1):
        wall.refuses_schema(schema)
    wall.refuses(CHAT, "guided_json", guided_json=OBJECT)


def test_cve_2025_48943_invalid_regex(wall: Wall) -> None:
    wall.refuses(CHAT, "structured_outputs", structured_outputs={"regex": "(["})
    wall.refuses(CHAT, "guided_regex", guided_regex="([")
    wall.refuses_schema({"type": "string", "pattern": "(["})


def test_cve_2025_48944_malformed_tool_schema(wall: Wall) -> None:
    for parameters in ({"type": ["object", {}]}, {"properties": {"a": {"type": "x", "pattern": "(["}}}):
        wall.refuses_schema(parameters)


def test_ghsa_rwxx_mrjm_wc2m_regex_compilation(wall: Wall) -> None:
    wall.refuses_schema({"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}})
    wall.refuses(COMPLETIONS, "structured_outputs", structured_outputs={"regex": "((a{1,9999}){1,9999})"})


def test_ghsa_q9q8_922v_2c42_grammar_compilation(wall: Wall) -> None:
    wall.refuses(CHAT, "structured_outputs", structured_outputs={"grammar": "root ::= root root"})
    wall.refuses(CHAT, "guided_grammar", guided_grammar="root ::= root root")
    tags = {"type": "structural_tag", "structures": [], "triggers": []}
    wall.refuses(CHAT, "response_format", response_format=tags)


def test_issue_54003_schema_compilation_explodes(wall: Wall) -> None:
    wall.refuses_schema({"type": "array", "items": {"type": "string"}, "minItems": 10**9})
    wall.refuses_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(201)}})
    wall.refuses_schema({"type": "string", "enum": ["x" * 100 + str(n) for n in range(400)]})
    wall.refuses_schema({"$ref": "https://example.com/schema.json"})
    deep: Body = {"type": "string"}
    for _ in range(8):
        deep = {"items": deep}
    wall.refuses_schema(deep)


def test_cve_2025_48887_tool_parser_backtracking(wall: Wall) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    wall.refuses(CHAT, "max_tokens", max_tokens=1 << 30)
    wall.refuses(CHAT, "tools", twin={"tools": [tool]}, tools=[tool] * 129)


def test_pr_55473_tool_parser_stalls_on_a_long_answer(wall: Wall) -> None:
    """The parser's time grows with the answer, and the answer is bounded."""
    for path, name in ((CHAT, "max_completion_tokens"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")):
        wall.refuses(path, name, twin={name: 64}, **{name: (1 << 20) + 1})


def test_cve_2025_61620_chat_template(wall: Wall) -> None:
    for path in (CHAT, TOKENIZE, COMPLETIONS):
        wall.refuses(path, "chat_template", chat_template="{% for a in range(10**9) %}{% endfor %}")
    wall.refuses(CHAT, "chat_template_kwargs", chat_template_kwargs={"chat_template": "{{ 1 }}"})


def test_cve_2025_62426_chat_template_kwargs(wall: Wall) -> None:
    twin = {"chat_template_kwargs": {"enable_thinking": False}}
    for path in (CHAT, MESSAGES, TOKENIZE):
        for kwargs in ({"tokenize": True}, {"enable_thinking": {"a": 1}}, {"enable_thinking": "x" * 99}, []):
            wall.refuses(path, "chat_template_kwargs", twin=twin, chat_template_kwargs=kwargs)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_cve_2026_44223_penalties_with_speculation(name: str, wall: Wall) -> None:
    for value in (-2.5, 1e300, "1", True, [1]):
        wall.refuses(CHAT, name, twin={name: 1.5}, **{name: value})
    for path in (CHAT, COMPLETIONS):
        wall.refuses(path, name, media=True, twin={"model": "masked"}, model="masked", **{name: 1})
        wall.media.passes(path, SOUND[path] | {name: 1})


# --- tensors and media


def test_cve_2025_62164_prompt_embeds(wall: Wall) -> None:
    wall.refuses(COMPLETIONS, "prompt_embeds", prompt_embeds="gAJ9cQAu")
    wall.refuses(COMPLETIONS, "prompt_embeds", prompt_embeds=None)
    wall.refuses_part({"type": "prompt_embeds", "prompt_embeds": {"data": "gAJ9cQAu"}})


def test_pr_54632_sparse_tensor(wall: Wall) -> None:
    wall.refuses_part({"type": "image_embeds", "image_embeds": "gAJ9cQAu"})
    wall.refuses_part({"type": "audio_embeds", "audio_embeds": "gAJ9cQAu"})


def test_cve_2025_62372_wrong_shaped_embeddings(wall: Wall) -> None:
    wall.refuses_part({"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_grid_thw": "AAAA"}})
    wall.refuses_part({"type": "video_embeds", "video_embeds": "AAAA"})


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "https://example.com/a.png", "file:///etc/passwd", "ftp://a/b", "//a/b"]
)
def test_cve_2025_6242_media_url_request_forgery(url: str, wall: Wall) -> None:
    wall.refuses_part(at_url(url))
    source = {"type": "image", "source": {"type": "url", "url": url}}
    wall.refuses(MESSAGES, "messages", media=True, messages=[{"role": "user", "content": [source]}])
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    wall.refuses(RESPONSES, "input", media=True, input=[item])


@pytest.mark.parametrize("url", ["http:\\\\allowed.example@10.0.0.1/", "https://allowed.example\\@10.0.0.1/a.png"])
def test_cve_2026_24779_host_check_passed_by_a_backslash(url: str, wall: Wall) -> None:
    wall.refuses_part(at_url(url))


def test_cve_2026_22778_video_decoding(wall: Wall) -> None:
    wall.refuses_part({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})
    wall.refuses_part(at_url("data:video/jpeg;base64,AAAA"))
    wall.refuses_part(picture(b"\0\0\0\x0cjP  \r\n\x87\n"))  # JPEG 2000, whatever it calls itself


def test_cve_2026_22773_image_types(wall: Wall) -> None:
    for kind in ("gif", "tiff", "bmp", "jp2", "svg+xml", "PNG", "jpeg", "webp"):
        wall.refuses_part(picture(png(), kind))


def test_cve_2026_5497_frames_in_one_data_url(wall: Wall) -> None:
    wall.refuses_part(at_url("data:image/jpeg;base64," + "AAAA," * 1000))
    frames = b"\0\0\0\x08acTL\0\0\x10\0\0\0\0\0crc4"
    wall.refuses_part(picture(png(before=frames)))


def test_pr_47010_image_bombs(wall: Wall) -> None:
    one = picture(png())
    four = {"messages": [{"role": "user", "content": [one] * 4}]}
    wall.refuses(CHAT, "messages", media=True, twin=four, messages=[{"role": "user", "content": [one] * 5}])
    wall.refuses(CHAT, "messages", media=True, twin=four, messages=[{"role": "user", "content": [one] * 2}] * 3)
    wall.refuses_part(at_url("data:image/png;base64," + "A" * ((4 << 20) + 4)))
    for width, height in ((1 << 20, 1 << 20), (4001, 4000), (0, 1)):
        wall.refuses_part(picture(png(width, height)))
    second = b"\0\0\0\x0dIHDR" + struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 0, 0, 0, 0) + b"crc4"
    wall.refuses_part(picture(png(before=second)))


def test_pr_44970_audio_bombs(wall: Wall) -> None:
    wall.refuses_part({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "opus"}})
    wall.refuses_part({"type": "audio_url", "audio_url": {"url": "data:audio/ogg;base64,AAAA"}})


# --- the engine itself


def test_cve_2025_9141_code_run_by_an_old_engine(shared_site: Any, front_of: Callable[..., Any]) -> None:
    old = shared_site.engine(version="0.10.1", step_time=0.0, prefill_tokens_per_second=0.0)
    new = shared_site.engine(version="0.23.1", step_time=0.0, prefill_tokens_per_second=0.0)
    front_of(new).passes(CHAT, SOUND[CHAT])
    gateway = shared_site.gateway([old])
    (replica,) = gateway.gateway.core.registry.replicas
    assert replica.life.reason == "vllm 0.10.1 is older than 0.23.1, the oldest that policy takes"
    assert gateway.gateway.core.registry.any_ready() is False
    assert [request.path for request in list(old.requests) if request.method == "POST"] == []


def test_cve_2026_9540_more_requests_than_an_engine_can_bear(
    shared_site: Any, front_of: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    """No request by itself: what there is to do is to bound how many reach one engine at once."""
    engine = shared_site.engine(step_time=0.02)
    front = front_of(engine, max_connections_per_replica=2)
    body = json.dumps(SOUND[CHAT] | {"max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    head = front.head("POST", CHAT, "Content-Type: application/json", f"Content-Length: {len(body)}")
    clients = [RawClient(front.gateway.address) for _ in range(6)]
    try:
        for client in clients:
            client.send(head + body)
        wait_until(lambda: engine.running == 2, "two at work")
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            assert engine.running + engine.waiting <= 2
            time.sleep(0.002)
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "name",
    [
        "request_id", "priority", "session_id", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
        "mm_processor_kwargs", "media_io_kwargs", "documents", "add_special_tokens", "add_generation_prompt",
        "continue_final_message", "use_beam_search", "length_penalty", "truncate_prompt_tokens", "repetition_detection",
        "thinking_token_budget", "stream_interval", "return_token_ids", "return_tokens_as_token_ids", "guided_choice",
        "data_parallel_rank", "lora_request",
    ],
)  # fmt: skip
def test_members_that_belong_to_the_engine(name: str, wall: Wall) -> None:
    for path in (CHAT, COMPLETIONS):
        error = wall.front.refuses(path, SOUND[path] | {name: 1})
        assert (error["code"], error["param"]) == ("invalid_request", name)
