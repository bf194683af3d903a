"""By what another process is told from the one before."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from gateway.fleet.restart import same_process
from gateway.fleet.signals import Reading, Signal


def reading(**values: float) -> Reading:
    return Reading(MappingProxyType({Signal(name): value for name, value in values.items()}), frozenset())


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (None, reading(started_at=5.0), None),
        (reading(started_at=5.0), reading(started_at=5.0), True),
        (reading(started_at=5.0), reading(started_at=5.01), True),
        (reading(started_at=5.0), reading(started_at=5.4), False),
        (reading(started_at=5.0), reading(started_at=6.0), False),
        (reading(started_at=6.0), reading(started_at=5.0), False),
        (reading(started_at=5.0, steps=9), reading(started_at=5.0, steps=1), False),
        (reading(started_at=5.0, steps=9), reading(steps=1), False),
        (reading(started_at=5.0), reading(), None),
        (reading(steps=9), reading(steps=9), None),
        (reading(steps=9), reading(steps=10), None),
        (reading(prompt_tokens=9, generation_tokens=9), reading(prompt_tokens=20, generation_tokens=8), False),
        (reading(steps=9), reading(generation_tokens=1), None),
        (reading(started_at=100.0, steps=9), reading(started_at=100.4, steps=1), False),  # a quick restart
        (reading(running=9), reading(running=1), None),
        (reading(), reading(steps=1), None),
    ],
)
def test_another_start_tells_and_a_counter_that_went_back(before, after, same):
    assert same_process(before, after) is same
