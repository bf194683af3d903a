"""The scheduler's invariants, attacked with random loads on simulated time, and its rules one by one."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.engine.scheduler import Job, Scheduler, Token, block_hashes
from loadtests.engine.spec import EngineSpec


def small_spec(**changes: object) -> EngineSpec:
    facts: dict[str, object] = {
        "max_model_len": 64,
        "max_num_seqs": 3,
        "kv_blocks": 18,
        "block_size": 4,
        "max_num_batched_tokens": 16,
        "prefill_tokens_per_second": 1000.0,
        "step_time": 0.01,
    }
    return EngineSpec(**{**facts, **changes})  # type: ignore[arg-type]


@dataclass
class Run:
    """A scheduler driven to the end, with all it said."""

    spec: EngineSpec
    now: float = 0.0
    tokens: list[Token] = field(default_factory=list)
    most_running: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.spec)

    def step(self) -> bool:
        step = self.scheduler.begin(self.now)
        pool = self.scheduler.pool
        assert pool.used + pool.cached <= pool.capacity
        assert len(self.scheduler.running) <= self.spec.max_num_seqs
        if step is None:
            return False
        assert 0 < sum(count for _, count in step.work) <= self.spec.max_num_batched_tokens
        self.most_running = max(self.most_running, len(step.work))
        self.computed += sum(count for _, count in step.work)
        self.now += step.seconds
        self.tokens += self.scheduler.finish(step, self.now)
        return True

    def to_the_end(self, most_steps: int = 20_000) -> "Run":
        for _ in range(most_steps):
            if not self.step():
                return self
        raise AssertionError("the scheduler does not come to an end")


JOBS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=25
)


def job_of(prompt: int, output: int, family: int, priority: int, block_size: int) -> Job:
    words = [f"{family}-{number}" for number in range(prompt)]
    return Job(prompt, output, block_hashes(words, block_size, None), priority)


@settings(max_examples=60, deadline=None)
@given(JOBS, st.booleans(), st.booleans())
def test_every_sequence_ends_within_the_limits(
    shapes: list[tuple[int, int, int, int]], prefix: bool, ranks: bool
) -> None:
    spec = small_spec(prefix_caching=prefix, scheduling_policy="priority" if ranks else "fcfs")
    run = Run(spec)
    jobs = [job_of(*shape, spec.block_size) for shape in shapes]
    for job in jobs:
        run.scheduler.submit(job, run.now)
        run.step()
    run.to_the_end()
    assert [job.generated for job in jobs] == [job.output_tokens for job in jobs]
    assert run.scheduler.pool.used == 0
    for job in jobs:
        made = [token.index for token in run.tokens if token.job is job]
        assert made == list(range(job.output_tokens))


@settings(max_examples=40, deadline=None)
@given(JOBS)
def test_first_come_first_scheduled(shapes: list[tuple[int, int, int, int]]) -> None:
    run = Run(small_spec())
    jobs = [job_of(*shape, 4) for shape in shapes]
    for job in jobs:
        run.scheduler.submit(job, run.now)
    run.to_the_end()
    starts = [job.scheduled for job in jobs]
    assert starts == sorted(starts)  # type: ignore[type-var]


@settings(max_examples=40, deadline=None)
@given(JOBS, st.data())
def test_aborting_leaves_nothing_behind(shapes: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    run = Run(small_spec())
    jobs = [job_of(*shape, 4) for shape in shapes]
    for job in jobs:
        run.scheduler.submit(job, run.now)
    for _ in range(data.draw(st.integers(0, 10))):
        run.step()
    for job in data.draw(st.lists(st.sampled_from(jobs))):
        run.scheduler.abort(job)
        run.scheduler.abort(job)
    run.to_the_end()
    assert run.scheduler.pool.used == 0
    assert not run.scheduler.running
    assert not run.scheduler.waiting


def test_aborted_between_begin_and_finish_gets_no_token() -> None:
    scheduler = Scheduler(small_spec())
    job = Job(4, 4)
    scheduler.submit(job, 0.0)
    step = scheduler.begin(0.0)
    assert step is not None
    scheduler.abort(job)
    assert scheduler.finish(step, 1.0) == []
    assert scheduler.begin(1.0) is None


def test_preempted_work_is_computed_again() -> None:
    # 17 blocks of 4: two sequences of 20 + 24 tokens need 22 blocks, so the younger one has to give way.
    run = Run(small_spec(prefix_caching=False))
    old, young = Job(20, 24), Job(20, 24)
    run.scheduler.submit(old, 0.0)
    run.scheduler.submit(young, 0.0)
    run.to_the_end()
    assert (old.preemptions, young.preemptions) == (0, run.scheduler.totals.preemptions)
    assert young.preemptions >= 1
    assert old.finished is not None
    assert young.finished is not None
    assert old.finished < young.finished
    # Without preemption 2 * (20 + 23) tokens are computed; what was thrown away comes on top.
    assert run.computed > 2 * (20 + 23)


def test_no_preemption_computes_nothing_twice() -> None:
    run = Run(small_spec(prefix_caching=False))
    for _ in range(2):
        run.scheduler.submit(Job(8, 8), 0.0)
    run.to_the_end()
    assert run.scheduler.totals.preemptions == 0
    assert run.computed == 2 * (8 + 7)


def test_second_prompt_finds_the_first_ones_blocks() -> None:
    run = Run(small_spec())
    first, second = (job_of(17, 1, 0, 0, 4) for _ in range(2))
    run.scheduler.submit(first, 0.0)
    run.to_the_end()
    run.scheduler.submit(second, run.now)
    run.to_the_end()
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    assert run.scheduler.totals.prefix_queries == 34
    assert run.scheduler.totals.prefix_hits == 16


def test_last_token_of_a_prompt_is_always_computed() -> None:
    run = Run(small_spec())
    for _ in range(2):
        job = job_of(16, 1, 0, 0, 4)
        run.scheduler.submit(job, run.now)
        run.to_the_end()
    assert job.cached_tokens == 12


def test_other_salt_or_other_beginning_shares_nothing() -> None:
    words = [str(number) for number in range(8)]
    plain = block_hashes(words, 4, None)
    assert block_hashes(words, 4, "tenant") != plain
    assert block_hashes(["x", *words[1:]], 4, None)[1] != plain[1]
    assert block_hashes([*words[:4], "x", *words[5:]], 4, None)[0] == plain[0]


def test_cached_blocks_give_way_to_new_ones() -> None:
    run = Run(small_spec())
    for family in range(3):
        run.scheduler.submit(job_of(40, 1, family, 0, 4), run.now)
        run.to_the_end()
    again = job_of(40, 1, 0, 0, 4)
    run.scheduler.submit(again, run.now)
    run.to_the_end()
    assert again.cached_tokens < 36


def test_priority_lower_first() -> None:
    run = Run(small_spec(scheduling_policy="priority", max_num_seqs=1))
    for priority in (5, 5, -5):
        run.scheduler.submit(Job(4, 2, priority=priority), 0.0)
    run.to_the_end()
    assert [token.job.priority for token in run.tokens if token.index == 0] == [-5, 5, 5]


def test_priority_is_ignored_by_default() -> None:
    run = Run(small_spec(max_num_seqs=1))
    for priority in (5, -5):
        run.scheduler.submit(Job(4, 1, priority=priority), 0.0)
    run.to_the_end()
    assert [token.job.priority for token in run.tokens] == [5, -5]


def test_time_of_prefill_and_decode() -> None:
    run = Run(small_spec(step_time_per_sequence=0.001))
    first, second = Job(10, 3), Job(6, 3)
    run.scheduler.submit(first, 0.0)
    run.scheduler.submit(second, 0.0)
    run.to_the_end()
    # One step of 16 prompt tokens, then two of decode, each for two sequences.
    assert first.first_token == pytest.approx(0.016 + 0.01 + 0.001)
    assert first.finished == pytest.approx(0.027 + 2 * 0.011)
    assert [token.gap for token in run.tokens if token.job is second] == [None, *[pytest.approx(0.011)] * 2]


def test_cold_start_slows_only_the_first_step() -> None:
    run = Run(small_spec(cold_start_penalty=1.0))
    job = Job(10, 2)
    run.scheduler.submit(job, 0.0)
    run.to_the_end()
    assert job.first_token == pytest.approx(1.02)
    assert job.finished == pytest.approx(1.03)


def test_complete_leaves_only_the_prefix_behind() -> None:
    scheduler = Scheduler(small_spec())
    job = job_of(17, 5, 0, 0, 4)
    scheduler.complete(job, 1.0)
    assert (job.generated, job.finished, scheduler.pool.used, scheduler.pool.cached) == (5, 1.0, 0, 4)
    assert scheduler.idle


def test_a_cache_too_small_for_one_request_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_blocks"):
        small_spec(kv_blocks=16)
