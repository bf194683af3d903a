"""How likely it is that what a prefix cache drops would have been asked for again. Pure.

A full cache takes a new prompt's tokens in exchange for those that were used longest ago. Where they are wanted again
they are computed again, and whoever is there then waits for it. The longer ago their use is, the less likely that is:
so of replicas that are as soon, the one whose cache turns over most slowly is the one where a prompt does least harm.
"""

from __future__ import annotations

import math

_MEMORY = 0.98  # what is kept of all before with each prompt: of the last fifty or so


class Reuse:
    """What the prompts of one model have in common with earlier ones, and how old that is.

    Each byte is taken to be asked for again with the same chance, after a time that is exponentially distributed: so
    two means say all that is needed.
    """

    __slots__ = ("_aged", "_asked", "_held")

    def __init__(self) -> None:
        self._asked = self._held = self._aged = 0.0

    def note(self, size: int, held: int, age: float) -> None:
        """A prompt of so many bytes came, of which so many had been sent to its replica before, ``age`` seconds ago."""
        known = min(max(held, 0), size)
        self._asked = self._asked * _MEMORY + size
        self._held = self._held * _MEMORY + known
        self._aged = self._aged * _MEMORY + known * max(age, 0.0)

    def wanted(self, age: float) -> float:
        """The chance, from 0 to 1, that something is asked for again that has not been for ``age`` seconds.

        Never more than for something younger; 0 while nothing has been asked for again.
        """
        held, aged = self._held, self._aged
        if not (held > 0.0 and aged > 0.0):
            return 0.0
        again = held / self._asked
        late = again * math.exp(-age * held / aged) if age > 0.0 else again
        return late / (1.0 - again + late) if late > 0.0 else 0.0
