"""What is foreseen is what happens, and looking changes nothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.engine.foresight import first_token
from loadtests.engine.harness import with_engine
from loadtests.engine.scheduler import Job, Scheduler, Step, block_hashes
from loadtests.engine.server import SimulatedEngine
from loadtests.engine.spec import EngineSpec

SPEC = EngineSpec(
    max_model_len=64,
    max_num_seqs=3,
    kv_blocks=18,
    block_size=4,
    max_num_batched_tokens=16,
    prefill_tokens_per_second=1000.0,
    step_time=0.01,
)
SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 3)), max_size=8)


def job_of(prompt: int, output: int, family: int) -> Job:
    return Job(prompt, output, block_hashes([f"{family}-{number}" for number in range(prompt)], 4, None))


class Driven:
    """A scheduler on simulated time, between two of its steps or in the midst of one."""

    def __init__(self, shapes: list[tuple[int, int, int]], steps: int) -> None:
        self.scheduler, self.now, self.ends = Scheduler(SPEC), 0.0, 0.0
        self.step: Step | None = None
        for shape in shapes:
            self.scheduler.submit(job_of(*shape), self.now)
        for _ in range(steps):
            self.turn()

    def turn(self) -> None:
        if self.step is not None:
            self.now = self.ends
            self.scheduler.finish(self.step, self.now)
        self.step = self.scheduler.begin(self.now)
        self.ends = self.now + (self.step.seconds if self.step is not None else 0.0)

    def state(self) -> object:
        kept = self.scheduler.running + self.scheduler.waiting
        jobs = [(job.computed, job.generated, job.private_blocks, tuple(job.shared_blocks)) for job in kept]
        pool = self.scheduler.pool
        return jobs, pool.used, pool.cached, replace(self.scheduler.totals), self.scheduler.pace.factor


@settings(max_examples=150, deadline=None)
@given(SHAPES, st.integers(0, 30), st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(0, 3)))
def test_what_is_foreseen_is_what_happens(
    shapes: list[tuple[int, int, int]], steps: int, late: tuple[int, int, int]
) -> None:
    driven = Driven(shapes, steps)
    job = job_of(*late)
    before = driven.state()
    told = first_token(driven.scheduler, driven.step, driven.ends, job, driven.now)
    assert driven.state() == before
    assert (job.computed, job.shared_blocks, job.scheduled) == (0, [], None)

    driven.scheduler.submit(job, driven.now)
    for _ in range(20_000):
        driven.turn()
        if job.first_token is not None:
            break
    assert job.first_token == pytest.approx(told)


def test_what_is_in_the_cache_comes_sooner() -> None:
    driven = Driven([(32, 1, 1)], 10)
    known, new = (
        first_token(driven.scheduler, None, 0.0, job_of(32, 1, family), driven.now) - driven.now for family in (1, 2)
    )
    assert known == pytest.approx(0.01 + 4 / 1000)  # one step for the last block
    assert new == pytest.approx(2 * 0.01 + 32 / 1000)


async def _foreseen(engine: SimulatedEngine) -> None:
    job = job_of(32, 1, 1)
    assert engine.foresee(job) == pytest.approx(2 * 0.01 + 32 / 1000, abs=0.001)
    assert engine.cached_blocks == 0
    engine.faults.set("paused")
    assert engine.foresee(job) == math.inf


def test_an_engine_that_stands_still_gives_no_token() -> None:
    with_engine(_foreseen, SPEC)
