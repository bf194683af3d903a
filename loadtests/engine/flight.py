"""One generation request on its way through the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from loadtests.engine.acts import Close, End, Event, Head, KeepAlive, Reply, Wait
from loadtests.engine.counting import EngineMetrics
from loadtests.engine.exchange import Exchange
from loadtests.engine.loop import EngineLoop
from loadtests.engine.persona import Persona
from loadtests.engine.plan import Choice, Plan
from loadtests.engine.refusal import Refusal
from loadtests.engine.routes import Generation
from loadtests.engine.scheduler import Job, Token
from loadtests.engine.spec import EngineSpec


def _job_of(plan: Plan, index: int) -> Job:
    choice = plan.choices[index]
    return Job(choice.prompt.tokens, choice.tokens, choice.prompt.hashes, plan.priority, plan.stream)


def _cut(choice: Choice, made: int) -> Choice:
    """The choice, ended by the engine after `made` tokens."""
    logprobs = None if choice.logprobs is None else choice.logprobs[:made]
    ended = replace(choice, shown=choice.shown[:made], tokens=made, logprobs=logprobs, tool=None)
    return replace(ended, finish_reason="abort", stop_reason=None)


class Flight:
    """Holds the sequences of a request: they are dropped when the client goes or the engine fails, exactly once."""

    def __init__(
        self,
        exchange: Exchange,
        generation: Generation,
        *,
        spec: EngineSpec,
        persona: Persona,
        loop: EngineLoop,
        metrics: EngineMetrics,
        landed: Callable[[Flight], None],
    ) -> None:
        self._exchange = exchange
        self._plan = generation.plan
        self._renderer = generation.renderer
        self._spec = spec
        self._persona = persona
        self._loop = loop
        self._metrics = metrics
        self._landed = landed
        self._jobs = [_job_of(generation.plan, index) for index in range(len(generation.plan.choices))]
        self._told = [0] * len(self._jobs)
        self._left = len(self._jobs)
        self._open = True
        self._headed = False
        self._last_look: asyncio.TimerHandle | None = None
        self.finished = False
        """Whether it came to its own end."""

    @property
    def stream(self) -> bool:
        return self._plan.stream

    @property
    def sequences(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        """Queue the sequences. vLLM sends the head of a stream at once: it says nothing about admission (captured)."""
        if not self._plan.stream and self._spec.instant and self._loop.complete_all(self._jobs):
            for index, job in enumerate(self._jobs):
                self._metrics.instant(job, _reason(self._plan.choices[index].finish_reason), len(self._jobs))
                self._choice_done(index)
            return
        self._exchange.on_gone = self._unseen if self._persona.polls_clients else self.drop
        if self._plan.stream and self._persona.head_at_once:
            self._begin_stream()
        for index, job in enumerate(self._jobs):
            self._loop.submit(job, lambda token, index=index: self._token(index, token))  # type: ignore[misc]

    def _begin_stream(self) -> None:
        self._headed = True
        self._exchange.do(Head())
        if self._spec.sse_keep_alive_interval:
            self._exchange.do(KeepAlive(self._spec.sse_keep_alive_interval))
        self._send(self._renderer.opening())

    def _unseen(self) -> None:
        """The client has gone: a server that polls finds out at once only where it is sending."""
        if self._headed:
            self.drop()
        elif self._open:
            self._last_look = asyncio.get_running_loop().call_later(self._spec.client_poll, self.drop)

    def drop(self) -> None:
        """The client has gone: forget the sequences. Idempotent."""
        if self._open:
            self._shut()
            for job in self._jobs:
                self._loop.abort(job)
            self._landed(self)

    def fail(self, refusal: Refusal) -> None:
        """The engine has failed. Idempotent."""
        if not self._open:
            return
        self.drop()
        if self._persona.dies_silently:
            self._exchange.do(Wait(0.0))
            self._exchange.do(Close())
        elif self._plan.stream:
            self._send(self._renderer.failure(refusal))
            self._exchange.do(End())
        else:
            self._exchange.do(Reply(refusal.status, self._renderer.refusal_body(refusal)))

    def abort(self) -> None:
        """The engine falls asleep: what it has made so far is the answer, which ends with `abort`. Idempotent."""
        if not self._open:
            return
        self.drop()
        pairs = zip(self._jobs, self._plan.choices, strict=True)
        choices = tuple(choice if job.finished is not None else _cut(choice, job.generated) for job, choice in pairs)
        self._renderer.plan = replace(self._plan, choices=choices)
        for index, job in enumerate(self._jobs):
            if job.finished is None:
                self._metrics.aborted(job)
                if self._plan.stream:
                    self._send(self._renderer.tokens(index, self._told[index], job.generated))
        self._end()

    def _token(self, index: int, token: Token) -> None:
        done = token.index + 1
        if self._plan.stream and not self._headed:
            self._begin_stream()
        if self._plan.stream and (token.last or done - self._told[index] >= self._spec.tokens_per_event):
            start, self._told[index] = self._told[index], done
            self._send(self._renderer.tokens(index, start, done))
        if token.last:
            self._metrics.finished(token.job, _reason(self._plan.choices[index].finish_reason), len(self._jobs))
            self._choice_done(index)

    def _choice_done(self, index: int) -> None:
        choices = self._plan.choices
        if index == 0 or choices[index - 1].prompt is not choices[index].prompt:
            self._count_cache(self._jobs[index])
        self._left -= 1
        if not self._left and self._open:
            self._finish()

    def _count_cache(self, job: Job) -> None:
        """Cached and newly cached tokens of a prompt, once however many choices it has."""
        block = self._spec.block_size
        full = job.prompt_tokens // block * block if self._spec.prefix_caching else 0
        self._renderer.cached_tokens += job.cached_tokens
        self._renderer.created_cache_tokens += max(0, full - job.cached_tokens)

    def _shut(self) -> None:
        self._open = False
        if self._last_look is not None:
            self._last_look.cancel()

    def _finish(self) -> None:
        self._shut()
        self.finished = True
        self._landed(self)
        self._end()

    def _end(self) -> None:
        if self._plan.stream:
            self._send(self._renderer.closing())
            self._exchange.do(End())
        else:
            content_type = getattr(self._renderer, "content_type", b"application/json")
            self._exchange.do(Reply(200, self._renderer.body(), content_type))

    def _send(self, events: list[bytes]) -> None:
        for event in events:
            self._exchange.do(Event(event))


def _reason(finish_reason: str) -> str:
    """The label of vllm:request_success_total: a tool call is a `stop` to the engine."""
    return "length" if finish_reason == "length" else "stop"
