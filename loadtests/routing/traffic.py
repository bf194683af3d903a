"""Who asks for what, and when: kinds of traffic as frozen values, from which a seed makes requests. Pure.

Requests come when they come, whatever became of those before (an open loop). So the turns of a conversation are known
beforehand as well: what its earlier answers were is made up, not taken from the engines. To them it is prompt like any
other, and each strategy gets the same bytes at the same moments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

VOCABULARY = tuple(
    "".join(parts) for parts in itertools.product(("bro", "gli", "mu", "ze"), *(["ka", "lo", "ti"],) * 2)
)
"""Words that are one token each to the simulated engine, with the space before them."""


class Message(NamedTuple):
    """One message of a prompt."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: when it is sent, in seconds from the beginning, whose it is, what it says, how much it asks for."""

    at: float
    session: str
    messages: tuple[Message, ...]
    output: int


class Traffic(Protocol):
    """A kind of traffic."""

    def turns(self, random: Random, seconds: float) -> list[Turn]:
        """All requests of so many seconds, in the order of their times."""


@dataclass(frozen=True, slots=True)
class Length:
    """A length in tokens: log-normal around ``median``, wider with ``sigma``, cut at ``most``."""

    median: float
    sigma: float
    most: int

    def draw(self, random: Random) -> int:
        return min(self.most, max(1, round(self.median * math.exp(random.gauss(0.0, self.sigma)))))


def words(random: Random, count: int) -> str:
    """A text of about ``count`` tokens that no other text begins like."""
    return " ".join(random.choices(VOCABULARY, k=count))


def poisson(random: Random, rate: float, seconds: float) -> Iterator[float]:
    """Moments independent of each other, ``rate`` in a second."""
    at = random.expovariate(rate)
    while at < seconds:
        yield at
        at += random.expovariate(rate)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Short questions about a few long documents. The n-th document is asked about n ** -``skew`` times as often."""

    rate: float
    documents: int
    document: int
    skew: float
    question: Length
    output: Length

    def turns(self, random: Random, seconds: float) -> list[Turn]:
        texts = [words(random, self.document) for _ in range(self.documents)]
        weights = [(number + 1) ** -self.skew for number in range(self.documents)]
        made = []
        for at in poisson(random, self.rate, seconds):
            number = random.choices(range(self.documents), weights)[0]
            asked = words(random, self.question.draw(random))
            messages = (Message("system", texts[number]), Message("user", asked))
            made.append(Turn(at, f"document-{number}", messages, self.output.draw(random)))
        return made


@dataclass(frozen=True, slots=True)
class Chat:
    """Conversations that grow: each turn sends all before it, and all begin with the same system prompt.

    ``rate`` conversations begin in a second. After each turn another one follows, on average ``more`` of them, each
    ``pause`` and on average ``think`` seconds after the one before.
    """

    rate: float
    more: float
    pause: float
    think: float
    system: int
    opening: Length
    question: Length
    answer: Length

    def turns(self, random: Random, seconds: float) -> list[Turn]:
        system = Message("system", words(random, self.system))
        begins = list(poisson(random, self.rate, seconds))
        made = [turn for number, at in enumerate(begins) for turn in self._conversation(random, system, number, at)]
        return sorted((turn for turn in made if turn.at < seconds), key=lambda turn: turn.at)

    def _conversation(self, random: Random, system: Message, number: int, at: float) -> Iterator[Turn]:
        said: tuple[Message, ...] = (system, Message("user", words(random, self.opening.draw(random))))
        while True:
            output = self.answer.draw(random)
            yield Turn(at, f"conversation-{number}", said, output)
            if random.random() * (self.more + 1) < 1:
                return
            at += self.pause + random.expovariate(1 / self.think)
            answer = Message("assistant", words(random, output))
            said = (*said, answer, Message("user", words(random, self.question.draw(random))))


@dataclass(frozen=True, slots=True)
class Unshared:
    """Requests that have nothing in common. ``burst`` more of them come within ``width`` seconds, each ``every``."""

    rate: float
    prompt: Length
    output: Length
    burst: int = 0
    every: float = 5.0
    width: float = 0.3

    def turns(self, random: Random, seconds: float) -> list[Turn]:
        times = sorted((*poisson(random, self.rate, seconds), *self._bursts(random, seconds)))
        return [self._one(random, number, at) for number, at in enumerate(times)]

    def _bursts(self, random: Random, seconds: float) -> Iterator[float]:
        """The first one comes in the middle of its interval, so that its work ends within the run."""
        for number in range(math.ceil(seconds / self.every)) if self.burst else ():
            begin = (number + 0.5) * self.every
            moments = (begin + random.uniform(0.0, self.width) for _ in range(self.burst))
            yield from (at for at in moments if at < seconds)

    def _one(self, random: Random, number: int, at: float) -> Turn:
        said = Message("user", words(random, self.prompt.draw(random)))
        return Turn(at, f"single-{number}", (said,), self.output.draw(random))
