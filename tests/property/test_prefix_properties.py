"""Prompts and who holds them, under any requests, rooms and orders of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.balance.prefixes import PrefixTable
from gateway.fleet.balance.prompt import (
    BLOCK_SIZES,
    HASH_BITS,
    MAX_BLOCKS,
    Prompt,
    blocks_within,
    prompt_seed,
    reach,
    read_prompt,
)
from gateway.model import BodyKind, Endpoint, InferenceRequest, Route

STEADY = settings(deadline=None, derandomize=True)
FEWER = settings(STEADY, max_examples=40)

SEED = prompt_seed(b"k" * 32, "model", None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=400),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "type", "content", "text", "output", "cache_control", "image_url", "x"])
            | st.text(max_size=3),
            inner | st.sampled_from(["image", "image_url", "text", "tool_result"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=900) | st.lists(VALUES)}
    ),
    min_size=1,
    max_size=6,
)


def read(endpoint, payload, seed=SEED):
    return read_prompt(InferenceRequest(Route("POST", "/x", endpoint, BodyKind.JSON), "a", payload), seed)


@STEADY
@given(
    endpoint=st.sampled_from(sorted(Endpoint)),
    payload=st.dictionaries(
        st.sampled_from(["messages", "tools", "system", "input", "instructions", "prompt", "documents"]), VALUES
    ),
)
def test_any_payload_has_a_prompt(endpoint, payload):
    prompt = read(endpoint, payload)
    assert len(prompt.chain) in {0, blocks_within(prompt.size)}
    assert len(prompt.chain) <= MAX_BLOCKS
    assert len(set(prompt.chain)) == len(prompt.chain)
    assert [BLOCK_SIZES[block & 1] for block in prompt.chain] == [
        reach(place + 1) - reach(place) for place in range(len(prompt.chain))
    ]
    assert all(block < 1 << HASH_BITS for block in prompt.chain)
    assert read(endpoint, payload) == prompt


@FEWER
@given(messages=MESSAGES, more=MESSAGES, tools=VALUES)
def test_a_longer_conversation_begins_with_the_shorter(messages, more, tools):
    fixed = {"tools": tools, "system": "be kind", "instructions": "be kind"}
    for endpoint, member in (
        (Endpoint.CHAT, "messages"),
        (Endpoint.MESSAGES, "messages"),
        (Endpoint.RESPONSES, "input"),
        (Endpoint.COMPLETIONS, "prompt"),
    ):
        first = read(endpoint, {**fixed, member: messages})
        later = read(endpoint, {**fixed, member: messages + more})
        assert later.chain[: len(first.chain)] == first.chain
        assert later.size > first.size


@STEADY
@given(text=st.text(min_size=300, max_size=3000), keys=st.lists(st.binary(max_size=80), unique=True, max_size=4))
def test_prompts_of_different_seeds_share_nothing(text, keys):
    chains = [read(Endpoint.COMPLETIONS, {"prompt": text}, prompt_seed(key, "model", None)).chain for key in keys]
    assert len({block for chain in chains for block in chain}) == sum(map(len, chains))


@STEADY
@given(size=st.integers(0, 10**8))
def test_blocks_and_bytes_fit_each_other(size):
    blocks = blocks_within(size)
    assert reach(blocks) <= size < reach(blocks + 1)
    assert blocks_within(reach(blocks)) == blocks


class PlainIndex:
    """The same rules with sets of blocks, each block looked at: what one replica of the table should hold."""

    def __init__(self, room):
        self.room = room
        self.generations = [[]]
        self.fresh = [0]

    def all(self):
        return {block for generation in self.generations for block in generation}

    def size(self, blocks):
        return sum(BLOCK_SIZES[block & 1] for block in blocks)

    def held(self, chain):
        known, count = self.all(), 0
        while count < len(chain) and chain[count] in known:
            count += 1
        return reach(count)

    def note(self, chain):
        chain = chain[: blocks_within(self.room)]
        fresh = set(chain) - self.all()
        full = self.size({*self.generations[-1], *chain}) > self.room
        if fresh and self.generations[-1] and (full or self.fresh[-1] * 6 >= self.room):
            if len(self.generations) == 8:
                del self.generations[0], self.fresh[0]
            self.generations.append([])
            self.fresh.append(0)
        self.fresh[-1] += self.size(set(chain) - self.all())
        self.generations[-1] += [block for block in chain if block not in self.generations[-1]]
        self.shed(self.room)

    def shed(self, room):
        while self.size(self.all()) > room:
            self.generations[0].pop()
            if not self.generations[0] and len(self.generations) > 1:
                del self.generations[0], self.fresh[0]

    def resize(self, room):
        self.room = room
        self.shed(room)

    def forget(self):
        self.shed(0)


def chain_of(path, length):
    """A chain that goes a way through a tree: equal paths, as far as they go, are equal beginnings."""
    found, before = [], 1
    for place in range(length):
        before = (before * 6364136223846793005 + path[min(place // 4, len(path) - 1)] + 1) % (1 << HASH_BITS)
        found.append(before & ~1 | (place >= 16))
    return tuple(found)


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
CHAINS = st.builds(chain_of, PATHS, st.integers(1, 24))
ROOMS = st.integers(0, 40).map(lambda blocks: blocks * 512)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, 2), CHAINS),
        st.tuples(st.just("note"), st.integers(0, 2), CHAINS),
        st.tuples(st.just("note"), st.integers(0, 2), CHAINS),
        st.tuples(st.just("resize"), st.integers(0, 2), ROOMS),
        st.tuples(st.just("forget"), st.integers(0, 2), st.none()),
    ),
    max_size=60,
)


@STEADY
@given(rooms=st.tuples(ROOMS, ROOMS, ROOMS), events=EVENTS, asked=st.lists(CHAINS, min_size=1, max_size=4))
def test_a_table_is_what_plain_sets_are(rooms, events, asked):
    table = PrefixTable()
    indexes = [table.open(f"r{place}", room) for place, room in enumerate(rooms)]
    plain = [PlainIndex(room) for room in rooms]
    for what, place, value in events:
        chain = value if what == "note" else None
        for index, given_value in (
            (indexes[place], value if chain is None else Prompt(value, reach(len(value)))),
            (plain[place], value),
        ):
            getattr(index, what)(*(() if value is None else (given_value,)))
        if chain is not None:
            whole = reach(len(chain[: blocks_within(plain[place].room)]))
            assert indexes[place].held(Prompt(chain, reach(len(chain)))) == whole
        assert indexes[place].size <= max(plain[place].room, 0)
        assert len(table) == len(set.union(*(model.all() for model in plain)))
        for each in asked:
            prompt = Prompt(each, reach(len(each)) + 7)
            expected = {f"r{number}": model.held(each) for number, model in enumerate(plain) if model.held(each)}
            assert table.held_by_all(prompt) == expected
            assert [index.held(prompt) for index in indexes] == [model.held(each) for model in plain]
            assert all(count <= prompt.size for count in expected.values())
    for index, model in zip(indexes, plain, strict=True):
        assert index.size == model.size(model.all())
        index.close()
    assert len(table) == 0
