"""What a connection remembers of the head it judged last. Pure.

A client's requests on one connection differ in little but their bodies, and judging a head is a tenth of what a request
costs. What was learned serves the very same head only: method, target, version and every header must be equal, the
value of content-length apart, which the parser judges each time.
"""

from __future__ import annotations

from gateway.wire.inbound import Inbound

_LENGTH = b"content-length"


class Kept:
    """A head that was judged, and what was learned from it (``value``)."""

    __slots__ = ("_count", "_head", "_method", "_target", "_version", "value")

    def __init__(self, exchange: Inbound, value: object) -> None:
        self._method, self._target, self._version = exchange.method, exchange.target, exchange.version
        self._head = dict(exchange.head)
        self._count = len(exchange.headers)
        self.value = value

    def matches(self, exchange: Inbound, head: dict[bytes, bytes]) -> bool:
        """Whether the head is the same, the value of content-length apart; one with a repeated header never is."""
        mine = self._head
        if _LENGTH in mine:
            mine[_LENGTH] = head.get(_LENGTH, b"")
        return (
            mine == head
            and self._count == len(exchange.headers) == len(head)
            and self._target == exchange.target
            and self._method == exchange.method
            and self._version == exchange.version
        )
