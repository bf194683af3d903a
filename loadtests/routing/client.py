"""Sends each request at its time, and measures its first token and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import orjson

from loadtests.fleet import load
from loadtests.routing.place import Endpoint
from loadtests.routing.scenarios import MODEL
from loadtests.routing.traffic import Turn

Ask = Callable[[int, bytes, Callable[[], float]], Awaitable[tuple[float | None, str]]]
"""`load.ask`: sends bytes to a port; the time to first token, and what is wrong with the answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request. Times in seconds: ``at`` from the beginning, ``ttft`` and ``total`` from when it was sent.

    ``late`` is by how much it was sent too late. With an ``error`` the times count for nothing.
    """

    at: float
    ttft: float | None
    total: float
    error: str = ""
    late: float = 0.0


def request(turn: Turn, endpoint: Endpoint) -> bytes:
    """A streamed chat as bytes, with its length of answer and its session."""
    body = orjson.dumps(
        {
            "model": MODEL,
            "messages": [message._asdict() for message in turn.messages],
            "stream": True,
            "max_tokens": turn.output,
            "ignore_eos": True,
        }
    )
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: 127.0.0.1:{endpoint.port}",
        *([f"authorization: Bearer {endpoint.key}"] if endpoint.key else []),
        "content-type: application/json",
        f"x-session-id: {turn.session}",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def play(
    turns: Sequence[Turn],
    endpoint: Endpoint,
    clock: Callable[[], float],
    *,
    ask: Ask = load.ask,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> list[Answered]:
    """Send all; returns in the order of ``turns`` when the last answer has ended, `load.PATIENCE` at most after it."""
    requests = [request(turn, endpoint) for turn in turns]
    begun = clock()

    async def one(turn: Turn, sent: bytes) -> Answered:
        if (wait := begun + turn.at - clock()) > 0:
            await sleep(wait)
        start = clock()
        ttft, error = await ask(endpoint.port, sent, clock)
        return Answered(turn.at, ttft, clock() - start, error, start - begun - turn.at)

    return await asyncio.gather(*(one(turn, sent) for turn, sent in zip(turns, requests, strict=True)))
