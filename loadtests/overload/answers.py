"""What one attempt got: an answer, a refusal, or nothing before its client left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from loadtests.fleet import load

SERVED = ""
GAVE_UP = "gave up"
"""The client left: no first token within its patience."""

WRONG = "wrong"
"""Neither an answer to its end nor a refusal that says to come again."""

REFUSALS = frozenset({429, 503})

_FIRST = re.compile(rb'"content":"[^"]')
_CODE = re.compile(rb'"code": ?"([a-z_]{1,40})"')
_RETRY_AFTER = re.compile(rb"\r\nretry-after: ?([0-9]{1,6})\r\n", re.IGNORECASE)
_QUEUED = re.compile(rb"\r\nx-gateway-queue-ms: ?([0-9]{1,9}(?:\.[0-9]{1,6})?)\r\n", re.IGNORECASE)
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Heard:
    """``outcome`` is `SERVED`, `GAVE_UP`, `WRONG`, or the code with which it was refused.

    Seconds: ``ttft`` to the first token; ``queued`` as the head said; ``retry_after`` as a refusal said.
    ``tokens`` came in events. ``error`` is what was wrong.
    """

    outcome: str = SERVED
    ttft: float | None = None
    tokens: int = 0
    queued: float | None = None
    retry_after: float | None = None
    error: str = ""


def judge(received: bytes, ttft: float | None) -> Heard:
    """What a whole answer is, as its bytes came."""
    head, _, body = received.partition(b"\r\n\r\n")
    status = _status(head)
    if status in REFUSALS:
        return Heard(_code(status, body), retry_after=_figure(_RETRY_AFTER, head))
    if error := load.fault(received):
        return Heard(WRONG, ttft, error=error)
    queued = _figure(_QUEUED, head)
    return Heard(SERVED, ttft, len(_FIRST.findall(body)), None if queued is None else queued / 1000)


def _status(head: bytes) -> int:
    parts = head[:16].split(b" ")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def _code(status: int, body: bytes) -> str:
    found = _CODE.search(body)
    return found[1].decode() if found else f"status {status}"


def _figure(pattern: re.Pattern[bytes], head: bytes) -> float | None:
    found = pattern.search(head + b"\r\n")
    return float(found[1]) if found else None


async def ask(
    port: int, sent: bytes, clock: Callable[[], float], patience: float, longest: float = load.PATIENCE
) -> Heard:
    """Send one request over a connection of its own.

    The client leaves after ``patience`` seconds without a first token; an answer that takes ``longest`` is wrong.
    """
    begun, first = clock(), None
    received = bytearray()
    try:
        async with asyncio.timeout(patience) as limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(sent)
                while len(received) < _LONGEST and (piece := await reader.read(65536)):
                    received += piece
                    if first is None and _FIRST.search(received) is not None:
                        first = clock() - begun
                        limit.reschedule(asyncio.get_running_loop().time() + longest)
            finally:
                writer.close()
    except TimeoutError:
        return Heard(GAVE_UP) if first is None else Heard(WRONG, first, error=f"no end after {longest:.0f} s")
    except OSError as error:
        return Heard(WRONG, first, error=f"connection: {error}")
    return judge(bytes(received), first)
