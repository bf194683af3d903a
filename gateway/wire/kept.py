"""What a connection remembers of the head it judged last. Pure.

A client's requests on one connection differ in little but their bodies, and parsing and judging a head is a sixth of
what a request costs. What was learned serves the very same head only.
"""

from __future__ import annotations

from gateway.wire.inbound import Inbound
from gateway.wire.samehead import LENGTH, MORE_DIGITS, SameHead, around_length, opening_of


class Kept(SameHead):
    """A head that was judged, and what was learned from it (``value``)."""

    __slots__ = ("_headers", "_method", "_place", "_target", "_version", "head", "value")

    def __init__(self, exchange: Inbound, before: bytes, behind: bytes, value: object) -> None:
        super().__init__(before, behind)
        self._method, self._target, self._version = exchange.method, exchange.target, exchange.version
        self._headers = list(exchange.headers)
        self._place = [name for name, _ in exchange.headers].index(LENGTH)
        self.head = dict(exchange.head)
        self.value = value

    def lend(self, exchange: Inbound) -> None:
        """Give an exchange this head, with the newest length."""
        self.head[LENGTH] = digits = self.digits
        self._headers[self._place] = (LENGTH, digits)
        exchange.method, exchange.target, exchange.version = self._method, self._target, self._version
        exchange.head, exchange.headers, exchange.familiar = self.head, self._headers, self.value
        exchange.owed = self.length


class Memory:
    """One for a connection, whose heads may have ``head_bytes``."""

    __slots__ = ("_head_bytes", "_kept", "_opening")

    def __init__(self, head_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._kept: Kept | None = None
        self._opening = b""

    def body_at(self, data: bytes) -> int:
        """Where the body begins in bytes that begin with the kept head; 0 if they do not."""
        return 0 if self._kept is None else self._kept.body_at(data)

    def lend(self, exchange: Inbound) -> None:
        """Give an exchange the head that ``body_at`` has just found, and with it the length of its body."""
        if self._kept is not None:
            self._kept.lend(exchange)

    def note(self, exchange: Inbound | None, data: bytes) -> None:
        """A request has begun with ``data``; ``exchange`` is there if that was all of its head.

        Remember it for ``keep``, if it is known to its last byte.
        """
        opening = b"" if exchange is None else opening_of(data, exchange.received)
        self._opening = opening if len(opening) + MORE_DIGITS <= self._head_bytes else b""

    def keep(self, exchange: Inbound, value: object) -> None:
        """Keep a value for the next exchange with this one's head, unless that does not say how long its body is."""
        if self._kept is not None and self._kept.head is exchange.head:
            self._kept.value = value
            return
        around = around_length(self._opening)
        self._kept = None if around is None else Kept(exchange, *around, value)
