"""Every fault that a simulated engine can show, seen by a client through a whole gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest

from loadtests.engine.faults import FAULTS

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 6}
STATUSES = {"engine_error": 502, "engine_timeout": 504, "no_ready_replica": 503}
DEADLINE = 0.7


@dataclass(frozen=True)
class Outcome:
    """What a client gets from one replica with the fault: an HTTP error, or an event in a stream that has ``begun``.

    ``code`` ``None`` is success. ``elsewhere``: a second replica makes it a success.
    """

    code: str | None = None
    reason: str | None = None
    begun: bool = False
    elsewhere: bool = False


FINE = Outcome()
LATE = Outcome("engine_timeout", "timeout", elsewhere=True)  # the prompts here are short
STALLED = Outcome("engine_timeout", "timeout", begun=True)
RESET = Outcome("engine_error", "reset", elsewhere=True)
CUT = Outcome("engine_error", "reset", begun=True)
SPOILT = Outcome("engine_error", "protocol")
SPOILT_LATE = Outcome("engine_error", "protocol", begun=True)
REFUSED = Outcome("engine_error", "refused", elsewhere=True)
DEAD = Outcome("engine_error", "dead")
DEAD_LATE = Outcome("engine_error", "dead", begun=True)
CLOSING = Outcome("no_ready_replica", "closing", elsewhere=True)

# fault: (streamed, whole)
MENU: dict[str, tuple[Outcome, Outcome]] = {
    "accept_and_hang": (LATE, LATE),
    "first_byte_delay": (FINE, FINE),
    "headers_then_hang": (LATE, LATE),
    "headers_late": (FINE, FINE),
    "stall_mid_stream": (STALLED, LATE),
    "truncate_chunk": (CUT, RESET),
    "reset_mid_stream": (CUT, RESET),
    "reset_before_response": (RESET, RESET),
    "close_mid_stream": (CUT, RESET),
    "malformed_sse": (SPOILT_LATE, SPOILT),
    "invalid_utf8": (SPOILT_LATE, SPOILT),
    "huge_line": (SPOILT_LATE, SPOILT),
    "error_event_first": (DEAD, DEAD),
    "error_event_mid": (DEAD_LATE, DEAD),
    "done_missing": (FINE, FINE),
    "done_twice": (FINE, FINE),
    "wrong_content_type": (SPOILT, SPOILT),
    "informational_flood": (SPOILT, SPOILT),
    "giant_headers": (SPOILT, SPOILT),
    "bytes_after_end": (FINE, FINE),
    "status_burst": (REFUSED, REFUSED),
    "bad_status_line": (SPOILT, SPOILT),
    "both_lengths": (SPOILT, SPOILT),
    "wrong_model_name": (FINE, FINE),
    "keepalive_comments": (FINE, FINE),
    "split_events": (FINE, FINE),
    "merged_events": (FINE, FINE),
    "crlf_events": (FINE, FINE),
    "no_space_data": (FINE, FINE),
    "draining": (CLOSING, CLOSING),
    "health_slow": (FINE, FINE),
    "metrics_slow": (FINE, FINE),
    "metrics_garbage": (FINE, FINE),
    "metrics_stale": (FINE, FINE),
    "health_ok_generation_hangs": (LATE, LATE),
    "paused": (LATE, LATE),
    "asleep": (LATE, LATE),
    "slow_death": (FINE, FINE),
}
# They take the replica out, which tests of replicas look at: nothing is left to answer, or the other one does.
EJECTING = frozenset({"refuse", "health_503", "flapping"})
CASES = [(name, stream) for name in MENU for stream in (True, False)]


def outcome_of(name: str, stream: bool) -> Outcome:
    return MENU[name][0 if stream else 1]


@dataclass(frozen=True)
class Got:
    """An answer as a client sees it."""

    status: int
    request_id: str
    body: bytes
    stream: bool

    @property
    def events(self) -> list[Any]:
        return [orjson.loads(line[6:]) for line in self.body.split(b"\n") if line.startswith(b"data: {")]

    @property
    def done(self) -> int:
        return self.body.count(b"data: [DONE]\n\n")

    @property
    def code(self) -> str | None:
        """The code of the error, as an answer or as the last event."""
        last = self.events[-1] if self.stream and self.status == 200 else orjson.loads(self.body)
        return last["error"]["code"] if "error" in last else None


class Stage:
    """Two engines; a gateway in front of the first, and one in front of both that prefers the first."""

    def __init__(self, site: Any) -> None:
        self.site = site
        self.broken, self.sound = (site.engine(step_time=0.0, prefill_tokens_per_second=0.0) for _ in range(2))
        limits = {"timeouts_first_byte": DEADLINE, "timeouts_idle": DEADLINE, "timeouts_connect": DEADLINE}
        # Each fault is looked at by itself: many in a row would take the replica out for its errors.
        breaker = {"share": 0, "eject": 0.1, "eject_most": 0.2, "probation": 1}
        # By estimate, the first would get nothing once a busy machine had made it seem slow.
        balancing = {"strategy": "least-in-flight"}
        routing = site.routing(warmup={"shapes": [], "slow_start": 0}, breaker=breaker, balancing=balancing)
        kept = {"policies": routing}
        self.one = site.gateway([self.broken], **limits, **kept)
        self.two = site.gateway([self.broken, self.sound], **limits, **kept)
        self.two.gateway.core.registry.replicas[1].enter()
        self.keys = {id(each): each.key() for each in (self.one, self.two)}
        self.client = httpx.Client(timeout=20, trust_env=False)

    def fault(self, name: str | None, **params: Any) -> None:
        async def change() -> None:
            self.broken.faults.clear()
            if name is not None:
                self.broken.faults.set(name, **params)

        self.site.run(change())

    def ask(self, gateway: Any, stream: bool) -> Got:
        headers = {"authorization": f"Bearer {self.keys[id(gateway)]}"}
        url = f"{gateway.url}/v1/chat/completions"
        answer = self.client.post(url, json={**CHAT, "stream": stream}, headers=headers)
        return Got(answer.status_code, answer.headers["x-request-id"], answer.content, stream)

    def proves(self, gateway: Any) -> bool:
        """Answers a request; whether the first replica has then come back for good: on its way one failure ends it."""
        assert self.ask(gateway, stream=False).status == 200
        return bool(gateway.gateway.core.registry.replicas[0].proven)

    def settled(self, gateway: Any) -> bool:
        """Whether nothing is in flight, and all that is open upstream waits in its pool."""
        replicas = gateway.gateway.core.registry.replicas
        extra = 1 if gateway is self.two else 0
        pools = [replica.link.requests for replica in replicas]
        return sum(r.in_flight for r in replicas) == extra and all(pool.open == pool.idle for pool in pools)


@pytest.fixture(scope="module")
def stage(shared_site: Any) -> Iterator[Stage]:
    stage = Stage(shared_site)
    yield stage
    stage.client.close()


@pytest.fixture(autouse=True)
def _sound_again(stage: Stage, wait_until: Any) -> Iterator[None]:
    """After each test the next request succeeds, and no connection is left in a bad state."""
    yield
    stage.fault(None)
    for gateway in (stage.one, stage.two):
        gateway.wait_ready("sim-model", 1 if gateway is stage.one else 2)
        assert stage.ask(gateway, stream=True).done == 1
        wait_until(lambda gateway=gateway: stage.proves(gateway), "the first to have proven itself")
        wait_until(lambda gateway=gateway: stage.settled(gateway), "nothing in flight")


def assert_fine(got: Got) -> None:
    assert got.status == 200
    assert got.code is None
    if got.stream:
        assert got.done == 1
        assert {event["model"] for event in got.events} == {"sim-model"}
        assert [e["choices"][0]["finish_reason"] for e in got.events if e["choices"]][-1] == "length"
    else:
        answer = orjson.loads(got.body)
        assert answer["model"] == "sim-model"
        assert answer["usage"]["completion_tokens"] == 6


def assert_failed(got: Got, outcome: Outcome) -> None:
    assert got.status == (200 if outcome.begun else STATUSES[outcome.code])
    assert got.code == outcome.code
    assert got.done == 0
    error = got.events[-1] if outcome.begun else orjson.loads(got.body)
    assert set(error) == {"error"}
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert b"EngineCore" not in got.body


def assert_recorded(gateway: Any, got: Got, outcome: Outcome, attempts: int) -> None:
    record = gateway.records.last(request_id=got.request_id)
    failed = outcome.code is not None and attempts == 1
    assert record["status"] == got.status
    assert record["error"] == (outcome.code if failed else None)
    assert record["reason"] == outcome.reason
    assert record["attempts"] == attempts
    assert record["replica"] == gateway.gateway.core.registry.replicas[attempts - 1].id
    if not failed:
        assert record["completion_tokens"] == 6
        assert record["finish"] == "length"


def test_the_whole_menu_is_looked_at():
    assert set(MENU) | EJECTING == set(FAULTS)


@pytest.mark.parametrize(("name", "stream"), CASES)
def test_one_replica_with_the_fault(stage, name, stream):
    stage.fault(name)
    outcome = outcome_of(name, stream)
    got = stage.ask(stage.one, stream)
    if outcome.code is None:
        assert_fine(got)
    else:
        assert_failed(got, outcome)
    assert_recorded(stage.one, got, outcome, attempts=1)


@pytest.mark.parametrize(
    ("name", "stream"), [case for case in CASES if outcome_of(*case).code and outcome_of(*case) is not LATE]
)
def test_a_second_replica_helps_while_nothing_was_sent_and_it_may(stage, name, stream):
    stage.fault(name)
    outcome = outcome_of(name, stream)
    got = stage.ask(stage.two, stream)
    if outcome.elsewhere:
        assert_fine(got)
    else:
        assert_failed(got, outcome)
    assert_recorded(stage.two, got, outcome, attempts=2 if outcome.elsewhere else 1)
    ids = [each.header(b"x-request-id") or b"" for each in list(stage.sound.requests)]
    assert sum(each.startswith(got.request_id.encode()) for each in ids) == outcome.elsewhere


def test_no_replica_is_tried_twice_and_no_more_than_allowed(site):
    engines = [site.engine(step_time=0.0, prefill_tokens_per_second=0.0) for _ in range(4)]
    gateway = site.gateway(engines, attempts=3)
    gateway.wait_ready("sim-model", 4)

    async def spoil() -> None:
        for engine in engines:
            engine.faults.set("reset_before_response")

    site.run(spoil())
    with httpx.Client(timeout=20, trust_env=False) as client:
        headers = {"authorization": f"Bearer {gateway.key()}"}
        answer = client.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 502
    record = gateway.records.last(request_id=answer.headers["x-request-id"])
    assert (record["attempts"], record["error"], record["reason"]) == (3, "engine_error", "reset")
    asked = [sum(each.method == "POST" for each in list(engine.requests)) for engine in engines]
    assert sorted(asked) == [0, 1, 1, 1]


@pytest.mark.parametrize("status", [400, 404, 413, 422, 401, 403, 429, 503])
def test_an_engines_refusal_is_the_gateways_word(stage, status):
    secret = "the prompt was hello world"
    stage.fault("status_burst", status=status, message=secret, type="BadRequestError")
    got = stage.ask(stage.one, stream=True)
    assert got.status == {401: 502, 403: 502}.get(status, got.status)
    assert got.status in {400, 404, 429, 502, 503}
    assert secret.encode() not in got.body
    assert got.code in {"invalid_request", "unsupported_endpoint", "queue_full", "no_ready_replica", "engine_error"}


def test_a_refusal_as_large_as_a_prompt_is_still_a_refusal(stage):
    stage.fault("status_burst", status=400, message="x" * 500_000, type="BadRequestError")
    got = stage.ask(stage.one, stream=False)
    assert (got.status, got.code) == (400, "invalid_request")


def test_an_engine_that_says_error_in_a_hundred_streams_gets_no_more_than_its_share(stage):
    """What it says is that its engine process is dead: the first request is told so, and the others go elsewhere."""
    stage.fault("error_event_first")
    statuses = [stage.ask(stage.two, stream=True).status for _ in range(20)]
    stage.fault(None)
    assert statuses == [502] + [200] * 19
    assert stage.two.gateway.core.registry.replicas[0].open_connections <= 2
