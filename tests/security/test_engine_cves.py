"""One test for each known way to hurt an engine with a request body, named after its advisory.

The rule that answers each is in ``policies/guards.yaml`` or in the shapes beside it. "PR" and "issue" numbers are those
of the vLLM project.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from gateway.errors import Refusal
from gateway.policy.guards import Guards, parse_guards
from gateway.routes import ROUTES
from gateway.steps.accept import accept, render

TEXT = resources.files("policies").joinpath("guards.yaml").read_text(encoding="utf-8")
GUARDS = parse_guards(TEXT, "guards.yaml")
MEDIA = parse_guards(TEXT.replace("images: none ", "images: data "), "guards.yaml")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SOUND: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/tokenize": {"model": "m", "prompt": "hi"},
}


def refuses(path: str, param: str, guards: Guards = GUARDS, **members: Any) -> None:
    """The sound request passes and the same with ``members`` is refused because of ``param``."""
    route = ROUTES["POST", path]
    accept(route, b"application/json", json.dumps(SOUND[path]).encode(), guards)
    with pytest.raises(Refusal) as caught:
        accept(route, b"application/json", json.dumps(SOUND[path] | members).encode(), guards)
    assert caught.value.spec.code == "invalid_request"
    assert caught.value.param == param


def refuses_part(part: dict[str, Any]) -> None:
    refuses(CHAT, "messages", MEDIA, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])


def refuses_schema(schema: Any) -> None:
    refuses(
        CHAT, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    refuses(CHAT, "structured_outputs", structured_outputs={"json": schema})
    refuses(COMPLETIONS, "structured_outputs", structured_outputs={"json": schema})
    refuses(CHAT, "tools", tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    refuses("/v1/messages", "tools", tools=[{"name": "f", "input_schema": schema}])
    refuses("/v1/responses", "tools", tools=[{"type": "function", "name": "f", "parameters": schema}])
    refuses("/v1/responses", "text", text={"format": {"type": "json_schema", "name": "x", "schema": schema}})


def test_cve_2024_8768_empty_prompt() -> None:
    refuses(COMPLETIONS, "prompt", prompt="")
    refuses(COMPLETIONS, "prompt", prompt=[])
    refuses(COMPLETIONS, "prompt", prompt=["a", ""])
    refuses(CHAT, "messages", messages=[])
    refuses(CHAT, "messages", messages=[{"role": "user", "content": ""}])
    refuses("/v1/responses", "input", input="")
    refuses("/v1/messages", "messages", messages=[{"role": "user", "content": ""}])
    refuses("/v1/embeddings", "input", input="")


def test_cve_2024_8939_best_of() -> None:
    refuses(COMPLETIONS, "best_of", best_of=100_000)
    refuses(CHAT, "best_of", best_of=2)


@pytest.mark.parametrize("n", [0, -1, 9, 16_384, 10**18, 1.5, "8", True])
def test_cve_2026_34756_n_unbounded(n: Any) -> None:
    refuses(CHAT, "n", n=n)
    refuses(COMPLETIONS, "n", n=n)


def test_cve_2025_46570_prefix_cache_timing() -> None:
    for path in (CHAT, COMPLETIONS, "/v1/responses", "/v1/embeddings"):
        refuses(path, "cache_salt", cache_salt="another tenant's")
        request = accept(ROUTES["POST", path], b"application/json", json.dumps(SOUND[path]).encode(), GUARDS)
        assert json.loads(render(request, model="s", cache_salt="ours")[1])["cache_salt"] == "ours"


def test_cve_2025_46722_image_hash_collision() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    refuses(CHAT, "messages", messages=[{"role": "user", "content": [part]}])


def test_cve_2025_29770_grammar_cache_filled() -> None:
    refuses(CHAT, "structured_outputs", structured_outputs={"json": {"type": "object"}, "backend": "outlines"})
    refuses(CHAT, "guided_decoding_backend", guided_decoding_backend="outlines")


def test_cve_2025_48942_invalid_json_schema() -> None:
    for schema in ({"type": "nonsense"}, {"type": 1}, {"properties": {"a": "string"}}, "{}", [], 1):
        refuses_schema(schema)
    refuses(CHAT, "guided_json", guided_json={"type": "object"})


def test_cve_2025_48943_invalid_regex() -> None:
    refuses(CHAT, "structured_outputs", structured_outputs={"regex": "(["})
    refuses(CHAT, "guided_regex", guided_regex="([")
    refuses_schema({"type": "string", "pattern": "(["})


def test_cve_2025_48944_malformed_tool_schema() -> None:
    for parameters in ({"type": ["object", {}]}, {"properties": {"a": {"type": "x", "pattern": "(["}}}):
        refuses(CHAT, "tools", tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def test_ghsa_rwxx_mrjm_wc2m_regex_compilation() -> None:
    refuses_schema({"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}})
    refuses(COMPLETIONS, "structured_outputs", structured_outputs={"regex": "((a{1,9999}){1,9999})"})


def test_ghsa_q9q8_922v_2c42_grammar_compilation() -> None:
    refuses(CHAT, "structured_outputs", structured_outputs={"grammar": "root ::= root root"})
    refuses(CHAT, "guided_grammar", guided_grammar="root ::= root root")
    refuses(CHAT, "response_format", response_format={"type": "structural_tag", "structures": [], "triggers": []})


def test_issue_54003_schema_compilation_explodes() -> None:
    refuses_schema({"type": "array", "items": {"type": "string"}, "minItems": 10**9})
    refuses_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(201)}})
    refuses_schema({"type": "string", "enum": ["x" * 100 + str(n) for n in range(400)]})
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(8):
        deep = {"items": deep}
    refuses(COMPLETIONS, "structured_outputs", structured_outputs={"json": deep})
    refuses_schema({"$ref": "https://example.com/schema.json"})


def test_cve_2025_48887_tool_parser_backtracking() -> None:
    refuses(CHAT, "max_tokens", max_tokens=1 << 30)
    refuses(CHAT, "tools", tools=[{"type": "function", "function": {"name": "f"}}] * 129)


def test_cve_2025_61620_chat_template() -> None:
    for path in (CHAT, "/tokenize", COMPLETIONS):
        refuses(path, "chat_template", chat_template="{% for a in range(10**9) %}{% endfor %}")
    refuses(CHAT, "chat_template_kwargs", chat_template_kwargs={"chat_template": "{{ 1 }}"})


def test_cve_2025_62426_chat_template_kwargs() -> None:
    for path in (CHAT, "/v1/messages", "/tokenize"):
        for kwargs in ({"tokenize": True}, {"enable_thinking": {"a": 1}}, {"enable_thinking": "x" * 99}, []):
            refuses(path, "chat_template_kwargs", chat_template_kwargs=kwargs)


def test_cve_2025_62164_prompt_embeds() -> None:
    refuses(COMPLETIONS, "prompt_embeds", prompt_embeds="gAJ9cQAu")
    refuses(COMPLETIONS, "prompt_embeds", prompt_embeds=None)
    refuses_part({"type": "prompt_embeds", "prompt_embeds": {"data": "gAJ9cQAu"}})


def test_pr_54632_sparse_tensor() -> None:
    refuses_part({"type": "image_embeds", "image_embeds": "gAJ9cQAu"})
    refuses_part({"type": "audio_embeds", "audio_embeds": "gAJ9cQAu"})


def test_cve_2025_62372_wrong_shaped_embeddings() -> None:
    refuses_part({"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_grid_thw": "AAAA"}})
    refuses_part({"type": "video_embeds", "video_embeds": "AAAA"})


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "https://example.com/a.png", "file:///etc/passwd", "ftp://a/b", "//a/b"]
)
def test_cve_2025_6242_media_url_request_forgery(url: str) -> None:
    refuses_part({"type": "image_url", "image_url": {"url": url}})
    source = {"type": "image", "source": {"type": "url", "url": url}}
    refuses("/v1/messages", "messages", MEDIA, messages=[{"role": "user", "content": [source]}])
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    refuses("/v1/responses", "input", MEDIA, input=[item])


@pytest.mark.parametrize("url", ["http:\\\\allowed.example@10.0.0.1/", "https://allowed.example\\@10.0.0.1/a.png"])
def test_cve_2026_24779_host_check_passed_by_a_backslash(url: str) -> None:
    refuses_part({"type": "image_url", "image_url": {"url": url}})


def test_cve_2026_22778_video_decoding() -> None:
    refuses_part({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}})
    refuses_part({"type": "image_url", "image_url": {"url": "data:video/jpeg;base64,AAAA"}})


def test_cve_2026_22773_image_types() -> None:
    for kind in ("gif", "tiff", "bmp", "jp2", "svg+xml", "PNG"):
        refuses_part({"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,AAAA"}})


def test_cve_2026_5497_frames_in_one_data_url() -> None:
    refuses_part({"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "AAAA," * 1000}})


def test_pr_47010_image_bombs() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    refuses(CHAT, "messages", MEDIA, messages=[{"role": "user", "content": [part] * 5}])
    refuses(CHAT, "messages", MEDIA, messages=[{"role": "user", "content": [part] * 2}] * 3)
    refuses_part({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * ((4 << 20) + 1)}})


def test_pr_44970_audio_bombs() -> None:
    refuses_part({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "opus"}})
    refuses_part({"type": "audio_url", "audio_url": {"url": "data:audio/ogg;base64,AAAA"}})


def test_cve_2025_46560_quadratic_placeholders() -> None:
    refuses(CHAT, "messages", messages=[{"role": "user", "content": "<|image|>"}] * 2049)
    body = json.dumps(SOUND[CHAT] | {"messages": [{"role": "user", "content": "x" * (8 << 20)}]}).encode()
    with pytest.raises(Refusal) as caught:
        accept(ROUTES["POST", CHAT], b"application/json", body, GUARDS)
    assert caught.value.spec.code == "body_too_large"


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_cve_2026_44223_penalties(name: str) -> None:
    """Their values are bounded; which aliases may use them at all is not a question of the body."""
    for value in (-2.5, 1e300, "1", True, [1]):
        refuses(CHAT, name, **{name: value})


def test_pr_51447_stop_strings() -> None:
    for path in (CHAT, COMPLETIONS):
        refuses(path, "stop", stop=["a"] * 5)
        refuses(path, "stop", stop=["a" * 65])
        refuses(path, "stop", stop=[""])
    refuses("/v1/messages", "stop_sequences", stop_sequences=["a"] * 5)


@pytest.mark.parametrize(
    "name", ["stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids", "prompt_logprobs"]
)
def test_pr_54721_token_ids_outside_the_vocabulary(name: str) -> None:
    for path in (CHAT, COMPLETIONS, "/v1/responses"):
        refuses(path, name, **{name: [10**9]})


def test_pr_47845_logit_bias() -> None:
    refuses(CHAT, "logit_bias", logit_bias={str(n): 1 for n in range(301)})
    for key in ("-1", "1e3", " 1", "٣", "", "0x1", "1" * 10):
        refuses(CHAT, "logit_bias", logit_bias={key: 1})


def test_pr_44968_prompts_in_one_list() -> None:
    refuses(COMPLETIONS, "prompt", prompt=["a"] * 17)
    refuses(COMPLETIONS, "prompt", prompt=[[1, 2], [3]])
    refuses(COMPLETIONS, "prompt", prompt=[1, 2, 3])
    refuses("/v1/embeddings", "input", input=[[10**9]])


def test_pr_16529_batch_of_conversations() -> None:
    assert ("POST", "/v1/chat/completions/batch") not in ROUTES
    refuses(CHAT, "messages", messages=[[{"role": "user", "content": "a"}]])


def test_logprobs_of_the_whole_prompt() -> None:
    refuses(CHAT, "top_logprobs", top_logprobs=-1)
    refuses(CHAT, "top_logprobs", top_logprobs=6)
    refuses(COMPLETIONS, "logprobs", logprobs=-1)
    refuses(CHAT, "prompt_logprobs", prompt_logprobs=-1)
    refuses(COMPLETIONS, "echo", echo=True, logprobs=5)


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
def test_members_that_belong_to_the_engine(name: str) -> None:
    refuses(CHAT, name, **{name: 1})
    refuses(COMPLETIONS, name, **{name: 1})
