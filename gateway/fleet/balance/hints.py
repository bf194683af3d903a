"""What instances tell each other of the prompts that they sent, so that two of them do not split a conversation. Pure.

Whose prompt begins with a block holds all before it, so a few blocks of each prompt say enough: its last one, with
which the conversation's next turn goes on, and some of those that were new to the replica, where another prompt may
branch off (one document, another question). Each instance publishes its newest hints; who reads them later, twice or
never is only less well informed. Hashes are keyed, so that a store that is read by others tells them nothing.

Where nobody knows a beginning yet there is nothing to tell. Then ``anchor`` gives all instances the same number to
break a tie by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from struct import Struct
from zlib import crc32

from gateway.fleet.balance.prompt import Prompt, blocks_within, reach

MAX_HINTS = 8192
"""Bytes of hints of one instance at most."""

_HINT = Struct("<QI")  # a block's hash; of its replica's id the CRC, which is the same everywhere
_TOLD = MAX_HINTS // _HINT.size
_NEW_BLOCKS = 8
_LEARNED = 16_384  # of all other instances: minutes of a busy pool, about 2 MB


class Hints:
    """What this instance tells of a pool, and what it was told. Bounded, whatever is told."""

    def __init__(self) -> None:
        self._replicas: dict[int, str] = {}
        self._told: deque[tuple[int, int]] = deque(maxlen=_TOLD)
        self._learned: dict[int, int] = {}

    def __len__(self) -> int:
        """How many blocks it was told of."""
        return len(self._learned)

    def know(self, replicas: Iterable[str]) -> None:
        """These are the pool's replicas; what is told of others is not taken in."""
        self._replicas = {crc32(replica.encode()): replica for replica in replicas}

    def note(self, prompt: Prompt, replica: str, held: int) -> None:
        """This instance sent a prompt of which the replica held so many bytes already."""
        chain = prompt.chain
        if not chain:
            return
        number = crc32(replica.encode())
        new = chain[blocks_within(held) : -1]
        self._told.extend((block, number) for block in new[:: len(new) // _NEW_BLOCKS + 1])
        self._told.append((chain[-1], number))

    def hints(self) -> bytes:
        """The newest of what this instance sent, for others to learn; at most ``MAX_HINTS`` bytes."""
        return b"".join(_HINT.pack(block, number) for block, number in self._told)

    def learn(self, told: bytes) -> bool:
        """Take in what another instance tells; ``False``, and nothing is, when it is no such thing."""
        if len(told) > MAX_HINTS or len(told) % _HINT.size:
            return False
        learned, known = self._learned, self._replicas
        for block, number in _HINT.iter_unpack(told):
            if number in known:
                learned.pop(block, None)
                learned[block] = number
        if len(learned) > _LEARNED:
            # Many at once: to find the oldest, a dictionary walks over all that were taken out before it.
            for block in list(islice(learned, len(learned) - _LEARNED // 2)):
                del learned[block]
        return True

    def extend(self, prompt: Prompt, held: dict[str, int]) -> None:
        """Add to the bytes of a prompt that each replica is known to hold what others told."""
        chain, learned = prompt.chain, self._learned
        if not learned or learned.keys().isdisjoint(chain):
            return
        for place, block in enumerate(chain, 1):
            number = learned.get(block)
            replica = None if number is None else self._replicas.get(number)
            if replica is not None and held.get(replica, 0) < reach(place):
                held[replica] = reach(place)

    def forget(self, replica: str) -> None:
        """The replica holds nothing any more."""
        gone = crc32(replica.encode())
        self._learned = {block: number for block, number in self._learned.items() if number != gone}
        self._told = deque((hint for hint in self._told if hint[1] != gone), _TOLD)
