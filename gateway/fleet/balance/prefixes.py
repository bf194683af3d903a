"""Which beginnings of prompts the replicas of a pool are likely to hold: those that they were sent lately. Pure.

One table for all replicas, from a block's hash to a mask with an octet for each replica, so that one walk along a
prompt tells how much of it each of them holds. The eight bits of a replica's octet are *generations* of what it was
sent: the oldest gives way when its room is full, as an engine drops what was used longest ago. A block is as recent as
the youngest generation that has it, so the order of use is known to about a sixth of the room, for a dictionary entry
and eight bytes a block, whatever the number of replicas.

Whatever holds a block holds all before it, in every generation: a prompt is noted from its first block on, and a
generation gives back last what it took first. So along a chain masks only lose bits, and where they do is found by
halving, without looking at each block.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, islice

from gateway.fleet.balance.prompt import BLOCK_SIZES, HASH_BITS, Prompt, blocks_within, reach

# From a block's hash to its mask, in so many parts by the hash's first bits: a dictionary is copied when it grows.
_Masks = list[dict[int, int]]

Run = tuple[int, int]
"""Bytes of a prompt's beginning, and the mask of those replicas that hold so much and no more."""

_PARTS = 32
_PART = HASH_BITS - 5

_BITS = 8
_OCTET = 0xFF
# A generation ends when a sixth of the room was new in it, and holds that until it is the oldest: so there are seven of
# them at most, unless some had to end early.
_QUOTAS = 6
# Up to so many bits are read one at a time; of more, all octets at once.
_FEW = 4

# Belief and the engine's count differ by more than its evictions: two requests with one new prefix both compute it
# when they come together, and an engine also keeps its answers. Only beyond this does the room change, a step a time.
_TOO_LITTLE, _ENOUGH = 0.75, 0.9
_SHRINK, _GROW = 0.9, 1.1
_LEAST_FACTOR = 0.125
_TELLING = 0.05


class _Generation:
    """What was sent in one stretch of time: ``blocks`` in the order in which they came, ``size`` their bytes.

    ``fresh`` counts the bytes of those that the replica did not hold before. ``began`` and ``used`` are when the first
    and the last of them were sent, in seconds.
    """

    __slots__ = ("began", "bit", "blocks", "fresh", "size", "used")

    def __init__(self, bit: int, now: float) -> None:
        self.began = self.used = now
        self.bit = bit
        self.blocks = array("Q")
        self.size = 0
        self.fresh = 0


class PrefixTable:
    """What all replicas of a pool hold. Each has a ``PrefixIndex`` of its own, opened here."""

    def __init__(self) -> None:
        self._masks: _Masks = [{} for _ in range(_PARTS)]
        # By the place of their octet. A closed index leaves its place, where no bit is set, to the next one.
        self._replicas: list[str] = []
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        # Most prompts of a pool begin with the same run: who is in the last one that was asked for.
        self._common: tuple[Run, dict[str, int]] = (0, 0), {}

    def __len__(self) -> int:
        """How many different blocks are held anywhere."""
        return sum(map(len, self._masks))

    def open(self, replica: str, room: int) -> PrefixIndex:
        """An empty index for a replica that keeps ``room`` bytes of prompts."""
        if self._free:
            place = self._free.pop()
            self._replicas[place] = replica
        else:
            place = len(self._replicas)
            self._replicas.append(replica)
        self._places[replica] = place
        self._common = (0, 0), {}
        return PrefixIndex(self._masks, place, room, self._vacate)

    def _vacate(self, place: int) -> None:
        self._free.append(place)
        name = self._replicas[place]
        if self._places.get(name) == place:  # it may have been opened anew meanwhile
            del self._places[name]

    def runs(self, prompt: Prompt) -> list[Run]:
        """Who holds how much of a prompt's beginning, the least first. Looking changes nothing, recency included."""
        chain, masks = prompt.chain, self._masks
        if not chain:
            return []
        found: list[Run] = []
        count, start, mask = len(chain), 0, masks[chain[0] >> _PART].get(chain[0], 0)
        while mask:
            start = _run(masks, chain, start, mask)
            further = masks[chain[start] >> _PART].get(chain[start], 0) if start < count else 0
            # Who has it in another generation too is named again where that one ends.
            found.append((reach(start), mask & ~further if further else mask))
            mask = further
        return found

    def held_by_all(self, prompt: Prompt) -> dict[str, int]:
        """How many bytes of a prompt's beginning each replica holds, by its name; who holds nothing is left out."""
        held: dict[str, int] = {}
        for run in self.runs(prompt):
            if run == self._common[0]:
                found = self._common[1]
            else:
                found = dict.fromkeys(self._holders(run[1]), run[0])
                if len(found) > _FEW:
                    self._common = run, found
            held = held | found if held else found.copy()
        return held

    def held_by(self, names: Sequence[str], runs: Sequence[Run]) -> dict[str, int]:
        """The same of a few replicas, where there are hundreds."""
        known = self._places.get
        places = [(name, place) for name in names if (place := known(name)) is not None]
        held: dict[str, int] = {}
        for size, mask in runs:
            octets = mask.to_bytes(len(self._replicas), "little")
            for name, place in places:
                if octets[place]:
                    held[name] = size
        return held

    def deepest(self, runs: Sequence[Run], most: int, pool: int) -> list[str]:
        """So many of those that hold the most. What half of a ``pool`` of so many replicas holds marks nobody out."""
        names: list[str] = []
        for _, mask in reversed(runs):
            if len(names) >= most or 2 * self._spread(mask) > pool:
                break
            names += islice(self._holders(mask), most - len(names))
        return names

    def _spread(self, mask: int) -> int:
        """How many ``_holders`` names."""
        bits, places = mask.bit_count(), len(self._replicas)
        return bits if bits <= _FEW else places - mask.to_bytes(places, "little").count(0)

    def _holders(self, mask: int) -> Iterable[str]:
        if mask.bit_count() > _FEW:
            return compress(self._replicas, mask.to_bytes(len(self._replicas), "little"))
        names = []
        while mask:
            top = mask.bit_length() - 1
            names.append(self._replicas[top // _BITS])
            mask ^= 1 << top
        return names


def _run(masks: _Masks, chain: Sequence[int], start: int, mask: int) -> int:
    """The end of the run of blocks from ``start`` on that all have this mask: first in doubled steps, then halved."""
    last = len(chain) - 1
    if masks[chain[last] >> _PART].get(chain[last], 0) == mask:
        return last + 1
    low, step = start, 1
    while low + step < last and masks[chain[low + step] >> _PART].get(chain[low + step], 0) == mask:
        low += step
        step *= 2
    high = min(low + step, last)
    while high - low > 1:
        middle = (low + high) // 2
        if masks[chain[middle] >> _PART].get(chain[middle], 0) == mask:
            low = middle
        else:
            high = middle
    return low + 1


class PrefixIndex:
    """What one replica was sent, up to its room in bytes. Opened by a ``PrefixTable``."""

    def __init__(self, masks: _Masks, place: int, room: int, closed: Callable[[int], None]) -> None:
        """``closed`` is told the place when it is free again."""
        self._masks = masks
        self._place = place
        self._closed: Callable[[int], None] | None = closed
        self._octet = _OCTET << (place * _BITS)
        self._bits = [1 << (place * _BITS + bit) for bit in range(_BITS)]
        self._generations: deque[_Generation] = deque()
        self._given = max(room, 0)
        self._factor = 1.0
        self._room = self._given
        self.size = 0
        self._begin(0.0)

    @property
    def room(self) -> int:
        """Bytes of prompts that it keeps at most: what it was given, less where the engine was seen to keep less."""
        return self._room

    def held(self, prompt: Prompt) -> int:
        """Bytes of the prompt's longest beginning that is held. Looking changes nothing."""
        return reach(self._depth(prompt.chain, self._octet))

    @property
    def oldest(self) -> float:
        """When what it gives back next was sent last, more or less."""
        oldest = self._generations[0]
        return (oldest.began + oldest.used) / 2

    def note(self, prompt: Prompt, now: float = 0.0) -> tuple[int, float]:
        """The replica was sent this at ``now``, in seconds: its blocks are the most recent from then on. What is longer
        than the room is cut to it.

        Returns how many bytes of it were held before, and how many seconds ago they were sent last, more or less.
        """
        room, chain = self._room, prompt.chain
        size = reach(len(chain))
        if size > room:
            chain = chain[: blocks_within(room)]
            size = reach(len(chain))
        if not chain:
            return 0, 0.0
        young = self._generations[-1]
        if self._masks[chain[-1] >> _PART].get(chain[-1], 0) & young.bit:
            return size, max(now - self._sent(chain[-1]), 0.0)  # it is in there to its end
        depth = self._depth(chain, self._octet)
        fresh = size - reach(depth)
        age = max(now - self._sent(chain[depth - 1]), 0.0) if depth else 0.0
        marked = self._depth(chain, young.bit)
        # Never so full that its own blocks would have to give way to this prompt.
        full = young.size + size - reach(marked) > room
        if fresh and young.blocks and (full or young.fresh * _QUOTAS >= room):
            young, marked = self._begin(now), 0
        if not young.blocks:
            young.began = now
        young.used = now
        self._mark(chain[marked:], young)
        if self.size > room:
            self._shed(room)
        return size - fresh, age

    def _sent(self, block: int) -> float:
        """When a block that is held was sent last, to a generation."""
        mask = self._masks[block >> _PART].get(block, 0)
        oldest = self._generations[0]
        young = next((each for each in reversed(self._generations) if mask & each.bit), oldest)
        return (young.began + young.used) / 2

    def resize(self, room: int) -> None:
        """It keeps this many bytes of prompts; what is too much now goes, the oldest first."""
        self._given = max(room, 0) if self._closed is not None else 0
        self._settle()

    def forget(self) -> None:
        """It holds nothing any more: the engine has restarted, or slept."""
        self._shed(0)

    def correct(self, believed: float, measured: float) -> None:
        """Compare the share of prompts that was believed to be held with what the engine's own counters say, 0 to 1.

        Where the engine finds clearly less, something else fills its cache, and the room shrinks by a tenth, down to an
        eighth; where it finds about as much, or more, the room grows back to what was given.
        """
        if not (_TELLING <= believed <= 1.0 and 0.0 <= measured <= 1.0):
            return
        if measured < believed * _TOO_LITTLE:
            self._factor = max(_LEAST_FACTOR, self._factor * _SHRINK)
        elif measured >= believed * _ENOUGH:
            self._factor = min(1.0, self._factor * _GROW)
        self._settle()

    def close(self) -> None:
        """The replica is gone: what it held is forgotten and its place is free. Idempotent; nothing is noted after."""
        if self._closed is not None:
            self.resize(0)
            self._closed(self._place)
            self._closed = None

    def _depth(self, chain: Sequence[int], bits: int) -> int:
        """How many blocks from the first on have any of these bits."""
        masks = self._masks
        if not chain or not masks[chain[0] >> _PART].get(chain[0], 0) & bits:
            return 0
        low, high = 0, len(chain) - 1
        if masks[chain[high] >> _PART].get(chain[high], 0) & bits:
            return high + 1
        while high - low > 1:
            middle = (low + high) // 2
            if masks[chain[middle] >> _PART].get(chain[middle], 0) & bits:
                low = middle
            else:
                high = middle
        return high

    def _mark(self, blocks: Sequence[int], young: _Generation) -> None:
        """Put blocks into the youngest generation. Counts hold even where the hashes of two chains meet."""
        masks, octet, bit, taken = self._masks, self._octet, young.bit, young.blocks
        # Neighbours mostly have equal masks: then they share one number, and what follows from it.
        before, after, held, marked = 0, bit, 0, 0
        new = fresh = 0
        for block in blocks:
            part = masks[block >> _PART]
            mask = part.get(block, 0)
            if mask != before:
                before, after, held, marked = mask, mask | bit, mask & octet, mask & bit
            if marked:
                continue
            part[block] = after
            taken.append(block)
            size = BLOCK_SIZES[block & 1]
            new += size
            if not held:
                fresh += size
        young.size += new
        young.fresh += fresh
        self.size += fresh

    def _begin(self, now: float) -> _Generation:
        """A new generation. If all bits are taken the oldest gives way, though there be room."""
        if not self._bits:
            self._drop(self._generations[0], 0)
        young = _Generation(self._bits.pop(), now)
        self._generations.append(young)
        return young

    def _settle(self) -> None:
        self._room = int(self._given * self._factor)
        self._shed(self._room)

    def _shed(self, room: int) -> None:
        while self.size > room:
            self._drop(self._generations[0], room)

    def _drop(self, oldest: _Generation, room: int) -> None:
        """Take blocks out of the oldest generation, the last first, until so many bytes are held or it is empty."""
        masks, bit, octet, blocks = self._masks, oldest.bit, self._octet, oldest.blocks
        before, after = bit, 0
        while blocks and self.size > room:
            block = blocks.pop()
            part = masks[block >> _PART]
            mask = part[block]
            if mask != before:
                before, after = mask, mask ^ bit
            if after:
                part[block] = after
            else:
                del part[block]
            size = BLOCK_SIZES[block & 1]
            oldest.size -= size
            if not after & octet:
                self.size -= size
        if not blocks and len(self._generations) > 1:
            self._generations.popleft()
            self._bits.append(bit)
