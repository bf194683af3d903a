"""A client that sends any bytes, cut anywhere, and reads what comes back: what HTTP libraries refuse to do."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

_READ = 65_536


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One answer. ``headers`` by lower-case name; ``interim`` are the 1xx statuses before it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    interim: tuple[int, ...] = ()

    @property
    def closes(self) -> bool:
        """Whether it says that the connection ends."""
        return self.headers.get("connection", "").lower() == "close"


class RawClient:
    """One connection. ``close`` is idempotent; ``patience`` bounds every wait, in seconds."""

    def __init__(self, address: tuple[str, int], patience: float = 10.0, *, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if receive_buffer is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self._socket.settimeout(patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._patience = patience
        self._buffer = bytearray()
        self._ended = False

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def half_close(self) -> None:
        """Send FIN and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, *segments: bytes) -> bool:
        """Send segments one after the other; ``False`` if the server closed meanwhile."""
        try:
            for segment in segments:
                self._socket.sendall(segment)
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True

    def send_until_answered(self, segments: Iterable[bytes]) -> int:
        """Send segments until one is answered or the server closes; how many bytes were sent."""
        sent = 0
        for segment in segments:
            if self.readable(0.0) or not self.send(segment):
                break
            sent += len(segment)
        return sent

    def readable(self, seconds: float) -> bool:
        """Whether something, the end included, can be read within ``seconds``."""
        return bool(self._buffer) or bool(select.select([self._socket], [], [], seconds)[0])

    def answer(self, *, head_only: bool = False) -> RawAnswer | None:
        """The next answer, ``None`` if the connection ended without one. Raises ``TimeoutError``, and
        ``ConnectionError`` when it ended inside one."""
        interim: list[int] = []
        while True:
            head = self._until(b"\r\n\r\n")
            if head is None:
                return None
            first, *lines = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200:
                break
            interim.append(status)
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b"" if head_only else self._body(headers)
        return RawAnswer(status, headers, body, tuple(interim))

    def head(self) -> bytes | None:
        """The next head alone, for a client that then reads the body as it likes."""
        return self._until(b"\r\n\r\n")

    def some(self) -> bytes:
        """What comes next, empty at the end."""
        if not self._buffer:
            self._receive()
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def rest(self) -> bytes:
        """Everything until the end of the connection. Raises ``TimeoutError`` if it does not end in time."""
        deadline = time.monotonic() + self._patience
        while self._receive():
            if time.monotonic() > deadline:
                raise TimeoutError("the connection has not ended")
        return bytes(self._buffer)

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(self._chunks())
        return self._exactly(int(headers.get("content-length", "0")))

    def _chunks(self) -> Iterable[bytes]:
        while True:
            line = self._until(b"\r\n")
            if line is None:
                raise ConnectionError("the connection ended inside a body")
            size = int(line, 16)
            chunk = self._exactly(size + 2)[:-2]
            if not size:
                return
            yield chunk

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._receive():
                if self._buffer:
                    raise ConnectionError("the connection ended inside an answer")
                return None
        data, _, self._buffer = self._buffer.partition(mark)
        return bytes(data)

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not self._receive():
                raise ConnectionError("the connection ended inside a body")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _receive(self) -> bool:
        if self._ended:
            return False
        try:
            data = self._socket.recv(_READ)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        self._ended = not data
        return bool(data)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """``data`` cut at these places."""
    edges = [0, *sorted(set(places)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
