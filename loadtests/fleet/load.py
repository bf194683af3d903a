"""Streams at a steady rate, whatever becomes of those before: an open loop, so that slow answers are not forgiven.

Each answer is checked to its end. What is measured is the time to the first token: the head of a stream and its first
event come at once, however long the request waits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

import orjson

PATIENCE = 120.0
"""Seconds that an answer may take; then it is an error."""

MOST_AT_ONCE = 500
"""Streams that may be open; one more is an error, not a wait: waiting would close the loop."""

_WORDS = 120
_OUTPUT = 12
_TOKEN = re.compile(rb'"content":"[^"]')
_LONGEST = 1 << 20
_END = b"data: [DONE]\n\n"
_ERROR = b'"error"'


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: when it was to be sent, in seconds from the beginning, and its time to first token or its error.

    ``late`` is by how much it was sent too late: that is the host's doing, or the load's.
    """

    at: float
    ttft: float | None
    error: str = ""
    late: float = 0.0


def schedule(rate: float, seconds: float, seed: int) -> list[float]:
    """When requests are sent: ``rate`` a second, each up to half of its distance to the next early or late."""
    random = Random(seed)
    count = round(rate * seconds)
    return [max(0.0, (number + random.uniform(-0.25, 0.25)) / rate) for number in range(count)]


def request(model: str, key: str, port: int, random: Random) -> bytes:
    """A streamed chat of about 150 tokens that asks for 12; no two have a prefix in common."""
    words = " ".join(f"word{random.randrange(10_000)}" for _ in range(_WORDS))
    body = orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": words}],
            "stream": True,
            "max_tokens": _OUTPUT,
            "ignore_eos": True,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def fault(received: bytes) -> str:
    """What is wrong with a whole answer, as its bytes came; nothing if it is a stream that ended well."""
    if not received:
        return "no answer"
    head, _, body = received.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    if not status.startswith(b"HTTP/1.1 200 "):
        return f"{status[:60]!r}: {body[:200]!r}"
    if _ERROR in received:
        return f"an error event: {received[received.index(_ERROR) :][:200]!r}"
    if _TOKEN.search(received) is None:
        return "the stream has no token"
    return "" if _END in received[-64:] else f"the stream does not end with [DONE]: {received[-80:]!r}"


async def ask(port: int, sent: bytes, clock: Callable[[], float]) -> tuple[float | None, str]:
    """Send one request; its time to first token and what is wrong with its answer."""
    begun, first = clock(), None
    received = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(sent)
                while len(received) < _LONGEST and (piece := await reader.read(65536)):
                    received += piece
                    if first is None and _TOKEN.search(received) is not None:
                        first = clock() - begun
            finally:
                writer.close()
    except TimeoutError:
        return first, f"no end after {PATIENCE:.0f} s"
    except OSError as error:
        return first, f"connection: {error}"
    return first, fault(bytes(received))


async def run(
    times: Sequence[float],
    send: Callable[[], Awaitable[tuple[float | None, str]]],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> list[Sample]:
    """Send at each of these times, in seconds from now; returns when the last answer has ended."""
    begun = clock()
    samples: list[Sample] = []
    open_now: set[asyncio.Task[None]] = set()

    async def one(at: float) -> None:
        late = clock() - begun - at
        ttft, error = await send()
        samples.append(Sample(at, ttft, error, late))

    for at in times:
        if (wait := begun + at - clock()) > 0:
            await sleep(wait)
        if len(open_now) >= MOST_AT_ONCE:
            samples.append(Sample(at, None, f"{MOST_AT_ONCE} streams are open already"))
            continue
        task = asyncio.ensure_future(one(at))
        open_now.add(task)
        task.add_done_callback(open_now.discard)
    if open_now:
        await asyncio.gather(*open_now)
    return sorted(samples, key=lambda sample: sample.at)
