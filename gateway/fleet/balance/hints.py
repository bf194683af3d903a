"""What instances tell each other of the prompts that they sent, so that two of them do not split a conversation. Pure.

Whose prompt begins with a block holds all before it, so a few blocks of each prompt say enough: its last one, with
which the conversation's next turn goes on, and some of those that were new to the replica, where another prompt may
branch off (one document, another question). Each is told once, and who misses one is only less well informed. Hashes
are keyed, by model and tenant too, so that a store that is read by others tells them nothing.

Where nobody knows a beginning yet there is nothing to tell. Then ``anchor`` gives all instances the same number to
break a tie by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf
from struct import Struct

from gateway.fleet.balance.prompt import HASH_BITS, Prompt, blocks_within, reach

_VERSION = b"\x01"
_HINT = Struct("<QQ")  # a block's hash, and its replica's point
_MOST = 256
MAX_HINTS = len(_VERSION) + _MOST * _HINT.size
"""Bytes of hints that an instance tells at once at most."""
_NEW_BLOCKS = 4

LIFETIME = 600.0
"""Seconds after which what was told is forgotten, if not sooner: engines seldom keep unused blocks for longer."""
_KEPT = 65_536  # of all other instances: some 8 MB


class _Home:
    """A replica as the place of blocks, as long as it holds any of what it was sent."""

    __slots__ = ("live", "replica")

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.live = True


class Hints:
    """What this instance tells, and what it was told. Bounded, whatever is told.

    Nothing is noted before ``shared`` is set: there may be nobody to tell. What was told is kept in two halves; the
    older one goes when the younger is full, or half of the lifetime is over.
    """

    __slots__ = ("_homes", "_old", "_told", "_turned_at", "_young", "shared")

    def __init__(self) -> None:
        self.shared = False
        self._told: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self._homes: dict[str, _Home] = {}
        self._young: dict[int, _Home] = {}
        self._old: dict[int, _Home] = {}
        self._turned_at = -inf

    def __len__(self) -> int:
        """How many blocks it was told of, at most."""
        return len(self._young) + len(self._old)

    def note(self, prompt: Prompt, point: int, held: int) -> None:
        """This instance sent a prompt of which the replica with this point held so many bytes already."""
        chain = prompt.chain
        if not (self.shared and chain):
            return
        first, last = blocks_within(held), len(chain) - 1
        if first < last:
            self._told.extend((block, point) for block in chain[first : last : (last - first) // _NEW_BLOCKS + 1])
        self._told.append((chain[last], point))

    def take(self) -> bytes:
        """The newest of what was noted since this was last asked; at most ``MAX_HINTS`` bytes, empty if nothing was."""
        told = self._told
        if not told:
            return b""
        hints = b"".join((_VERSION, *(_HINT.pack(block, point) for block, point in told)))
        told.clear()
        return hints

    def learn(self, told: bytes, names: Mapping[int, str]) -> bool:
        """Take in what another instance tells; ``False``, and nothing is, when it is no such thing.

        ``names`` are the ids of this instance's replicas by their points; what is told of others is passed over.
        """
        size = len(told) - len(_VERSION)
        if not told.startswith(_VERSION) or len(told) > MAX_HINTS or size % _HINT.size:
            return False
        pairs = list(_HINT.iter_unpack(memoryview(told)[len(_VERSION) :]))
        if any(block >> HASH_BITS for block, _ in pairs):
            return False
        for block, point in pairs:
            name = names.get(point)
            if name is not None:
                self._young[block] = self._home(name)
        if len(self._young) > _KEPT // 2:
            self._turn()
        return True

    def _home(self, name: str) -> _Home:
        home = self._homes.get(name)
        if home is None:
            home = self._homes[name] = _Home(name)
        return home

    def review(self, now: float) -> None:
        """Forget what is too old. To be called now and then; ``now`` is seconds of a monotonic clock."""
        if not 0.0 <= now - self._turned_at < LIFETIME / 2:
            self._turn()
            self._turned_at = now

    def _turn(self) -> None:
        self._old, self._young = self._young, {}

    def extend(self, prompt: Prompt, held: dict[str, int]) -> None:
        """Add to the bytes of a prompt that each replica is known to hold what others told."""
        young, old, chain = self._young, self._old, prompt.chain
        if not (young or old):
            return
        if young.keys().isdisjoint(chain) and old.keys().isdisjoint(chain):
            return
        for place, block in enumerate(chain, 1):
            home = young.get(block) or old.get(block)
            if home is not None and home.live and held.get(home.replica, 0) < reach(place):
                held[home.replica] = reach(place)

    def forget(self, replica: str) -> None:
        """The replica holds nothing any more, or is gone."""
        home = self._homes.pop(replica, None)
        if home is not None:
            home.live = False
