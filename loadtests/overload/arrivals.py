"""From phases and a measured capacity to requests. Pure: a seed decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import orjson

from loadtests.overload.scenarios import MODEL, Phase, Stream
from loadtests.routing.traffic import poisson, words


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it is sent, in seconds from the beginning of its play, whose it is, and its sizes in tokens."""

    at: float
    caller: str
    phase: str
    prompt: int
    output: int
    seed: int
    """Of its words: they are made when it is sent, a flood of long prompts would not fit otherwise."""


def arrivals(random: Random, phases: Sequence[Phase], capacity: float) -> list[Request]:
    """All requests of phases that follow each other, in the order of their times. ``capacity`` is requests a second."""
    made: list[Request] = []
    begin = 0.0
    for phase in phases:
        for stream in phase.streams:
            times = poisson(random, stream.load * capacity, phase.seconds)
            made += [_request(random, stream, phase.name, begin + at) for at in times]
        begin += phase.seconds
    return sorted(made, key=lambda request: request.at)


def unending(random: Random, stream: Stream, phase: str) -> Iterator[Request]:
    """Requests for a closed loop, which come when there is room for them."""
    while True:
        yield _request(random, stream, phase, 0.0)


def _request(random: Random, stream: Stream, phase: str, at: float) -> Request:
    return Request(at, stream.caller, phase, stream.prompt, stream.output.draw(random), random.getrandbits(32))


def groups(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Phases that follow each other at once, apart from those before which engines become idle."""
    grouped: list[list[Phase]] = []
    for phase in phases:
        if phase.settle or not grouped:
            grouped.append([])
        grouped[-1].append(phase)
    return grouped


def encoded(request: Request, port: int, key: str) -> bytes:
    """A streamed chat as bytes; no two have a prefix in common. Without a key none is sent."""
    body = orjson.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": words(Random(request.seed), request.prompt)}],
            "stream": True,
            "max_tokens": request.output,
            "ignore_eos": True,
        }
    )
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        *([f"authorization: Bearer {key}"] if key else []),
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
