"""What of a request an engine's prompt begins with, as a chain of block hashes: what two prompts share. Pure.

Engines keep the KV of prompts by their beginnings, so each hash is over everything before it too: equal hashes mean
equal beginnings. No tokenizer is asked: the bytes hashed are those of the JSON in which the prompt came, in the order
in which chat templates put its members. That is not the engine's text, and need not be: bytes that are equal here make
equal text there. The chain of a conversation's next turn begins with that of this one.

A block has 256 bytes in the first 4 KiB of a prompt and 1,024 behind that: where the whole prompt is short a rest that
is not counted weighs more, and to finish a digest costs as much as to hash 600 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from gateway.model import Endpoint, InferenceRequest
from gateway.wire.json import dump

FINE, COARSE = 256, 1024
BLOCK_SIZES = (FINE, COARSE)
"""Bytes in one of a prompt's first blocks, and in one of those behind them: by the last bit of the block's hash."""

HASH_BITS = 60
"""Python keeps so many in two digits: 32 bytes for each number, 48 with four bits more."""

MAX_BLOCKS = 4096
"""Blocks in a chain at most, 4 MiB of prompt; what is behind them is taken to be new each time."""

_FINE_BLOCKS = 16
_FINE_REACH = _FINE_BLOCKS * FINE
_FINE_ENDS = tuple(range(FINE, _FINE_REACH + 1, FINE))
_REACH = _FINE_REACH + (MAX_BLOCKS - _FINE_BLOCKS) * COARSE

# The first eight of a digest's 32 octets, in the same order on every machine.
_NUMBERS = Struct("<Q24x").iter_unpack
_SPARE_BITS = 64 - HASH_BITS

# The members that the prompt is made of, in its order. The last one is what grows from turn to turn.
_CHAINED: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: ("tools", "messages"),
        Endpoint.COMPLETIONS: ("prompt",),
        Endpoint.RESPONSES: ("instructions", "tools", "input"),
        Endpoint.MESSAGES: ("system", "tools", "messages"),
    }
)
# Those of endpoints whose inputs seldom begin alike: only their size counts.
_COUNTED: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.EMBEDDINGS: ("input",),
        Endpoint.POOLING: ("input",),
        Endpoint.CLASSIFY: ("input",),
        Endpoint.RERANK: ("query", "documents"),
        Endpoint.SCORE: ("text_1", "text_2", "queries", "documents"),
    }
)

# Parts that become tokens by what they show, not by their letters.
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video_url", "document", "file"}
)
# A picture becomes about a thousand tokens (576 to 1,500 in the usual models), a digest of 64 letters far fewer.
_MEDIA_REPEATS = 64
# Where Anthropic's clients say what to keep. They move it to the newest message each turn; engines ignore it.
_MARK = "cache_control"
_NESTED = ("content", "output")
_LEVELS = 4  # a message, its parts, what a tool answered, and its parts


class Prompt(NamedTuple):
    """How a prompt begins, and its ``size`` in bytes.

    ``chain`` has a hash for each whole block, over that and all before it; ``reach`` says how many bytes they are.
    """

    chain: tuple[int, ...]
    size: int


def reach(blocks: int) -> int:
    """Bytes in the first so many blocks of a chain."""
    return blocks * FINE if blocks <= _FINE_BLOCKS else _FINE_REACH + (blocks - _FINE_BLOCKS) * COARSE


def blocks_within(size: int) -> int:
    """How many whole blocks of a chain so many bytes hold."""
    return size // FINE if size < _FINE_REACH else _FINE_BLOCKS + (size - _FINE_REACH) // COARSE


def left_of(prompt: Prompt, held: int) -> float:
    """Bytes of a prompt that are to be computed where so many are known to be held: what two prompts share ends within
    a block, and only those before it are known, so that on average half a block more is held."""
    if held <= 0:
        return float(prompt.size)
    return max(prompt.size - held - (FINE if held < _FINE_REACH else COARSE) / 2, 0.0)


def anchor(prompt: Prompt, held: int = 0) -> int | None:
    """What to break a tie by: a number that is the same wherever the same beginning is known.

    It is the hash of the first block behind the ``held`` bytes that some replica holds: what is common to many prompts
    is soon held, and must not draw them all to one place. ``None`` where there is no whole block.
    """
    chain = prompt.chain
    if not chain:
        return None
    place = blocks_within(held) if held else 0
    return chain[place] if place < len(chain) else chain[-1]


class Seed(Protocol):
    """A hash that has taken in what separates prompts; it is copied for each of them."""

    def copy(self) -> Any:
        """One that goes on from there."""
        ...


def prompt_seed(key: bytes, model: str, salt: str | None) -> Seed:
    """What separates prompts that share nothing in an engine: those of two models, and of two tenants by their salt.

    ``salt`` is ``None`` where tenants share prefix caches. ``key`` is a secret that all instances have: without it
    nobody can make prompts whose hashes meet, nor learn a prompt from its hashes.
    """
    name, apart = model.encode(), b"" if salt is None else salt.encode()
    return sha256(b"prefix 1 %d:%b%d:%b%b" % (len(key), key, len(name), name, apart))


def read_prompt(request: InferenceRequest, seed: Seed) -> Prompt:
    """The prompt of a request whose body was judged; ``seed`` as ``prompt_seed`` makes it.

    Only generation has a chain. A form has neither chain nor size: audio is not text.
    """
    members = _CHAINED.get(request.route.endpoint)
    if members is None:
        return Prompt((), sum(map(len, _pieces(request.payload, _COUNTED.get(request.route.endpoint, ())))))
    pieces = _pieces(request.payload, members)
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    # Without what closes the last list or text, where the next turn goes on.
    size = max(len(data) - 1, 0)
    return Prompt(_chain(data, size, seed), size)


def _pieces(payload: Mapping[str, Any], members: tuple[str, ...]) -> list[bytes]:
    found = []
    for name in members:
        value = payload.get(name)
        if value is not None:
            found.append(dump(_shown(value, _LEVELS) if type(value) is list else value))
    return found


def _chain(data: bytes, size: int, seed: Seed) -> tuple[int, ...]:
    if size < FINE:
        return ()
    whole = seed.copy()
    update, digest = whole.update, whole.digest
    digests, start = [], 0
    for end in _FINE_ENDS[: size // FINE]:
        update(data[start:end])
        digests.append(digest())
        start = end
    fine = tuple([number >> _SPARE_BITS & ~1 for (number,) in _NUMBERS(b"".join(digests))])
    if size < _FINE_REACH + COARSE:
        return fine
    digests.clear()
    for end in range(_FINE_REACH + COARSE, min(size, _REACH) + 1, COARSE):
        update(data[start:end])
        digests.append(digest())
        start = end
    return (*fine, *[number >> _SPARE_BITS | 1 for (number,) in _NUMBERS(b"".join(digests))])


def _shown(items: list[Any], levels: int) -> list[Any]:
    """Items as far as an engine's prompt shows them: media by their digest, and without marks for a cache.

    The same list where nothing has to change, which is nearly always.
    """
    changed: list[Any] | None = None
    for place, item in enumerate(items):
        # What is left is a plain message, whose content is a text.
        if type(item) is dict and (type(item.get("content")) is list or "type" in item or _MARK in item):
            shown = _shown_item(item, levels)
            if shown is not item:
                changed = items.copy() if changed is None else changed
                changed[place] = shown
    return items if changed is None else changed


def _shown_item(item: dict[str, Any], levels: int) -> dict[str, Any]:
    kind = item.get("type")
    if type(kind) is str and kind in _MEDIA:
        return {"type": kind, "media": sha256(dump(_unmarked(item))).hexdigest() * _MEDIA_REPEATS}
    shown = _unmarked(item)
    for name in _NESTED:
        inner = shown.get(name)
        if levels > 1 and type(inner) is list:
            told = _shown(inner, levels - 1)
            if told is not inner:
                shown = {**shown, name: told}
    return shown


def _unmarked(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != _MARK} if _MARK in item else item
