"""Cold starts and slow deaths: how the time of a step is stretched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.engine.pace import Pace
from loadtests.engine.scheduler import Job, Scheduler
from loadtests.engine.spec import EngineSpec


def pace(**settings: object) -> Pace:
    return Pace(EngineSpec(**settings))  # type: ignore[arg-type]


def test_a_plain_engine_is_never_stretched() -> None:
    plain = pace()
    for _ in range(3):
        assert plain.stretched(0.5) == 0.5
        plain.finished()


def test_cold_until_so_many_requests_have_finished_and_again_after_a_wake() -> None:
    cold = pace(cold_factor=60.0, cold_requests=2)
    factors = []
    for _ in range(3):
        factors.append(cold.stretched(1.0))
        cold.finished()
    assert factors == [60.0, 60.0, 1.0]
    cold.cool()
    assert cold.stretched(1.0) == 60.0


def test_the_penalty_is_paid_once_and_again_after_a_wake() -> None:
    cold = pace(cold_start_penalty=1.0)
    assert [cold.stretched(0.1), cold.stretched(0.1)] == [pytest.approx(1.1), 0.1]
    cold.cool()
    assert cold.stretched(0.1) == pytest.approx(1.1)


@given(st.floats(1.0, 5.0), st.floats(1.0, 1000.0), st.integers(0, 40))
def test_slow_death_grows_to_its_cap_and_recovers(growth: float, most: float, requests: int) -> None:
    dying = pace()
    dying.decay(growth, most)
    seen = [dying.factor]
    for _ in range(requests):
        dying.finished()
        seen.append(dying.factor)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(min(most, growth**requests))
    dying.recover()
    assert dying.factor == 1.0


def test_cold_and_dying_multiply() -> None:
    both = pace(cold_factor=10.0, cold_requests=2)
    both.decay(2.0, 100.0)
    both.finished()
    assert both.factor == 20.0


def test_a_cold_engine_stretches_prefill_and_steps() -> None:
    spec = EngineSpec(step_time=0.01, prefill_tokens_per_second=1000.0, cold_factor=60.0, cold_requests=1)
    scheduler = Scheduler(spec)
    scheduler.submit(Job(10, 2), 0.0)
    step = scheduler.begin(0.0)
    assert step is not None
    assert step.seconds == pytest.approx(60 * 0.02)
    scheduler.finish(step, 1.2)
    scheduler.pace.finished()
    step = scheduler.begin(1.2)
    assert step is not None
    assert step.seconds == pytest.approx(0.01)


@pytest.mark.parametrize("settings", [{"cold_factor": 0.5}, {"cold_requests": -1}, {"startup_time": -1.0}])
def test_nonsense_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cold_factor"):
        EngineSpec(**settings)  # type: ignore[arg-type]
