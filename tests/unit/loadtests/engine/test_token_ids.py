"""Prompts of token ids, as warmups send them: exact lengths, and a real vLLM 0.32.0's words for what is none."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadtests.engine.harness import with_engine
from loadtests.engine.plan import plan_completion
from loadtests.engine.refusal import Refusal
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec, instant_spec
from loadtests.engine.text import in_vocabulary, pieces, token_id
from loadtests.engine.wireclient import Answer, ask, post

SPEC = instant_spec(model="m", max_model_len=2048)
TOKENS = st.lists(st.integers(0, 65535), min_size=1, max_size=300)

# What a real server answered, with the status 400 each.
REFUSALS: dict[str, tuple[object, str, str | None]] = {
    "longer than the context": (
        [300] * 2050,
        "This model's maximum context length is 2048 tokens. However, your prompt contains 2050 input tokens, which "
        "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        "(parameter=input_tokens, value=2050)",
        "input_tokens",
    ),
    "as long as the context": (
        [300] * 2048,
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        "max_tokens",
    ),
    "not in the vocabulary": ([10**6], "Token id 1000000 is out of vocabulary", None),
    "no prompt": ([], "You must pass at least one prompt", None),
    "an empty prompt": ([[]], "The decoder prompt cannot be empty", None),
    "a text among ids": (
        [1, "a"],
        "5 validation errors:\n"
        "  {'type': 'int_parsing', 'loc': 'body.prompt.1', 'msg': 'Input should be a valid integer, unable to parse "
        "string as an integer', 'input': 'a'}\n"
        "  {'type': 'list_type', 'loc': 'body.prompt.0', 'msg': 'Input should be a valid list', 'input': '1'}\n"
        "  {'type': 'list_type', 'loc': 'body.prompt.1', 'msg': 'Input should be a valid list', 'input': 'a'}\n"
        "  {'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string', 'input': '<list of "
        "2 items>'}\n"
        "  {'type': 'string_type', 'loc': 'body.prompt.0', 'msg': 'Input should be a valid string', 'input': '1'}",
        "body.prompt.1",
    ),
    "a negative id": (
        [[1], [-1]],
        "6 validation errors:\n"
        "  {'type': 'int_type', 'loc': 'body.prompt.0', 'msg': 'Input should be a valid integer', 'input': '<list of "
        "1 items>'}\n"
        "  {'type': 'int_type', 'loc': 'body.prompt.1', 'msg': 'Input should be a valid integer', 'input': '<list of "
        "1 items>'}\n"
        "  {'type': 'greater_than_equal', 'loc': 'body.prompt.1.0', 'msg': 'Input should be greater than or equal to "
        "0', 'input': '-1', 'ctx': {'ge': 0}}\n"
        "  {'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string', 'input': '<list of "
        "2 items>'}\n"
        "  {'type': 'string_type', 'loc': 'body.prompt.0', 'msg': 'Input should be a valid string', 'input': '<list "
        "of 1 items>'}\n"
        "  {'type': 'string_type', 'loc': 'body.prompt.1', 'msg': 'Input should be a valid string', 'input': '<list "
        "of 1 items>'}",
        "body.prompt.0",
    ),
}


def answer_to(body: dict[str, object], spec: EngineSpec = SPEC) -> Answer:
    got: list[Answer] = []

    async def check(engine: SimulatedEngine) -> None:
        got.append(await ask(engine.port, post("/v1/completions", json.dumps(body).encode())))

    with_engine(check, spec)
    return got[0]


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_in_the_words_of_a_real_server(name: str) -> None:
    prompt, message, param = REFUSALS[name]
    answer = answer_to({"prompt": prompt, "max_tokens": 1})
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["message"], error["param"]) == (400, message, param)


@pytest.mark.parametrize("prompt", [5, True, {"a": 1}, 2.5, [None], [[1], "a"], [{}], [[[1]]], [1, 2.5]])
def test_what_is_no_prompt_is_a_400(prompt: object) -> None:
    with pytest.raises(Refusal) as refused:
        plan_completion({"prompt": prompt}, SPEC)
    assert (refused.value.status, refused.value.kind) == (400, "Bad Request")
    assert refused.value.param is not None
    assert refused.value.param.startswith("body.prompt")


@settings(deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=4))
def test_each_id_is_one_token_and_each_list_a_prompt(prompts: list[list[int]]) -> None:
    nested = plan_completion({"prompt": prompts, "max_tokens": 1}, SPEC)
    assert [choice.prompt.tokens for choice in nested.choices] == [len(prompt) for prompt in prompts]
    alone = plan_completion({"prompt": prompts[0], "max_tokens": 1}, SPEC)
    assert alone.choices[0].shown == nested.choices[0].shown


@given(TOKENS, TOKENS)
@example([1000] * 8, [1256] * 8)  # both show the same text
def test_different_ids_never_share_a_block(one: list[int], two: list[int]) -> None:
    spec = instant_spec(block_size=4)
    first, second = (plan_completion({"prompt": ids}, spec).choices[0].prompt.hashes for ids in (one, two))
    shared = sum(a == b for a, b in zip(first, second, strict=False))
    same = next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    assert shared == same // 4


def test_a_text_and_its_ids_share_their_blocks_and_a_salt_parts_them() -> None:
    spec = instant_spec(block_size=4)
    text = "the quick brown fox jumps over the lazy dog"
    ids = [token_id(piece) for piece in pieces(text)]
    as_text, as_ids, salted = (
        plan_completion(body, spec).choices[0].prompt.hashes
        for body in ({"prompt": text}, {"prompt": ids}, {"prompt": ids, "cache_salt": "tenant"})
    )
    assert as_text == as_ids
    assert not set(salted) & set(as_ids)


@given(st.text(min_size=1, max_size=30))
def test_every_token_of_a_text_is_in_the_vocabulary(text: str) -> None:
    assert all(in_vocabulary(token_id(piece)) for piece in pieces(text))


def test_a_stream_of_ids_has_its_usage_and_exact_length() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "max_tokens": 7}
    answer = answer_to({"prompt": list(range(300, 820)), **options})
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    assert events[-1]["usage"] == {"prompt_tokens": 520, "total_tokens": 527, "completion_tokens": 7}
    assert answer.body.endswith(b"data: [DONE]\n\n")


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    answer = answer_to({"prompt": [300] * 2047, "max_tokens": 5, "ignore_eos": True})
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 1
