"""A raw HTTP client for tests: it shows every byte, every chunk, and how a connection ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType

EOF, RESET, OPEN = "eof", "reset", "open"
"""How a connection stands: closed in order, reset, or still open when the deadline came."""


@dataclass(slots=True)
class Answer:
    """What came back. `body` is without chunk framing; `complete` says whether the framing came to its end."""

    head: bytes = b""
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: str) -> str | None:
        """The first value of a header, or None."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return None


def take_answer(data: bytes) -> tuple[Answer, bytes]:
    """Read one answer from the beginning of `data`; also what follows it. Informational answers are skipped."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return Answer(), data
    answer = Answer(head + found)
    if answer.head.startswith(b"HTTP/1.1 1"):
        return take_answer(rest)
    if answer.header("transfer-encoding") == "chunked":
        return _take_chunks(answer, rest)
    length = int(answer.header("content-length") or 0)
    answer.body = rest[:length]
    answer.complete = len(rest) >= length
    return answer, rest[length:]


def _take_chunks(answer: Answer, rest: bytes) -> tuple[Answer, bytes]:
    while True:
        size, found, after = rest.partition(b"\r\n")
        if not found:
            return answer, rest
        length = int(size, 16)
        if len(after) < length + 2:
            return answer, rest
        if length == 0:
            answer.complete = True
            return answer, after[2:]
        answer.chunks.append(after[:length])
        answer.body += after[:length]
        rest = after[length + 2 :]


class WireClient:
    """One connection. Use as an async context manager; `received` holds all bytes so far, `reads` each read of them."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.received = b""
        self.reads: list[bytes] = []
        self.state = OPEN

    async def __aenter__(self) -> WireClient:
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def send(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)

    def half_close(self) -> None:
        """Send FIN and keep reading."""
        if self._writer is not None:
            self._writer.write_eof()

    def close(self) -> None:
        """Close at once."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def read_some(self, seconds: float = 3.0) -> bytes:
        """The next bytes; b"" when the connection ended or nothing came in time, and then `state` says which."""
        if self._reader is None:
            return b""
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 20), seconds)
        except TimeoutError:
            return b""
        except ConnectionResetError:
            self.state = RESET
            return b""
        if not data:
            self.state = EOF
        self.received += data
        self.reads.append(data)
        return data

    async def read_until(self, mark: bytes, seconds: float = 3.0) -> bytes:
        """Read until `mark` has come; all bytes so far. Ends early with the connection or the deadline."""
        while mark not in self.received and await self.read_some(seconds):
            pass
        return self.received

    async def read_to_end(self, seconds: float = 3.0) -> bytes:
        """Read until the connection ends, or until nothing came for `seconds`."""
        while await self.read_some(seconds):
            pass
        return self.received

    async def answer(self, seconds: float = 3.0) -> Answer:
        """The next answer, complete unless the connection or the time ended first; it is taken off `received`."""
        while True:
            answer, rest = take_answer(self.received)
            if answer.complete:
                self.received = rest
                return answer
            if not await self.read_some(seconds):
                return answer


async def ask(port: int, request: bytes, seconds: float = 3.0) -> Answer:
    """Send one raw request on a connection of its own."""
    async with WireClient(port) as client:
        client.send(request)
        return await client.answer(seconds)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A POST of JSON as raw bytes."""
    lines = [f"POST {path} HTTP/1.1", "host: engine", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    """A GET as raw bytes."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: engine", *headers, "", ""]).encode()
