"""/metrics against the captured text of an idle server, and the counters against what was done."""

from pathlib import Path

import pytest

from loadtests.engine.counting import Gauges, Histogram, number, token_bounds
from loadtests.engine.metrics import Metrics
from loadtests.engine.scheduler import Job, Scheduler, Token, Totals
from loadtests.engine.spec import EngineSpec

CAPTURE = Path(__file__).parents[3] / "captures" / "vllm-0.32.0" / "metrics-idle.txt"
SPEC = EngineSpec(model="internal-general-v3", max_model_len=2048, kv_blocks=16384, block_size=128)
IDLE = Gauges(0, 0, 0.0, Totals())


def text_of(metrics: Metrics, gauges: Gauges = IDLE) -> list[str]:
    return metrics.render(gauges).decode().splitlines()


def value_of(lines: list[str], series: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series + " "))


def test_every_line_of_an_idle_server_is_there_in_order() -> None:
    def without_values(lines: list[str]) -> list[str]:
        return [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in lines]

    assert without_values(text_of(Metrics(SPEC, 1796030720.5))) == without_values(CAPTURE.read_text().splitlines())


def test_idle_values_of_the_engine_are_zero() -> None:
    ours = {line.rsplit(" ", 1)[0]: line for line in text_of(Metrics(SPEC, 1796030720.5))}
    for line in CAPTURE.read_text().splitlines():
        if line.startswith("vllm:") and "_created" not in line:
            assert ours[line.rsplit(" ", 1)[0]] == line


def test_gauges_and_counters() -> None:
    metrics = Metrics(SPEC, 0.0)
    job = Job(300, 2, arrived=1.0)
    job.scheduled, job.first_token, job.last_token = 1.5, 2.0, 2.0
    job.cached_tokens, job.generated = 256, 1
    metrics.token(Token(job, 0, None, last=False))
    job.last_token, job.finished, job.generated = 2.25, 2.25, 2
    metrics.token(Token(job, 1, 0.25, last=True))
    metrics.finished(job, "length", 1)
    lines = text_of(metrics, Gauges(3, 4, 0.5, Totals(prefix_queries=300, prefix_hits=256, preemptions=7)))
    labels = '{engine="0",model_name="internal-general-v3"}'
    assert value_of(lines, f"vllm:num_requests_running{labels}") == 3
    assert value_of(lines, f"vllm:num_requests_waiting{labels}") == 4
    assert value_of(lines, f"vllm:kv_cache_usage_perc{labels}") == 0.5
    assert value_of(lines, f"vllm:num_preemptions_total{labels}") == 7
    assert value_of(lines, f"vllm:generation_tokens_total{labels}") == 2
    assert value_of(lines, f"vllm:prompt_tokens_total{labels}") == 300
    assert value_of(lines, f"vllm:prefix_cache_hits_total{labels}") == 256
    assert value_of(lines, f"vllm:time_to_first_token_seconds_sum{labels}") == 1.0
    assert value_of(lines, f"vllm:request_queue_time_seconds_sum{labels}") == 0.5
    assert value_of(lines, f"vllm:inter_token_latency_seconds_sum{labels}") == 0.25
    done = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="internal-general-v3"}'
    assert value_of(lines, done) == 1


def test_buckets_are_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert list(histogram.lines("h", "", "")) == [
        'h_bucket{le="1.0"} 2.0',
        'h_bucket{le="2.0"} 3.0',
        'h_bucket{le="+Inf"} 4.0',
        "h_count 4.0",
        "h_sum 12.0",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (999999, "999999.0"), (1e6, "1e+06"), (2210586624, "2.210586624e+09"), (1.5, "1.5"), (-1, "-1.0")],
)
def test_numbers_are_written_as_pythons_client_writes_them(value: float, text: str) -> None:
    assert number(value) == text


def test_token_bounds_end_at_the_context() -> None:
    assert token_bounds(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert token_bounds(8192)[-1] == 5000


LABELS = '{engine="0",model_name="internal-general-v3"}'


def steps_of(spec: EngineSpec) -> tuple[list[float], float]:
    """The count of vllm:iteration_tokens_total after each step of 1900 tokens of prompt and four more, and its sum."""
    metrics, scheduler, counts = Metrics(spec, 0.0), Scheduler(spec), []
    scheduler.submit(Job(1900, 4), 0.0)
    while (step := scheduler.begin(0.0)) is not None:
        metrics.step(step, len(scheduler.finish(step, 0.0)))
        counts.append(value_of(text_of(metrics), f"vllm:iteration_tokens_total_count{LABELS}"))
    return counts, value_of(text_of(metrics), f"vllm:iteration_tokens_total_sum{LABELS}")


def chunked(**settings: object) -> EngineSpec:
    facts: dict[str, object] = {"model": SPEC.model, "max_model_len": 2048, "max_num_batched_tokens": 64}
    return EngineSpec(**{**facts, **settings})  # type: ignore[arg-type]


def test_iteration_tokens_move_with_each_step_of_a_chunked_prefill() -> None:
    # 30 chunks, the last of which gives the first token, and three more steps.
    assert steps_of(chunked()) == ([float(number) for number in range(1, 34)], 1904.0)


def test_iteration_tokens_of_a_quiet_prefill_are_those_of_a_real_server() -> None:
    """Measured on 0.32.0 with --max-num-batched-tokens 64: a count of 4 and a sum of 1904."""
    assert steps_of(chunked(quiet_prefill=True)) == ([0.0] * 29 + [1.0, 2.0, 3.0, 4.0], 1904.0)


def test_instant_answers_count_the_steps_that_they_stand_for() -> None:
    metrics, scheduler = Metrics(SPEC, 0.0), Scheduler(SPEC)
    job = Job(20, 4)
    scheduler.complete(job, 0.0)
    for _ in range(2):
        metrics.instant(job, "length", 1)
    lines = text_of(metrics)
    assert value_of(lines, f"vllm:iteration_tokens_total_count{LABELS}") == 8
    assert value_of(lines, f"vllm:iteration_tokens_total_sum{LABELS}") == 2 * 24


def test_each_engine_is_a_process_of_its_own() -> None:
    used = Metrics(SPEC, 1796030720.5)
    used.instant(Job(20, 4, generated=4), "length", 1)
    fresh = Metrics(SPEC, 1796030999.25)
    lines = text_of(fresh)
    assert value_of(lines, "process_start_time_seconds") == 1796030999.25
    assert value_of(text_of(used), "process_start_time_seconds") == 1796030720.5
    assert value_of(lines, f"vllm:generation_tokens_total{LABELS}") == 0
    assert value_of(lines, "process_cpu_seconds_total") < 1.0
