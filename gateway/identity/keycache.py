"""What a key ring remembers: principals by the hash of their key, and which hashes belong to no key. Both bounded."""

from __future__ import annotations

import hmac
import math
from collections import OrderedDict

from gateway.model import Principal
from gateway.recent import keep


class KeyCache:
    """The principals used last, by the keyed hash (mark) of the key shown. Can forget all marks of one principal."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, tuple[bytes, Principal]] = OrderedDict()
        self._marks: dict[str, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, mark: bytes) -> Principal | None:
        """The principal with that mark."""
        entry = self._entries.get(mark)
        if entry is None:
            return None
        self._entries.move_to_end(mark)
        kept, principal = entry
        return principal if hmac.compare_digest(kept, mark) else None

    def keep(self, mark: bytes, principal: Principal) -> None:
        """Remember a principal; the one that was not used for longest makes room."""
        self.forget(mark)
        self._entries[mark] = mark, principal
        self._marks[principal.id] = (*self._marks.get(principal.id, ()), mark)
        if len(self._entries) > self._capacity:
            self.forget(next(iter(self._entries)))

    def forget(self, mark: bytes) -> None:
        """Forget one mark."""
        entry = self._entries.pop(mark, None)
        if entry is None:
            return
        principal = entry[1]
        left = tuple(other for other in self._marks.pop(principal.id) if other != mark)
        if left:
            self._marks[principal.id] = left

    def forget_principal(self, principal_id: str) -> None:
        """Forget every mark of a principal."""
        for mark in self._marks.pop(principal_id, ()):
            del self._entries[mark]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._marks.clear()


class UnknownKeys:
    """Marks that belong to no live key, each until a time of its own."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def holds(self, mark: bytes, now: float) -> bool:
        """Whether the mark is known to be no good at ``now``."""
        return self._until.get(mark, -math.inf) > now

    def keep(self, mark: bytes, until: float) -> None:
        """Remember a mark until a time; the one that was noted first makes room."""
        keep(self._until, mark, until, self._capacity)

    def clear(self) -> None:
        """Forget everything."""
        self._until.clear()
