"""Continuous batching as vLLM does it, as a pure simulation: the caller brings the time and runs the steps.

Each step gives one token to every running sequence and spends the rest of its token budget on prefill, first come first
served (or by priority). When a sequence needs a block and none is free, the youngest running one is preempted: its
blocks are freed, it returns to the head of the queue, and everything it had is computed again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from loadtests.engine.kv import BlockPool
from loadtests.engine.pace import Pace
from loadtests.engine.spec import EngineSpec


@dataclass(slots=True, eq=False)
class Job:
    """One sequence: what it asks for, and how far it is. Times are those of the caller's clock, in seconds."""

    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()
    """One chained hash for each full block of the prompt."""
    priority: int = 0
    streamed: bool = False
    """Whether its request asked for a stream; no matter for the schedule."""
    arrived: float = 0.0
    order: int = 0
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    finished: float | None = None
    in_batch: bool = False
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    preemptions: int = 0
    computed: int = 0
    generated: int = 0
    private_blocks: int = 0
    shared_blocks: list[int] = field(default_factory=list)

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True)
class Token:
    """A sequence got its next token."""

    job: Job
    index: int
    gap: float | None
    """Seconds since the token before it; None for the first."""
    last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Work chosen for one pass through the model; `seconds` is how long it takes."""

    seconds: float
    tokens: int
    work: Sequence[tuple[Job, int]]
    prefill: int = 0
    """How many of the tokens are prefill."""


@dataclass(slots=True)
class Totals:
    """Counters since the start, as the metrics show them."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0


def block_hashes(tokens: Sequence[str | int], block_size: int, salt: str | None) -> tuple[int, ...]:
    """Chained hashes of the full blocks of a prompt: equal only when the salt and all tokens up to there are."""
    parent = hash(salt)
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return tuple(hashes)


def _rank(job: Job) -> tuple[int, float, int]:
    return (job.priority, job.arrived, job.order)


class Scheduler:
    """Decides each step. `begin` chooses the work, `finish` hands out its tokens; both take the present time."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._by_priority = spec.scheduling_policy == "priority"
        self.pool = BlockPool(spec.kv_blocks - 1)
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.totals = Totals()
        self._orders = 0
        self.pace = Pace(spec)

    @property
    def kv_usage(self) -> float:
        return self.pool.used / self.pool.capacity

    def fork(self, step: Step | None) -> tuple[Scheduler, Step | None]:
        """An equal scheduler that goes its own way, and what ``step``, which this one has begun, is to that one."""
        jobs = [*self.running, *self.waiting, *(job for job, _ in (step.work if step is not None else ()))]
        twins = {job: _twin(job) for job in jobs}
        other = Scheduler(self._spec)
        other.pool, other.pace, other.totals = self.pool.copy(), copy(self.pace), copy(self.totals)
        other.running = [twins[job] for job in self.running]
        other.waiting = [twins[job] for job in self.waiting]
        other._orders = self._orders
        if step is None:
            return other, None
        return other, replace(step, work=[(twins[job], tokens) for job, tokens in step.work])

    def submit(self, job: Job, now: float) -> None:
        """Queue a sequence."""
        job.arrived = now
        job.order = self._orders
        self._orders += 1
        self._enqueue(job)

    def abort(self, job: Job) -> None:
        """Forget a sequence, wherever it is; one that is finished or unknown is ignored."""
        if job.in_batch:
            self._leave(job)
        elif job in self.waiting:
            self.waiting.remove(job)

    @property
    def idle(self) -> bool:
        """Nothing runs or waits."""
        return not self.running and not self.waiting

    def complete(self, job: Job, now: float) -> None:
        """Run a sequence to its end in no time, on an idle scheduler; for engines without delays."""
        job.arrived = now
        self._count_prefix(job, self._find_prefix(job), now)
        self._reserve(job, job.prompt_tokens + job.output_tokens)
        job.computed = job.prompt_tokens
        self._publish_prefix(job)
        job.generated = job.output_tokens
        job.scheduled = job.first_token = job.last_token = job.finished = now
        self.totals.steps += job.output_tokens
        self._release(job)

    def begin(self, now: float) -> Step | None:
        """The next step, or None when there is nothing to do."""
        work: list[tuple[Job, int]] = []
        preemptions = self.totals.preemptions
        budget = self._serve_running(work, self._spec.max_num_batched_tokens)
        if self.waiting and self.totals.preemptions == preemptions:
            budget = self._admit(work, budget, now)
        if not work:
            return None
        self.totals.steps += 1
        prefill = _prefill_tokens(work)
        return Step(self._seconds(len(work), prefill), self._spec.max_num_batched_tokens - budget, work, prefill)

    def finish(self, step: Step, now: float) -> list[Token]:
        """The tokens that `step` made, in batch order. Sequences aborted meanwhile are left out."""
        tokens = []
        for job, computed in step.work:
            if not job.in_batch:
                continue
            job.computed += computed
            if len(job.shared_blocks) < len(job.block_hashes):
                self._publish_prefix(job)
            if job.computed == job.known_tokens:
                tokens.append(self._emit(job, now))
        if any(token.last for token in tokens):
            self.running = [job for job in self.running if job.in_batch]
        return tokens

    def _emit(self, job: Job, now: float) -> Token:
        gap = now - job.last_token if job.first_token is not None else None
        if job.first_token is None:
            job.first_token = now
        job.last_token = now
        job.generated += 1
        last = job.generated >= job.output_tokens
        if last:
            job.finished = now
            job.in_batch = False
            self._release(job)
        return Token(job, job.generated - 1, gap, last)

    def _serve_running(self, work: list[tuple[Job, int]], budget: int) -> int:
        """Give every running sequence its tokens; returns the budget left. Preempts where blocks are missing."""
        for job in tuple(self.running):
            if not job.in_batch:
                continue
            need = min(budget, job.known_tokens - job.computed)
            if need < 1:
                break
            while not self._reserve(job, job.computed + need):
                victim = self._preempt()
                budget += sum(tokens for other, tokens in work if other is victim)
                work[:] = [entry for entry in work if entry[0] is not victim]
                if victim is job:
                    break
            if job.in_batch:
                work.append((job, need))
                budget -= need
        return budget

    def _preempt(self) -> Job:
        victim = max(self.running, key=_rank) if self._by_priority else self.running[-1]
        self._leave(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.totals.preemptions += 1
        if self._by_priority:
            self._enqueue(victim)
        else:
            self.waiting.insert(0, victim)
        return victim

    def _admit(self, work: list[tuple[Job, int]], budget: int, now: float) -> int:
        while self.waiting and budget > 0 and len(self.running) < self._spec.max_num_seqs:
            job = self.waiting[0]
            found = self._find_prefix(job)
            need = min(budget, job.known_tokens - found)
            if not self._reserve(job, found + need):
                self._release(job)
                break
            self._count_prefix(job, found, now)
            job.computed = found
            self.waiting.pop(0)
            self.running.append(job)
            job.in_batch = True
            work.append((job, need))
            budget -= need
        return budget

    def _find_prefix(self, job: Job) -> int:
        """Hold the cached blocks of the prompt; all tokens but the last may come from there, the last is computed."""
        if not self._spec.prefix_caching:
            return 0
        usable = job.block_hashes[: (job.prompt_tokens - 1) // self._spec.block_size]
        found = usable[: self.pool.matching(usable)]
        self.pool.hold(found)
        job.shared_blocks = list(found)
        return len(found) * self._spec.block_size

    def _count_prefix(self, job: Job, found: int, now: float) -> None:
        if job.scheduled is None:
            job.scheduled = now
            job.cached_tokens = found
            self.totals.prefix_queries += job.prompt_tokens if self._spec.prefix_caching else 0
            self.totals.prefix_hits += found

    def _publish_prefix(self, job: Job) -> None:
        if not self._spec.prefix_caching:
            return
        complete = min(job.computed, job.prompt_tokens) // self._spec.block_size
        for block in job.block_hashes[len(job.shared_blocks) : complete]:
            if not self.pool.publish(block):
                break
            job.private_blocks -= 1
            job.shared_blocks.append(block)

    def _reserve(self, job: Job, tokens: int) -> bool:
        missing = -(-tokens // self._spec.block_size) - job.private_blocks - len(job.shared_blocks)
        if missing > 0:
            if not self.pool.allocate(missing):
                return False
            job.private_blocks += missing
        return True

    def _leave(self, job: Job) -> None:
        self.running.remove(job)
        job.in_batch = False
        self._release(job)

    def _release(self, job: Job) -> None:
        self.pool.release(job.private_blocks, job.shared_blocks)
        job.private_blocks = 0
        job.shared_blocks = []

    def _enqueue(self, job: Job) -> None:
        if self._by_priority:
            insort(self.waiting, job, key=_rank)
        else:
            self.waiting.append(job)

    def _seconds(self, sequences: int, prefill: int) -> float:
        spec = self._spec
        decode = spec.step_time + spec.step_time_per_sequence * (sequences - 1)
        return self.pace.stretched(decode + spec.prefill_seconds(prefill))


def _twin(job: Job) -> Job:
    twin = copy(job)
    twin.shared_blocks = job.shared_blocks.copy()
    return twin


def _prefill_tokens(work: Iterable[tuple[Job, int]]) -> int:
    return sum(tokens for job, tokens in work if tokens > 1 or job.computed < job.prompt_tokens)
