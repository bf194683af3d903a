"""The KV cache as a pool of blocks, with prefix sharing by block hash. Pure bookkeeping: no time, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Counts who holds which blocks.

    A block is private (one holder, content unknown to others), shared (known by its hash, one or more holders), or
    cached (known by its hash, no holder): a cached block counts as free and is dropped, oldest first, when one is
    needed. Invariant: private + shared + cached <= capacity.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._private = 0
        self._shared: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self._private + len(self._shared)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def matching(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt are here."""
        count = 0
        for block in hashes:
            if block not in self._shared and block not in self._cached:
                break
            count += 1
        return count

    def copy(self) -> BlockPool:
        """An equal pool that goes its own way."""
        twin = BlockPool(self.capacity)
        twin._private, twin._shared, twin._cached = self._private, self._shared.copy(), self._cached.copy()
        return twin

    def hold(self, hashes: Sequence[int]) -> None:
        """Take known blocks; they were found by `matching` just before."""
        for block in hashes:
            if block in self._cached:
                del self._cached[block]
                self._shared[block] = 1
            else:
                self._shared[block] += 1

    def allocate(self, count: int) -> bool:
        """Take `count` private blocks, all or none."""
        if count > self.free:
            return False
        for _ in range(count - (self.capacity - self.used - len(self._cached))):
            self._cached.popitem(last=False)
        self._private += count
        return True

    def publish(self, block: int) -> bool:
        """Turn one private block, now computed, into a shared one; false when an equal block is known already."""
        if block in self._shared or block in self._cached:
            return False
        self._private -= 1
        self._shared[block] = 1
        return True

    def forget(self) -> None:
        """Drop what is cached and held by nobody."""
        self._cached.clear()

    def release(self, private: int, shared: Sequence[int]) -> None:
        """Give blocks back. The end of a prefix is dropped before its beginning, so it enters the cache first."""
        self._private -= private
        for block in reversed(shared):
            left = self._shared[block] - 1
            if left:
                self._shared[block] = left
            else:
                del self._shared[block]
                self._cached[block] = None
