"""How much slower than modelled the engine is at present: cold after a start or a wake, dying slowly under a fault."""

from __future__ import annotations

from loadtests.engine.spec import EngineSpec


class Pace:
    """Stretches the time of steps. A step costs one multiplication; all else happens when a request finishes."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._cold_left = 0
        self._penalty = 0.0
        self._growth = self._decay = self._most = 1.0
        self._factor = 1.0
        self.cool()

    @property
    def factor(self) -> float:
        """What each step takes, in multiples of its modelled time."""
        return self._factor

    def cool(self) -> None:
        """The engine has started or woken: it is cold again."""
        self._cold_left = self._spec.cold_requests
        self._penalty = self._spec.cold_start_penalty
        self._settle()

    def decay(self, growth: float, most: float) -> None:
        """From now on each finished request makes steps `growth` times as long, up to `most` times."""
        self._growth, self._most = growth, most

    def recover(self) -> None:
        """The slow death is over. Idempotent."""
        self._growth = self._decay = self._most = 1.0
        self._settle()

    def finished(self) -> None:
        """A request has come to its end (one whose client left has not)."""
        if self._cold_left:
            self._cold_left -= 1
        elif self._growth == 1.0:
            return
        self._decay = min(self._most, self._decay * self._growth)
        self._settle()

    def stretched(self, seconds: float) -> float:
        """How long a step takes now that is modelled to take `seconds`."""
        penalty, self._penalty = self._penalty, 0.0
        return penalty + self._factor * seconds

    def _settle(self) -> None:
        self._factor = self._decay * (self._spec.cold_factor if self._cold_left else 1.0)
