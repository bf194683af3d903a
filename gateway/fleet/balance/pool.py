"""What is known of the replicas of one served model together: who holds which prompts, and what a token weighs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fleet.balance.pace import BytesPerToken
from gateway.fleet.balance.prefixes import PrefixIndex, PrefixTable
from gateway.fleet.balance.prompt import Prompt
from gateway.fleet.balance.reuse import Reuse
from gateway.fleet.balance.shortlist import Shortlist
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal

_ROOM = 64 * 1024 * 1024  # bytes of prompts that an engine is taken to keep if it does not say
_MOST_ROOM = 4 * _ROOM  # and if it says more: what is kept of them here takes memory too
_TELLING = 20_000  # prompt tokens of an engine's count from which a share of hits tells something
# Bytes a token move little: after so many counts, one in a few teaches as much as all.
_LESSONS, _PART = 256, 8
_UNTOLD = 64  # prompts after which one does not wait any longer for an engine to tell how many tokens they are
_MOVED = 1.1  # by how much, until indexes follow


class Held:
    """What one replica is believed to hold, and how far that was believed of prompts since it was last compared.

    ``hits`` and ``queries`` are the engine's own counters then, in tokens. ``taught`` is when a first token taught its
    pace the last time, ``tokens`` how many the engine's cache holds (0: it does not say).
    """

    __slots__ = ("believed", "hits", "index", "queries", "size", "taught", "tokens")

    def __init__(self, index: PrefixIndex, reading: Reading | None) -> None:
        self.index = index
        self.taught = 0.0
        self.tokens = _cache_tokens(reading)
        self.begin(*(0.0, 0.0) if reading is None else _cache_counters(reading))

    def begin(self, hits: float, queries: float) -> None:
        """Compare what comes from here on."""
        self.believed = self.size = 0.0
        self.hits, self.queries = hits, queries


def _cache_tokens(reading: Reading | None) -> float:
    return 0.0 if reading is None else reading.values.get(Signal.KV_TOKENS, 0.0)


def _cache_counters(reading: Reading) -> tuple[float, float]:
    return reading.values.get(Signal.CACHE_HITS, 0.0), reading.values.get(Signal.CACHE_QUERIES, 0.0)


class Pool:
    """What is known of all replicas of one served model: which beginnings of prompts each holds, and bytes a token.

    ``alone``: one replica serves it, and no other is listed that may. Then there is nothing to choose by what it holds,
    nor will there be soon, and prompts are not looked at; a second replica begins with a first one that is taken to
    hold nothing, which costs each conversation a hit at most. Where others are listed, be they out for now, the one
    that is left is known when they are back.
    """

    def __init__(self) -> None:
        self.table = PrefixTable()
        self.scale = BytesPerToken()
        self.reuse = Reuse()
        self.alone = False
        self._held: dict[str, Held] = {}
        self._shortlist: Shortlist[Replica] | None = None
        self._lessons = self._noted = 0
        self._sized = self.scale.value  # by which the indexes have their rooms

    def shortlist(self, candidates: Sequence[Replica]) -> Shortlist[Replica]:
        """That of these candidates: they stay the same until a replica comes or goes."""
        found = self._shortlist
        if found is None or found.candidates is not candidates:
            found = self._shortlist = Shortlist(candidates)
        return found

    @property
    def counted(self) -> bool:
        """Whether the tokens of prompts are known by what engines told, or never will be."""
        return self.scale.known or self._noted >= _UNTOLD

    def learn(self, size: int, tokens: float) -> None:
        """A prompt of so many bytes was so many tokens, as an engine counted them."""
        self._lessons += 1
        if self._lessons <= _LESSONS or not self._lessons % _PART:
            self.scale.note(size, tokens)
            if not self._sized / _MOVED <= self.scale.value <= self._sized * _MOVED:
                self._resize()

    def note(self, replica: Replica, prompt: Prompt, believed: float, now: float) -> Held:
        """The prompt goes to a replica that is believed to hold so many bytes of it. ``now`` is in seconds."""
        self._noted += 1
        held = self._held.get(replica.id)
        if held is None:
            index = self.table.open(replica.id, self._room(_cache_tokens(replica.reading)))
            held = self._held[replica.id] = Held(index, replica.reading)
        index = held.index
        self.reuse.note(prompt.size, *index.note(prompt, now))
        replica.work.keeps(max(index.room - index.size, 0) / self.scale.value, index.oldest, self.reuse)
        held.believed += believed
        held.size += prompt.size
        return held

    def review(self, replica: Replica) -> None:
        """Have its index keep as much as its engine does, by what that says and, once it tells enough, by its hits."""
        held, reading = self._held.get(replica.id), replica.reading
        if held is None or reading is None:
            return
        held.tokens = _cache_tokens(reading)
        held.index.resize(self._room(held.tokens))
        hits, queries = _cache_counters(reading)
        asked = queries - held.queries
        if 0 <= asked < _TELLING:
            return
        if asked > 0 and held.size:
            held.index.correct(held.believed / held.size, min(max((hits - held.hits) / asked, 0.0), 1.0))
        held.begin(hits, queries)

    def _resize(self) -> None:
        """A token weighs something else than was thought, and so does what engines keep.

        It cannot wait for the next review: what an index lets go because a token was thought to be short, an engine
        still holds, and another would have to compute it anew.
        """
        self._sized = self.scale.value
        for held in self._held.values():
            held.index.resize(self._room(held.tokens))

    def _room(self, tokens: float) -> int:
        """Bytes of prompts that an engine keeps whose cache holds so many tokens (0: it does not say)."""
        return int(min(tokens * self.scale.value, _MOST_ROOM)) if tokens else _ROOM

    def forget(self, replica_id: str) -> None:
        """The replica holds nothing any more, or is gone."""
        held = self._held.pop(replica_id, None)
        if held is not None:
            held.index.close()
