"""Prompts that begin alike for an engine have chains that begin alike, and no others do."""

from __future__ import annotations

from random import Random

import pytest

from gateway.fleet.balance.prompt import (
    BLOCK_SIZES,
    COARSE,
    FINE,
    HASH_BITS,
    MAX_BLOCKS,
    Prompt,
    anchor,
    blocks_within,
    prompt_seed,
    reach,
    read_prompt,
)
from gateway.model import BodyKind, Endpoint, FormPart, InferenceRequest, Route

KEY = b"k" * 32
SEED = prompt_seed(KEY, "model", "salt")
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 400


def read(endpoint=Endpoint.CHAT, seed=SEED, parts=(), **payload):
    return read_prompt(InferenceRequest(Route("POST", "/x", endpoint, BodyKind.JSON), "a", payload, parts), seed)


def said(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def shared(one, other):
    """How many blocks two chains have in common, from the first on."""
    count = 0
    for mine, theirs in zip(one.chain, other.chain, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def begins(longer, shorter):
    return bool(shorter.chain) and longer.chain[: len(shorter.chain)] == shorter.chain


@pytest.mark.parametrize("length", [235, 236, 237, 3000, 6000])
def test_the_next_turn_begins_with_all_of_this_one(length):
    first = read(messages=said("a" * length, "b" * 300))
    later = read(messages=said("a" * length, "b" * 300, "c" * 700, "d"))
    assert begins(later, first)
    assert later.size > first.size


def test_it_does_in_every_dialect():
    turns = said("q" * 900, "r" * 900, "s" * 900)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for endpoint, member, fixed in (
        (Endpoint.CHAT, "messages", {"tools": [tool]}),
        (Endpoint.MESSAGES, "messages", {"system": "be kind", "tools": [tool]}),
        (Endpoint.RESPONSES, "input", {"instructions": "be kind"}),
    ):
        first = read(endpoint, **fixed, **{member: turns[:1]})
        assert begins(read(endpoint, **fixed, **{member: turns}), first)
        assert begins(read(endpoint, **fixed, **{member: turns[:2]}), first)
    assert begins(read(Endpoint.COMPLETIONS, prompt="x" * 5000), read(Endpoint.COMPLETIONS, prompt="x" * 1024))
    assert begins(read(Endpoint.COMPLETIONS, prompt=[*range(1000)]), read(Endpoint.COMPLETIONS, prompt=[*range(500)]))


@pytest.mark.parametrize(
    ("endpoint", "before", "grows"),
    [
        (Endpoint.CHAT, "tools", "messages"),
        (Endpoint.MESSAGES, "system", "messages"),
        (Endpoint.MESSAGES, "tools", "messages"),
        (Endpoint.RESPONSES, "instructions", "input"),
        (Endpoint.RESPONSES, "tools", "input"),
    ],
)
def test_what_stands_before_the_conversation_counts(endpoint, before, grows):
    turns = said("q" * 2000)
    one = read(endpoint, **{before: [{"type": "text", "text": "be kind"}], grows: turns})
    other = read(endpoint, **{before: [{"type": "text", "text": "be curt"}], grows: turns})
    assert one.chain
    assert shared(one, other) == 0


def test_what_the_prompt_is_not_made_of_does_not_count():
    turns = said("q" * 2000)
    assert read(messages=turns) == read(
        messages=turns, temperature=0.3, max_tokens=7, model="other", stream=True, top_p=0.5, stop=["x"]
    )


def test_two_prompts_share_what_they_share_and_no_more():
    document = "d" * 3000
    one, other = read(messages=said(document + "x" * 3000)), read(messages=said(document + "y" * 3000))
    assert reach(shared(one, other)) <= 3000 + len('[{"role":"user","content":"')
    assert reach(shared(one, other) + 1) > 3000
    # Equal blocks behind a difference are not equal beginnings.
    assert set(one.chain[shared(one, other) :]).isdisjoint(other.chain)


def test_a_seed_separates_models_tenants_and_keys():
    turns = said("q" * 2000)
    seeds = [
        SEED,
        prompt_seed(KEY, "model", "other"),
        prompt_seed(KEY, "model", None),
        prompt_seed(KEY, "mode", "lsalt"),
        prompt_seed(b"x" * 32, "model", "salt"),
        prompt_seed(KEY + b"5", "model", "salt"),
    ]
    chains = [read(messages=turns, seed=seed).chain for seed in seeds]
    assert len({block for chain in chains for block in chain}) == sum(map(len, chains))


def test_hashes_are_the_same_in_every_process():
    prompt = read(Endpoint.COMPLETIONS, prompt="hello world " * 500)
    assert prompt.size == 6001
    assert prompt.chain[0] == 1077339701329316160
    assert prompt.chain[-1] == 557851926446506431


def test_blocks_are_small_at_first():
    assert [reach(blocks) for blocks in (0, 1, 16, 17, 18)] == [0, FINE, 4096, 4096 + COARSE, 4096 + 2 * COARSE]
    assert [blocks_within(size) for size in (0, 255, 256, 4095, 4096, 5119, 5120)] == [0, 0, 1, 15, 16, 16, 17]
    prompt = read(Endpoint.COMPLETIONS, prompt="x" * 10_000)
    assert len(prompt.chain) == blocks_within(prompt.size)
    assert sum(BLOCK_SIZES[block & 1] for block in prompt.chain) == reach(len(prompt.chain))
    assert all(0 <= block < 1 << HASH_BITS for block in prompt.chain)


def test_a_chain_has_an_end():
    prompt = read(Endpoint.COMPLETIONS, prompt="x" * 6_000_000)
    assert len(prompt.chain) == MAX_BLOCKS
    assert prompt.size == 6_000_001


def test_a_short_or_empty_prompt_has_no_chain():
    assert read(messages=said("hello")).chain == ()
    assert read(messages=said("hello")).size > 5
    assert read(Endpoint.COMPLETIONS) == ((), 0)
    assert read(Endpoint.COMPLETIONS, prompt=None) == ((), 0)


@pytest.mark.parametrize(
    ("endpoint", "payload"),
    [
        (Endpoint.EMBEDDINGS, {"input": ["x" * 5000]}),
        (Endpoint.POOLING, {"input": "x" * 5000}),
        (Endpoint.CLASSIFY, {"input": "x" * 5000}),
        (Endpoint.RERANK, {"query": "q", "documents": ["x" * 5000]}),
        (Endpoint.SCORE, {"text_1": "q", "text_2": "x" * 5000}),
        (Endpoint.SCORE, {"queries": "q", "documents": "x" * 5000}),
    ],
)
def test_inputs_that_seldom_begin_alike_have_only_a_size(endpoint, payload):
    prompt = read(endpoint, **payload)
    assert prompt.chain == ()
    assert 5000 < prompt.size < 5020


def test_what_needs_no_prompt_has_none():
    file = (FormPart("file", b"x" * 9000, "a.wav"),)
    assert read(Endpoint.TRANSCRIPTIONS, parts=file) == ((), 0)
    assert read(Endpoint.TOKENIZE, prompt="x" * 9000) == ((), 0)


def picture(url, **more):
    return [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}, **more}]


def test_a_picture_counts_by_what_it_shows_and_not_by_its_letters():
    def asked(url, detail="auto"):
        part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        return read(messages=[{"role": "user", "content": [part]}, *said("q" * 2000)])

    small, large = asked(PICTURE), asked(PICTURE * 100)
    assert small.size == large.size < 7000
    assert shared(small, large) == 0
    assert asked(PICTURE) == small
    assert shared(asked(PICTURE), asked(PICTURE[:-1] + "p")) == 0


@pytest.mark.parametrize(
    ("endpoint", "payload"),
    [
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": picture(PICTURE)}]}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": PICTURE}]}]}),
        (
            Endpoint.MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": PICTURE}}]}]},
        ),
        (
            Endpoint.MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "content": [{"type": "image", "source": {"data": PICTURE}}]}
                        ],
                    }
                ]
            },
        ),
        (
            Endpoint.RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
        ),
        (
            Endpoint.RESPONSES,
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": PICTURE}]}]},
        ),
    ],
)
def test_media_are_found_wherever_they_may_stand(endpoint, payload):
    assert 4096 < read(endpoint, **payload).size < 4096 + 300


def test_a_mark_that_moves_with_the_newest_message_changes_nothing():
    mark = {"cache_control": {"type": "ephemeral"}}

    def turns(count, marked):
        return [
            {"role": "user", "content": [{"type": "text", "text": "q" * 900, **(mark if place == marked else {})}]}
            for place in range(count)
        ]

    system = [{"type": "text", "text": "be kind", **mark}]
    first = read(Endpoint.MESSAGES, system=system, messages=turns(1, 0))
    assert begins(read(Endpoint.MESSAGES, system=system, messages=turns(3, 2)), first)
    assert read(Endpoint.MESSAGES, messages=turns(1, 0)) == read(Endpoint.MESSAGES, messages=turns(1, None))
    seen, marked = ([{"role": "user", "content": picture(PICTURE, **more)}] for more in ({}, mark))
    assert read(Endpoint.MESSAGES, messages=marked) == read(Endpoint.MESSAGES, messages=seen)
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert read(Endpoint.MESSAGES, tools=tools, messages=turns(1, None)) == read(
        Endpoint.MESSAGES, tools=[{**tools[0], **mark}], messages=turns(1, None)
    )


def test_the_payload_stays_as_it_is():
    mark = {"cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": "x", **mark}, *picture(PICTURE, **mark)]
    payload = {"messages": [{"role": "user", "content": content}, *said("q")]}
    before = repr(payload)
    read(Endpoint.MESSAGES, **payload)
    assert repr(payload) == before


def test_odd_values_do_no_harm():
    deep: object = "x"
    for _ in range(100):
        deep = [{"type": "tool_result", "content": deep}]
    for messages in (
        deep,
        [1, None, "x", [], {}],
        {"type": []},
        [{"type": ["image"]}],
        [{"content": [None, 3]}],
        7,
        "",
    ):
        read(messages=messages, tools={"a": 1})


def made_of(random, count, before=()):
    own = (random.getrandbits(HASH_BITS) for _ in range(len(before), count))
    chain = (*before, *own)
    return Prompt(chain, reach(len(chain)) + 10)


def test_an_anchor_is_the_first_block_that_nobody_holds():
    random = Random(10)
    system = made_of(random, 5)
    one, other = made_of(random, 9, system.chain), made_of(random, 9, system.chain)
    assert anchor(one) == anchor(other) == system.chain[0]
    assert anchor(one, reach(5)) == one.chain[5] != anchor(other, reach(5))
    assert anchor(made_of(random, 20, one.chain), reach(5)) == anchor(one, reach(5))
    assert anchor(one, reach(50)) == one.chain[-1]
    assert anchor(Prompt((), 10)) is None
