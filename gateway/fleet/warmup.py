"""What a warmup sends, and when it has settled. Pure.

A fresh engine's first request of each shape may take sixty times as long as the next one: kernels are compiled, graphs
are captured, caches are cold. So requests go out in the shapes that production has, several at once as in production,
round after round, until the time to the first token no longer changes.

Prompts are token ids, so that their length is exact without a tokenizer. They are drawn anew for each request, so that
no prefix cache answers in the model's place. Read in the sources of SGLang, TensorRT-LLM and llama.cpp (2026) and
captured from vLLM and SGLang: all four take a list of ids as ``prompt``, and ``ignore_eos`` beside it. Only vLLM and
SGLang know ``cache_salt``; TensorRT-LLM refuses any field that it does not know.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from gateway.policy.fleet import Shape, Warmup

NOISE = 0.02  # seconds: times that differ by no more count as equal, whatever their ratio
MARGIN = 8  # tokens left free at the end of the context, for what an engine adds on its own
# The context is the engine's own word, and a prompt is held in memory: four bytes a token, for each request in flight.
MAX_PROMPT = 1 << 20

# Every vocabulary has these ids. Lower ones are the single bytes of a byte-level vocabulary and, in others, marks that
# begin, end or mask a text.
_FIRST_ID = 256
_PIECE = 4096
_IDS = tuple(b"%d" % number for number in range(_FIRST_ID, _FIRST_ID + 256))


class Kind(StrEnum):
    """What kind of inference a model answers. In the order in which the routes are tried."""

    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    POOLING = "pooling"
    CLASSIFICATION = "classification"
    SCORES = "scores"


class Call(NamedTuple):
    """One inference to send: a path, a JSON body, and whether events are to come back."""

    path: str
    body: bytes
    stream: bool


class Size(NamedTuple):
    """Tokens of a prompt and of its answer."""

    prompt: int
    output: int


class Meaning(StrEnum):
    """What a refused inference says: of the route, of this prompt, or of the engine."""

    ROUTE = "the model has no such route"
    SHAPE = "the prompt is not taken"
    ENGINE = "the engine fails"


# 501 is llama.cpp's word for a route that its launch flags exclude.
_MEANINGS: Mapping[int, Meaning] = MappingProxyType(
    {
        404: Meaning.ROUTE,
        405: Meaning.ROUTE,
        501: Meaning.ROUTE,
        400: Meaning.SHAPE,
        413: Meaning.SHAPE,
        422: Meaning.SHAPE,
    }
)


def judge(status: int, *, other_kind: bool) -> Meaning:
    """What an error status means. ``other_kind``: the engine said that its model is not of the kind that was asked."""
    return Meaning.ROUTE if other_kind else _MEANINGS.get(status, Meaning.ENGINE)


# --- bodies


def _generation(model: str, size: Size, salt: str | None, random: Random) -> bytes:
    fields = {"model": model, "max_tokens": size.output, "ignore_eos": True, "temperature": 0, "stream": True}
    return _body(fields, salt, b"prompt", _token_ids(size.prompt, random))


def _pooling(model: str, size: Size, salt: str | None, random: Random) -> bytes:
    return _body({"model": model}, salt, b"input", _token_ids(size.prompt, random))


def _scoring(model: str, size: Size, salt: str | None, random: Random) -> bytes:
    """The one interface that takes texts alone. A number of three figures and its space are four tokens at most."""
    texts = [_token_ids(max(1, size.prompt // 8), random).replace(b",", b" ").decode() for _ in range(2)]
    return _body({"model": model, "text_1": texts[0], "text_2": texts[1]}, salt)


def _body(fields: Mapping[str, Any], salt: str | None, member: bytes = b"", ids: bytes = b"") -> bytes:
    """JSON, with the ids put in as bytes: drawing and writing them number by number takes ten times as long."""
    body = orjson.dumps({**fields, "cache_salt": salt} if salt else fields)
    return b'%b,"%b":[%b]}' % (body[:-1], member, ids) if member else body


def _token_ids(count: int, random: Random) -> bytes:
    """Ids with commas between, piece by piece: one long join in a thread would keep the event loop from running."""
    pieces = (min(_PIECE, count - start) for start in range(0, count, _PIECE))
    return b",".join([b",".join(map(_IDS.__getitem__, random.randbytes(piece))) for piece in pieces])


class _Route(NamedTuple):
    path: str
    write: Callable[[str, Size, str | None, Random], bytes]
    generates: bool = False


_ROUTES: Mapping[Kind, _Route] = MappingProxyType(
    {
        Kind.COMPLETIONS: _Route("/v1/completions", _generation, generates=True),
        Kind.EMBEDDINGS: _Route("/v1/embeddings", _pooling),
        Kind.POOLING: _Route("/pooling", _pooling),
        Kind.CLASSIFICATION: _Route("/classify", _pooling),
        Kind.SCORES: _Route("/v1/score", _scoring),
    }
)


def call(kind: Kind, model: str, size: Size, *, salt: str | None, random: Random) -> Call:
    """One inference of this size. ``salt`` keeps it apart from everybody's prefix cache, where the engine takes one."""
    route = _ROUTES[kind]
    return Call(route.path, route.write(model, size, salt, random), route.generates)


# --- rounds


def sizes(shapes: Iterable[Shape], kind: Kind, max_model_len: int | None) -> Mapping[int, Size]:
    """The sizes of the shapes that this model can be asked, by the shape's place in policy.

    Shapes by a share of the context need to know it. Prompt and answer together stay ``MARGIN`` below it; what does not
    fit becomes shorter, and a context with no room for one token of each is asked nothing.
    """
    found: dict[int, Size] = {}
    for index, shape in enumerate(shapes):
        size = _size(shape, _ROUTES[kind].generates, max_model_len)
        if size is not None:
            found[index] = size
    return MappingProxyType(found)


def _size(shape: Shape, generates: bool, max_model_len: int | None) -> Size | None:
    output = max(1, shape.output) if generates else 0
    if max_model_len is None:
        return None if shape.context else Size(min(max(1, shape.prompt), MAX_PROMPT), output)
    room = max_model_len - MARGIN
    output = min(output, room - 1)
    wanted = math.floor(shape.context * max_model_len) if shape.context else shape.prompt
    prompt = min(max(1, wanted), room - output, MAX_PROMPT)
    return Size(prompt, output) if prompt >= 1 and output >= int(generates) else None


def calls(
    warmup: Warmup,
    kind: Kind,
    model: str,
    max_model_len: int | None,
    *,
    salt: str | None,
    random: Random,
    without: Collection[int] = (),
) -> tuple[tuple[int, Call], ...]:
    """One round: each shape ``concurrency`` times, with its place in policy. ``without`` names shapes to leave out.

    Takes some tens of milliseconds for each hundred thousand tokens, and may be done in a thread.
    """
    return tuple(
        (index, call(kind, model, size, salt=salt, random=random))
        for index, size in sizes(warmup.shapes, kind, max_model_len).items()
        if index not in without
        for _ in range(warmup.concurrency)
    )


# --- whether first tokens have settled


class Settling:
    """First-token times by shape, round by round.

    A shape's time in a round is its slowest request's: that one has met the kernel that was not compiled yet. It has
    settled when ``rounds`` rounds in a row stayed within ``ratio``, or within ``NOISE``, of each other and of the round
    before them; so a time that keeps improving has not. They are not compared with the best time ever seen: an engine
    that others load meanwhile counts as settled at the speed that it then has.
    """

    def __init__(self, warmup: Warmup) -> None:
        self._ratio = warmup.ratio
        self._compared = warmup.rounds + 1
        self._first: list[float | None] = [None] * len(warmup.shapes)
        self._last: list[deque[float]] = [deque(maxlen=self._compared) for _ in warmup.shapes]
        self._dropped: set[int] = set()

    def round(self, first_tokens: Sequence[Sequence[float]]) -> None:
        """What one round measured, in seconds, by the shape's place in policy; nothing for one that got no answer."""
        for index, times in enumerate(first_tokens):
            if times:
                slowest = max(times)
                self._last[index].append(slowest)
                if self._first[index] is None:
                    self._first[index] = slowest

    def drop(self, shape: int) -> None:
        """Leave a shape out from here on: it need not settle."""
        self._dropped.add(shape)

    @property
    def dropped(self) -> Collection[int]:
        """The shapes that are left out."""
        return self._dropped

    @property
    def open(self) -> bool:
        """Whether some shape is not left out."""
        return len(self._dropped) < len(self._last)

    @property
    def settled(self) -> bool:
        """Whether every shape that is not left out has settled, and there is one."""
        return self.open and all(map(self._steady, self._kept()))

    def _kept(self) -> list[int]:
        return [index for index in range(len(self._last)) if index not in self._dropped]

    def _steady(self, shape: int) -> bool:
        times = self._last[shape]
        if len(times) < self._compared:
            return False
        low, high = min(times), max(times)
        return high - low <= NOISE or high <= low * self._ratio

    def describe(self) -> str:
        """The times of the shape that tells most: one that has not settled, else the one that was slowest at first."""
        measured = [index for index in self._kept() if self._first[index] is not None]
        if not measured:
            return "no first token was seen"
        shape = max(measured, key=lambda index: (not self._steady(index), self._first[index] or 0.0))
        first, times = self._first[shape] or 0.0, self._last[shape]
        low, high = _seconds(min(times)), _seconds(max(times))
        last = f"{high} s" if low == high else f"{low} to {high} s"
        rounds = f"{len(times)} rounds" if len(times) > 1 else "round"
        which = f" (shape {shape + 1} of {len(self._last)})" if len(self._last) > 1 else ""
        return f"first token {_seconds(first)} s at first, {last} in the last {rounds}{which}"


def _seconds(time: float) -> str:
    return f"{time:.0f}" if time >= 10 else f"{time:.1f}" if time >= 1 else f"{time:.3f}"
