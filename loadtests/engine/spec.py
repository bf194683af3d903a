"""What a simulated engine is: its model, its size and its speed, in one frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass

GENERATE = "generate"
EMBED = "embed"
SCORE = "score"
CLASSIFY = "classify"
TRANSCRIBE = "transcribe"
TASKS = frozenset({GENERATE, EMBED, SCORE, CLASSIFY, TRANSCRIBE})
VLLM = "vllm"
SGLANG = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The settings of one simulated engine. Times are in seconds, sizes in tokens unless named otherwise.

    Raises ValueError when the values contradict each other, for example a KV cache that could never hold one
    request of `max_model_len` (vLLM refuses to start then).
    """

    persona: str = VLLM
    """Which server it plays on the wire: `vllm` (0.32.0) or `sglang` (0.5.23, which generates only)."""
    model: str = "sim-model"
    """The name served, and the default when a body names no model."""
    more_models: tuple[str, ...] = ()
    """Other served names of the same weights."""
    tasks: frozenset[str] = frozenset({GENERATE})
    """Which families of routes answer; the others are FastAPI's 404."""
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    """Tokens that one step may compute, prefill and decode together (a longer prompt is prefilled in chunks)."""
    max_num_queued_requests: int | None = None
    """vLLM's --max-num-queued-reqs counts running and waiting together, SGLang's --max-queued-requests those that
    wait. None: no limit, the default of both."""
    kv_blocks: int = 8192
    block_size: int = 16
    prefix_caching: bool = True
    prefill_tokens_per_second: float = 40_000.0
    """0 means that prefill takes no time."""
    step_time: float = 0.002
    """Length of a decode step with one sequence. 0 with instant prefill: no timer is used at all."""
    step_time_per_sequence: float = 0.0
    """What each further sequence of the batch adds to a step."""
    cold_start_penalty: float = 0.0
    """Added to the first step after the start or a wake (kernels compiled, graphs captured, caches cold)."""
    cold_factor: float = 1.0
    """How many times as long each step takes while the engine is cold, its prefill included."""
    cold_requests: int = 0
    """The engine is cold until so many requests have finished since the start or the last wake."""
    startup_time: float = 0.0
    """Seconds from the start in which vLLM does not listen yet, and SGLang's /health says 503 (both captured)."""
    mean_output_tokens: int = 64
    """Length of an answer whose request sets no limit, around which lengths vary with the prompt."""
    tokens_per_event: int = 1
    """How many tokens one stream event carries (vLLM merges when its front end falls behind)."""
    scheduling_policy: str = "fcfs"
    """`fcfs`, or `priority`: lower first in vLLM, higher first in SGLang."""
    tool_parser: bool = True
    """--enable-auto-tool-choice with a parser; without it tool choices are refused, as captured."""
    quiet_prefill: bool = False
    """Leave steps that give no token out of `vllm:iteration_tokens_total`, as a real 0.32.0 does (measured: 1900
    tokens prefilled in chunks of 64, then four tokens, counted four steps with a sum of 1904)."""
    prompt_tokens_details: bool = False
    request_id_headers: bool = False
    server_load_tracking: bool = False
    sse_keep_alive_interval: float = 0.0
    """Seconds between `: keep-alive` comments in an idle stream; 0: none."""
    api_key: str | None = None
    keep_alive_timeout: float = 5.0
    """Idle seconds after which the server closes a connection (uvicorn's default as vLLM sets it, captured)."""
    drain_linger: float = 4.0
    """Seconds between the last answer of a drain and the end of the process (captured of vLLM: about 4)."""
    client_poll: float = 4.0
    """Seconds between SGLang's looks whether a client that has got nothing yet is still there (captured: 2 to 4)."""
    root: str = "/models/sim"
    fingerprint: str = "vllm-0.32.0-51a1f00d"
    version: str = "0.32.0"
    embedding_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.persona not in (VLLM, SGLANG):
            raise ValueError(f"persona is {VLLM} or {SGLANG}, not {self.persona!r}")
        if self.persona == SGLANG and (self.tasks != {GENERATE} or self.api_key is not None):
            raise ValueError("of SGLang only generation without a key is modelled")
        if self.cold_factor < 1 or min(self.cold_requests, self.startup_time) < 0:
            raise ValueError("cold_factor is at least 1, cold_requests and startup_time are not negative")
        if not self.tasks <= TASKS:
            raise ValueError(f"unknown tasks {sorted(self.tasks - TASKS)}, known: {sorted(TASKS)}")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(f"scheduling_policy is fcfs or priority, not {self.scheduling_policy!r}")
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.block_size, self.tokens_per_event) < 1:
            raise ValueError("max_num_seqs, max_num_batched_tokens, block_size and tokens_per_event are at least 1")
        if (self.kv_blocks - 1) * self.block_size < self.max_model_len:
            raise ValueError(
                f"kv_blocks - 1 ({self.kv_blocks - 1}) times block_size ({self.block_size}) must hold "
                f"max_model_len ({self.max_model_len}); the first block is never handed out"
            )

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, *self.more_models)

    @property
    def instant(self) -> bool:
        """Whether no answer takes simulated time."""
        no_steps = self.step_time == self.step_time_per_sequence == self.cold_start_penalty == 0
        return no_steps and self.prefill_tokens_per_second == 0

    def prefill_seconds(self, tokens: int) -> float:
        return tokens / (self.prefill_tokens_per_second or math.inf)


def instant_spec(**settings: object) -> EngineSpec:
    """An EngineSpec that answers with no simulated delay; `settings` override any other field."""
    zero: dict[str, object] = {"step_time": 0.0, "prefill_tokens_per_second": 0.0}
    return EngineSpec(**{**zero, **settings})  # type: ignore[arg-type]
