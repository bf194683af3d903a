"""The request path as a whole, between fakes: one answer, one record, and the order of the steps."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import operator
import random
import threading
import weakref
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission.gate import Gate
from gateway.dispatch import Dispatch
from gateway.errors import (
    CODES,
    EngineBusy,
    EngineClosing,
    EngineDead,
    EngineHung,
    EngineProtocolError,
    EngineRefused,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
    Refusal,
    Unavailable,
)
from gateway.fleet.balance.strategies import Ask, by_two_choices
from gateway.limits.local import LocalLimiter
from gateway.limits.sources import FailureGate
from gateway.model import NO_LIMITS, AliasTable, Limits, Principal, Revision, Target
from gateway.policy.access import parse_access
from gateway.policy.grants import Grant
from gateway.policy.guards import parse_guards
from gateway.policy.live import Policy, load_policy
from gateway.policy.schemacap import SchemaCap
from gateway.proxy import Proxy, Unknown, Visit
from gateway.routes import ROUTES
from gateway.steps.accept import accept
from gateway.steps.guard import Entry, open_door
from gateway.steps.observe import Observer
from gateway.steps.retry import RetryBudget
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Trace

FOLDER = Path(str(files("policies")))
SHIPPED = load_policy(FOLDER)
MODEL = "served-7b"
CHAT = "/v1/chat/completions"
WHOLE = orjson.dumps(
    {"model": MODEL, "choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
)
FIRST = b'data: {"model":"served-7b","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


class Keys:
    """Keys by text; an exception is raised."""

    def __init__(self, **principals) -> None:
        self.principals = principals
        self.epoch = 1

    def lookup(self, presented):
        found = self.principals.get(presented)
        if isinstance(found, Exception):
            raise found
        return found

    async def fetch(self, presented):
        raise AssertionError("every key is known")


class Fleet:
    """The same lanes for every model of ``models``; ``any_ready`` when there is a lane."""

    def __init__(self, lanes, models) -> None:
        self.lanes = lanes
        self.models = models
        self.length = None

    def max_model_len(self, model):
        return self.length

    def ready(self, model):
        return self.lanes if model in self.models else ()

    def any_ready(self):
        return bool(self.lanes)

    def back_in(self, model):
        return 17


class Choices:
    """Two choices, of which nothing is learned."""

    def __init__(self) -> None:
        self.random = random.Random(1).random
        self.learnt: list[Trace] = []

    def consider(self, request, alias, model, salt, *, request_id, tenant, session):
        self.considered = (alias, model, salt)
        self.caller = (request_id, tenant, session)
        return self

    def among(self, candidates):
        return by_two_choices(candidates, Ask(0.0, 0.0), self.random)

    def lane(self, replica):
        return replica

    def learn(self, trace):
        self.learnt.append(trace)


class Plane:
    """A proxy between fakes. ``records`` are complete after ``handle``."""

    def __init__(
        self,
        fakes,
        *lanes,
        grants=("*",),
        keys=None,
        aliases=("general",),
        attempts=2,
        policy=SHIPPED,
        limits=NO_LIMITS,
    ) -> None:
        self.fakes = fakes
        self.policy = policy
        self.epoch = 0
        self.lanes = lanes
        self.keys = keys or Keys(good=Principal("key-1", "acme", aliases=grants, limits=limits))
        self.table = AliasTable(1, {name: Revision(name, 1, (Target(MODEL),), "ops", 5.0) for name in aliases})
        self.older: dict = {}
        self.attempts = attempts
        self.clock = fakes.Clock()
        self.wall = 5.0
        self.metrics = Metrics()
        self.limiter = LocalLimiter(self.clock)
        self.failures = FailureGate(3, self.clock)
        self.schemas = SchemaCap(2, 3600.0, self.clock)
        self.records: list[dict] = []
        self.fleet = Fleet(lanes, {MODEL})
        self.balancer = Choices()
        self.budget = RetryBudget()
        self.outcomes: list[tuple] = []

    def on_outcome(self, priority, outcome, waited) -> None:
        self.outcomes.append((priority, outcome))

    def write(self, record) -> None:
        self.records.append(record)

    async def revision(self, alias, number):
        found = self.older.get((alias, number))
        if isinstance(found, Exception):
            raise found
        return found

    async def handle(self, *exchanges) -> None:
        """Handle them all at once."""
        loop = asyncio.get_running_loop()
        observer = Observer(loop, self, self.metrics, self.clock)
        self.gate = Gate(loop, lambda: self.policy.routing.admission, self.fleet.ready, on_outcome=self.on_outcome)
        self.dispatch = Dispatch(
            self.fleet, self.gate, self, self.metrics, self.clock, attempts=self.attempts, budget=self.budget
        )
        proxy = self.proxy = Proxy(
            door=open_door(ROUTES),
            callers=self.keys,
            failures=self.failures,
            policies=self,
            limiter=self.limiter,
            schemas=self.schemas,
            aliases=self,
            fleet=self.fleet,
            dispatch=self.dispatch,
            observer=observer,
            salt=lambda tenant: f"salt-of-{tenant}",
            split_key=b"k" * 32,
            balancer=self.balancer,
            new_id=lambda: "req_1",
            clock=self.clock,
            wall=lambda: self.wall,
        )
        try:
            async with asyncio.timeout(5):
                self.handling = [asyncio.ensure_future(proxy.handle(exchange)) for exchange in exchanges]
                await asyncio.gather(*self.handling)
        finally:
            observer.close()

    def serve(self, exchange):
        """Handle it and return its one record."""
        before = len(self.records)
        asyncio.run(self.handle(exchange))
        assert len(self.records) == before + 1
        return self.records[-1]

    def chat(self, *, key="good", model="general", **fields):
        body = {"model": model, "messages": [{"role": "user", "content": "hunter2"}], **fields}
        return self.fakes.Exchange("POST", CHAT, body=orjson.dumps(body), headers={"authorization": f"Bearer {key}"})

    def get(self, path, *, key="good"):
        return self.fakes.Exchange("GET", path, headers={"authorization": f"Bearer {key}"})

    def counted(self, name: str) -> dict[tuple, float]:
        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(sample.labels.values()): sample.value for sample in samples}


def _grant(**fields) -> Grant:
    return SHIPPED.access.grant(Principal("key-1", "acme", **fields))


def _error(exchange):
    return orjson.loads(exchange.sent)["error"]


# --- the usual way


def test_a_chat_is_answered_and_recorded(fakes):
    lane = fakes.Lane(fakes.says(WHOLE), name="127.0.0.1:8004")
    plane = Plane(fakes, lane)
    exchange = plane.chat()
    record = plane.serve(exchange)
    assert orjson.loads(exchange.sent)["model"] == "general"
    wanted = {
        "endpoint": "chat", "tenant": "acme", "key_id": "key-1", "alias": "general", "revision": 1, "track": "stable",
        "model": MODEL, "replica": "127.0.0.1:8004", "attempts": 1, "stream": False, "status": 200, "error": None,
        "reason": None, "finish": "stop", "prompt_tokens": 3, "completion_tokens": 2, "time": 5.0,
        "request_id": "req_1",
    }  # fmt: skip
    assert {name: record[name] for name in wanted} == wanted
    assert record["request_bytes"] == len(asyncio.run(exchange.body(1 << 20)))
    assert exchange.sent_headers[b"x-gateway-alias"] == b"general@1"


def test_the_engine_gets_the_served_models_name_and_the_tenants_salt(fakes):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane)
    plane.serve(plane.chat())
    sent = orjson.loads(lane.sent[0][2])
    assert (sent["model"], sent["cache_salt"]) == (MODEL, "salt-of-acme")


@pytest.mark.parametrize(
    ("path", "ready", "draining", "status"),
    [
        ("/healthz", True, False, 200),
        ("/healthz", False, True, 200),
        ("/readyz", True, False, 200),
        ("/readyz", False, False, 503),
        ("/readyz", True, True, 503),
    ],
)
def test_health_asks_for_no_key(fakes, path, ready, draining, status):
    plane = Plane(fakes, *([fakes.Lane(fakes.says())] if ready else []))
    exchange = fakes.Exchange("GET", path)
    exchange.draining = draining
    record = plane.serve(exchange)
    assert exchange.status == record["status"] == status
    assert record["endpoint"] == "health"


# --- the order of the steps


@pytest.mark.parametrize("key", ["wrong", "", "x" * 300])
def test_a_wrong_key_never_reads_the_body(fakes, key):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane)
    exchange = plane.chat(key=key)
    record = plane.serve(exchange)
    assert exchange.body_reads == 0
    assert lane.sent == []
    assert (exchange.status, record["error"], record["key_id"]) == (401, "invalid_api_key", None)


def test_an_unsound_head_is_refused_before_the_key_is_looked_at(fakes):
    plane = Plane(fakes, keys=Keys(good=AssertionError("looked at")))
    exchange = fakes.Exchange("POST", CHAT, body=b"{}", headers={"authorization": "Bearer good", "upgrade": "h2c"})
    plane.serve(exchange)
    assert exchange.status == 400
    assert exchange.closing


def test_a_body_that_breaks_a_rule_is_refused_before_its_alias_is_looked_up(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    exchange = plane.chat(model="unknown", not_a_member=1)
    record = plane.serve(exchange)
    assert (exchange.status, record["alias"]) == (400, None)


@pytest.mark.parametrize("grants", [("other-*",), ("General",), ()])
def test_a_forbidden_alias_never_reaches_an_engine(fakes, grants):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane, grants=grants)
    record = plane.serve(plane.chat())
    assert lane.sent == []
    assert record["status"] in {403, 404}
    assert (record["alias"], record["model"], record["replica"], record["attempts"]) == (None, None, None, 0)


def test_a_large_body_meets_the_same_rules(fakes):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane)
    assert plane.serve(plane.chat(user="x" * 10, stop=["y"]))["status"] == 200
    large = [{"role": "user", "content": "x" * 600_000}]
    assert plane.serve(plane.chat(messages=large))["status"] == 200
    assert plane.serve(plane.chat(messages=large, not_a_member=1))["status"] == 400
    assert plane.serve(plane.chat(messages=large, model="unknown"))["status"] == 404


class Parser:
    """Takes the place of ``accept``: stops until it is let go, and counts how many are in it at once."""

    def __init__(self, monkeypatch) -> None:
        self.inside = self.most = 0
        self.go = threading.Event()
        self._lock = threading.Lock()
        self._accept = accept
        monkeypatch.setattr("gateway.proxy.accept", self)

    def __call__(self, *question):
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.go.wait(5)
        try:
            return self._accept(*question)
        finally:
            with self._lock:
                self.inside -= 1


LARGE = [{"role": "user", "content": "x" * 600_000}]


async def _until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_two_large_bodies_are_parsed_at_a_time_and_all_of_them_are_served(fakes, monkeypatch):
    parser = Parser(monkeypatch)
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(plane.handle(*[plane.chat(messages=LARGE) for _ in range(8)]))
            await _until(lambda: parser.inside == 2)
            parser.go.set()

    asyncio.run(body())
    assert parser.most == 2
    assert [record["status"] for record in plane.records] == [200] * 8


def test_a_turn_at_parsing_lasts_as_long_as_the_thread_whatever_the_client_does(fakes, monkeypatch):
    parser = Parser(monkeypatch)
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    exchanges = [plane.chat(messages=LARGE) for _ in range(6)]

    async def body() -> None:
        serving = asyncio.create_task(plane.handle(*exchanges))
        await _until(lambda: parser.inside == 2)
        for task, exchange in zip(plane.handling, exchanges, strict=True):
            exchange.gone = True
            task.cancel()
        await serving
        assert plane.proxy.parses.locked()
        parser.go.set()
        await _until(lambda: not plane.proxy.parses.locked())

    asyncio.run(body())
    assert parser.most == 2
    assert [record["status"] for record in plane.records] == [499] * 6


class Tree:
    """Stands for what a body was parsed to."""


@pytest.mark.parametrize("size", [10, 600_000], ids=["on the loop", "in a thread"])
def test_a_refusal_keeps_nothing_of_what_was_refused(fakes, monkeypatch, size):
    made = []

    def refuses(*_):
        tree = Tree()
        made.append(weakref.ref(tree))
        raise Refusal("invalid_request")

    monkeypatch.setattr("gateway.proxy.accept", refuses)
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    with _no_collection():
        assert plane.serve(plane.chat(messages=[{"role": "user", "content": "x" * size}]))["status"] == 400
        assert [tree() for tree in made] == [None]


@pytest.mark.parametrize("turns", [1, 2], ids=["no other answers", "another answers"])
def test_a_failed_attempt_keeps_nothing_of_the_request(fakes, turns):
    made = []

    async def fails():
        tree = Tree()
        made.append(weakref.ref(tree))
        raise EngineReset

    plane = Plane(fakes, *[fakes.Lane(turn) for turn in (fails, fakes.says(WHOLE))[:turns]])
    with _no_collection():
        assert {plane.serve(plane.chat())["status"] for _ in range(4)} == {502 if turns == 1 else 200}
        assert made
        assert {tree() for tree in made} == {None}


@contextlib.contextmanager
def _no_collection():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_while_an_engine_answers_only_the_bytes_of_a_large_body_are_kept(fakes, monkeypatch):
    class Payload(dict):
        """A dictionary that can be watched."""

    watched = []

    def watching(*question):
        request = accept(*question)
        payload = Payload(request.payload)
        watched.append(weakref.ref(payload))
        return request._replace(payload=payload)

    async def looks():
        await _until(lambda: [payload() for payload in watched] == [None])  # the thread lets go of it soon after
        return await fakes.says(WHOLE)()

    monkeypatch.setattr("gateway.proxy.accept", watching)
    plane = Plane(fakes, fakes.Lane(looks))
    with _no_collection():
        assert plane.serve(plane.chat(messages=LARGE))["status"] == 200


# --- what may be seen


def test_404_is_the_same_for_what_is_not_there_and_what_is_not_yours(fakes):
    answers = []
    for model in ("theirs", "nowhere"):
        plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), grants=("mine",), aliases=("mine", "theirs"))
        for exchange in (plane.chat(model=model), plane.get(f"/v1/models/{model}")):
            plane.serve(exchange)
            answers.append((exchange.status, exchange.sent_headers, exchange.sent, exchange.closing))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 404
    assert _error(exchange)["code"] == "model_not_found"


NAMES = ("internal-a", "internal-b", "org/model", "v1", "V1")
GRANTS = st.lists(st.sampled_from(["*", "internal-*", "internal-a", "v?", "org/*", "*1", "none", "?1"]), max_size=3)


@settings(max_examples=25, deadline=None)
@given(GRANTS, st.sets(st.sampled_from(NAMES)))
def test_the_list_of_models_is_exactly_what_may_be_called(fakes, grants, names):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), grants=tuple(grants), aliases=tuple(names))
    listing = plane.get("/v1/models")
    plane.serve(listing)
    listed = [model["id"] for model in orjson.loads(listing.sent)["data"]]
    assert listed == sorted(listed)
    for name in NAMES:
        called, shown = plane.chat(model=name), plane.get(f"/v1/models/{name}")
        plane.serve(called)
        plane.serve(shown)
        assert (called.status == 200) == (shown.status == 200) == (name in listed)


def test_a_model_is_shown_under_its_alias_and_never_says_what_serves_it(fakes):
    plane = Plane(fakes)
    exchange = plane.get("/v1/models/general")
    plane.serve(exchange)
    assert orjson.loads(exchange.sent) == {"id": "general", "object": "model", "created": 5, "owned_by": "gateway"}
    listing = plane.get("/v1/models")
    plane.serve(listing)
    assert orjson.loads(listing.sent) == {"object": "list", "data": [orjson.loads(exchange.sent)]}


def test_no_name_of_a_request_gets_into_a_metric_or_a_record(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    canary = "canary-4711"
    plane.serve(plane.chat(model=canary))
    plane.serve(plane.get(f"/v1/models/{canary}"))
    plane.serve(plane.get(f"/{canary}"))
    plane.serve(plane.chat(key=canary))
    plane.serve(plane.chat(user=canary))
    assert canary.encode() not in plane.metrics.render()
    assert canary not in repr(plane.records)


# --- retries

ELSEWHERE = (
    EngineUnreachable(),
    EngineBusy(),
    EngineReset(),
    EngineRefused(elsewhere=True),
    EngineTimeout(),
    EngineHung(),
    EngineClosing(),
)
NOWHERE = (EngineProtocolError(), EngineRefused("invalid_request"), EngineDead())


@pytest.mark.parametrize("error", ELSEWHERE, ids=lambda error: error.reason)
def test_a_failure_that_another_replica_may_mend_is_tried_there(fakes, error):
    shared = _first_fails(fakes, error)
    lanes = [fakes.Lane(shared, name=f"127.0.0.1:{n}") for n in range(2)]
    plane = Plane(fakes, *lanes)
    exchange = plane.chat()
    record = plane.serve(exchange)
    assert (record["status"], record["attempts"], record["reason"], record["error"]) == (200, 2, error.reason, None)
    assert [len(lane.sent) for lane in lanes] == [1, 1]
    assert {lane.sent[0][3] for lane in lanes} == {"req_1-1", "req_1-2"}
    assert functools.reduce(operator.iadd, (lane.failures for lane in lanes), []) == [error]
    assert [lane.in_flight for lane in lanes] == [0, 0]
    assert plane.counted("gateway_retries_total") == {(error.reason,): 1.0}


def _first_fails(fakes, error):
    """A turn, shared by lanes, that fails the first time only."""
    left = [error]

    async def turn():
        if left:
            raise left.pop()
        return fakes.answer(WHOLE)[0]

    return turn


@pytest.mark.parametrize("error", NOWHERE, ids=lambda error: error.reason)
def test_a_failure_that_would_be_the_same_elsewhere_is_told_at_once(fakes, error):
    lanes = [fakes.Lane(fakes.fails(error), name=f"127.0.0.1:{n}") for n in range(3)]
    plane = Plane(fakes, *lanes)
    exchange = plane.chat()
    record = plane.serve(exchange)
    assert (record["attempts"], record["status"], record["error"]) == (1, error.spec.status, error.spec.code)
    assert exchange.status == error.spec.status
    assert plane.counted("gateway_retries_total") == {}


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_one_request_touches_no_more_replicas_than_it_may_and_none_twice(fakes, attempts):
    lanes = [fakes.Lane(fakes.fails(EngineReset()), name=f"127.0.0.1:{n}") for n in range(5)]
    plane = Plane(fakes, *lanes, attempts=attempts)
    record = plane.serve(plane.chat())
    assert sorted(len(lane.sent) for lane in lanes) == [0] * (5 - attempts) + [1] * attempts
    assert (record["attempts"], record["status"], record["reason"]) == (attempts, 502, "reset")


@pytest.mark.parametrize(("count", "attempts", "retries"), [(1, 2, 0), (2, 2, 1), (3, 2, 1), (3, 1, 0), (2, 5, 1)])
def test_only_what_was_sent_again_counts_as_a_retry(fakes, count, attempts, retries):
    """``gateway_retries`` says "sent to another replica": a last failure that nobody was left to mend is none."""
    lanes = [fakes.Lane(fakes.fails(EngineReset()), name=f"127.0.0.1:{n}") for n in range(count)]
    plane = Plane(fakes, *lanes, attempts=attempts)
    plane.serve(plane.chat())
    assert sum(plane.counted("gateway_retries_total").values()) == retries


def test_with_no_replica_it_is_503_and_says_when_to_come_back(fakes):
    plane = Plane(fakes)
    exchange = plane.chat()
    record = plane.serve(exchange)
    assert (exchange.status, record["error"], record["attempts"]) == (503, "no_ready_replica", 0)
    assert exchange.sent_headers[b"retry-after"] == b"17"


def test_a_long_prompt_is_not_paid_for_twice_after_a_deadline(fakes):
    lanes = [fakes.Lane(fakes.fails(EngineTimeout()), name=f"127.0.0.1:{n}") for n in range(2)]
    plane = Plane(fakes, *lanes)
    record = plane.serve(plane.chat(messages=[{"role": "user", "content": "x" * 20_000}]))
    assert (record["attempts"], record["status"], record["error"]) == (1, 504, "engine_timeout")


def test_a_full_queue_is_not_tried_elsewhere_when_all_others_are_full(fakes):
    lanes = [fakes.Lane(fakes.fails(EngineBusy()), name=f"127.0.0.1:{n}", busy=True) for n in range(3)]
    plane = Plane(fakes, *lanes)
    record = plane.serve(plane.chat())
    assert (record["attempts"], record["status"], record["error"]) == (1, 429, "queue_full")


@pytest.mark.parametrize(
    ("error", "second"),
    [(EngineReset(), 20), (EngineUnreachable(), 20), (EngineHung(), 20), (EngineRefused(elsewhere=True), 4)],
    ids=lambda value: getattr(value, "reason", ""),
)
def test_the_budget_bounds_what_engines_may_still_be_at_work_on(fakes, error, second):
    """Of twenty requests that fail at once, a fifth goes elsewhere; all of them, if the engine has let go of them."""
    arrived: list[int] = []

    async def first():
        arrived.append(1)
        while len(arrived) < 20:
            await asyncio.sleep(0)
        raise error

    async def never():
        for _ in range(100):
            await asyncio.sleep(0)
        raise EngineProtocolError

    lane, other = fakes.Lane(first, name="127.0.0.1:1"), fakes.Lane(never, name="127.0.0.1:2")
    plane = Plane(fakes, lane, other)
    plane.fleet.lanes = _First(lane, other)
    asyncio.run(plane.handle(*(plane.chat() for _ in range(20))))
    assert (len(lane.sent), len(other.sent)) == (20, second)
    assert (plane.budget.active, plane.budget.retrying) == (0, 0)
    assert (lane.in_flight, other.in_flight) == (0, 0)


class _First(tuple):
    """Two candidates of which the first is always picked, until it was tried."""

    def __new__(cls, one, other):
        one.share, other.share = 1.0, 1e-9
        return super().__new__(cls, (one, other))


def test_a_stream_that_has_begun_is_never_tried_elsewhere_and_ends_with_an_error_event(fakes):
    async def dies():
        answer, _ = fakes.answer(FIRST, 200, "text/event-stream", complete=False)
        answer.fail(EngineReset())
        return answer

    lanes = [fakes.Lane(dies, name=f"127.0.0.1:{n}") for n in range(2)]
    plane = Plane(fakes, *lanes)
    exchange = plane.chat(stream=True)
    record = plane.serve(exchange)
    assert sum(len(lane.sent) for lane in lanes) == 1
    assert exchange.status == 200
    assert exchange.finished
    assert b"[DONE]" not in exchange.sent
    assert orjson.loads(exchange.writes[-1].removeprefix(b"data: "))["error"]["code"] == "engine_error"
    assert (record["status"], record["error"], record["reason"]) == (200, "engine_error", "reset")


# --- the choice of a replica


class Along(Choices):
    """A choice that takes the last candidate, and gives a lane beside it: ``lanes`` are what was given, in order."""

    def __init__(self, fakes, turn=None) -> None:
        super().__init__()
        self.fakes, self.turn = fakes, turn
        self.seen: list[list[str]] = []
        self.lanes: list[tuple[str, object]] = []

    def among(self, candidates):
        self.seen.append([each.id for each in candidates])
        return candidates[-1]

    def lane(self, replica):
        lane = self.fakes.Lane(self.turn or self.fakes.says(WHOLE), name="a lane has no name")
        self.lanes.append((replica.id, lane))
        return lane


def _along(fakes, turn=None, count=3, **fields):
    plane = Plane(fakes, *[fakes.Lane(fakes.fails(AssertionError()), name=f"r{n}") for n in range(count)], **fields)
    plane.balancer = Along(fakes, turn)
    return plane


def test_the_lane_that_the_choice_gives_is_the_one_that_is_used(fakes):
    plane = _along(fakes)
    record = plane.serve(plane.chat())
    assert (record["status"], record["replica"], record["attempts"]) == (200, "r2", 1)
    [(chosen, lane)] = plane.balancer.lanes
    assert (chosen, len(lane.sent), lane.most_in_flight, lane.in_flight) == ("r2", 1, 1, 0)
    assert [replica.most_in_flight for replica in plane.lanes] == [0, 0, 0]
    assert [replica.successes for replica in plane.lanes] == [0, 0, 1]  # what it did is said of the replica


def test_each_attempt_is_chosen_among_those_not_tried_and_has_a_lane_of_its_own(fakes):
    plane = _along(fakes, _first_fails(fakes, EngineReset()))
    record = plane.serve(plane.chat())
    assert (record["status"], record["attempts"], record["replica"]) == (200, 2, "r1")
    assert plane.balancer.seen == [["r0", "r1", "r2"], ["r0", "r1"]]
    assert [name for name, _ in plane.balancer.lanes] == ["r2", "r1"]
    assert all(len(lane.sent) == 1 and not lane.in_flight for _, lane in plane.balancer.lanes)
    assert [len(replica.failures) for replica in plane.lanes] == [0, 0, 1]


@pytest.mark.parametrize(("isolation", "salt"), [("tenant", "salt-of-acme"), ("none", None)])
def test_the_choice_knows_alias_model_and_what_keeps_the_tenant_apart(fakes, isolation, salt):
    text = (FOLDER / "guards.yaml").read_text()
    assert text.count("\nisolation: tenant") == 1
    guards = parse_guards(text.replace("\nisolation: tenant", f"\nisolation: {isolation}"), "guards.yaml")
    plane = _along(fakes, policy=Policy(guards, PINS.access))
    plane.serve(plane.chat())
    assert plane.balancer.considered == ("general", MODEL, salt)
    assert orjson.loads(plane.balancer.lanes[0][1].sent[0][2]).get("cache_salt") == salt
    _pinned(plane, 2)
    assert plane.serve(plane.chat(model="general@2"))["status"] == 200
    assert plane.balancer.considered == ("general", MODEL, salt)


@pytest.mark.parametrize(("said", "session"), [("s-7", b"s-7"), ("not plain", None), (None, None)])
def test_the_choice_knows_the_request_its_tenant_and_what_the_client_says_it_belongs_to(fakes, said, session):
    plane = _along(fakes)
    exchange = plane.chat()
    if said is not None:
        exchange.head[b"x-session-id"] = said.encode()
    record = plane.serve(exchange)
    assert plane.balancer.caller == (record["request_id"], record["tenant"], session)


@pytest.mark.parametrize("attempts", [1, 2])
def test_only_what_was_answered_to_its_end_is_learned_and_once(fakes, attempts):
    turns = {1: fakes.says(WHOLE), 2: _first_fails(fakes, EngineReset())}
    plane = _along(fakes, turns[attempts])
    assert plane.serve(plane.chat())["attempts"] == attempts
    [trace] = plane.balancer.learnt
    assert trace.usage.prompt == 3


def test_of_a_stream_that_was_answered_to_its_end_too(fakes):
    last = b'data: {"model":"served-7b","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    plane = _along(fakes, fakes.says(FIRST + last + b"data: [DONE]\n\n", 200, "text/event-stream"))
    assert plane.serve(plane.chat(stream=True))["status"] == 200
    assert len(plane.balancer.learnt) == 1
    assert plane.balancer.lanes[0][1].answers == 1


@pytest.mark.parametrize("error", [*ELSEWHERE, *NOWHERE], ids=lambda error: error.reason)
def test_of_what_failed_nothing_is_learned(fakes, error):
    plane = _along(fakes, fakes.fails(error))
    assert plane.serve(plane.chat())["error"] is not None
    assert plane.balancer.learnt == []
    assert all(not lane.in_flight for _, lane in plane.balancer.lanes)


def test_nor_of_a_stream_that_broke_off_or_a_client_that_left(fakes):
    async def dies():
        answer, _ = fakes.answer(FIRST, 200, "text/event-stream", complete=False)
        answer.fail(EngineReset())
        return answer

    plane = _along(fakes, dies)
    plane.serve(plane.chat(stream=True))
    assert plane.balancer.learnt == []
    reached = asyncio.Event()

    async def waits():
        exchange.gone = True
        reached.set()
        await asyncio.Event().wait()

    plane = _along(fakes, waits)
    exchange = plane.chat()
    assert _cancelled(plane, exchange, reached)["status"] == 499
    assert plane.balancer.learnt == []
    assert [lane.in_flight for _, lane in plane.balancer.lanes] == [0]


def test_a_request_that_is_refused_before_is_not_considered(fakes):
    plane = _along(fakes)
    for exchange in (plane.chat(key="wrong"), plane.chat(model="unknown"), plane.chat(not_a_member=1)):
        assert plane.serve(exchange)["status"] in {400, 401, 404}
    assert not hasattr(plane.balancer, "considered")


def test_a_choice_that_fails_gives_back_what_was_taken(fakes):
    def breaks(*_, **__):
        raise RuntimeError("broken")

    plane = _along(fakes, limits=Limits(concurrency=1))
    plane.balancer.consider = breaks
    exchange = plane.chat()
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(plane.handle(exchange))
    assert exchange.status == 500
    del plane.balancer.consider
    assert plane.serve(plane.chat())["status"] == 200


# --- one record, whatever happens


def test_every_refusal_leaves_one_record_and_one_answer(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    for exchange, code in (
        (fakes.Exchange("GET", "/nowhere"), "not_found"),
        (fakes.Exchange("PUT", "/v1/models"), "method_not_allowed"),
        (fakes.Exchange("GET", "/v1/models"), "invalid_api_key"),
        (plane.chat(key="wrong"), "invalid_api_key"),
        (plane.chat(model="nowhere"), "model_not_found"),
        (plane.chat(extra=1), "invalid_request"),
        (plane.chat(messages=[{"role": "user", "content": "x" * (9 << 20)}]), "body_too_large"),
    ):
        record = plane.serve(exchange)
        assert (record["error"], record["status"]) == (code, CODES[code].status)
        assert exchange.status == CODES[code].status
        assert exchange.sent_headers[b"x-request-id"] == b"req_1"
        assert b"hunter2" not in exchange.sent


def test_a_store_that_is_gone_is_503(fakes):
    plane = Plane(fakes, keys=Keys(good=Unavailable("store_unavailable", retry_after=1)))
    assert plane.serve(plane.chat())["error"] == "store_unavailable"


def _crash_in_keys(fakes):
    return Plane(fakes, fakes.Lane(fakes.says(WHOLE)), keys=Keys(good=LookupError("hunter2")))


def _crash_in_lane(fakes):
    return Plane(fakes, fakes.Lane(fakes.fails(LookupError("hunter2"))))


@pytest.mark.parametrize("make", [_crash_in_keys, _crash_in_lane])
def test_a_crash_inside_a_step_is_answered_recorded_and_not_hidden(fakes, make):
    plane = make(fakes)
    exchange = plane.chat()
    with pytest.raises(LookupError):
        asyncio.run(plane.handle(exchange))
    assert [record["error"] for record in plane.records] == ["internal_error"]
    assert exchange.status == plane.records[0]["status"] == 500
    assert b"hunter2" not in exchange.sent
    assert all(lane.in_flight == 0 for lane in plane.lanes)


def _cancelled(plane, exchange, reached):
    async def body():
        task = asyncio.create_task(plane.handle(exchange))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(body())
    assert len(plane.records) == 1
    assert all(lane.in_flight == 0 for lane in plane.lanes)
    return plane.records[0]


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("where", ["body", "engine"])
def test_a_cancelled_request_leaves_one_record_and_is_answered_unless_the_client_left(fakes, gone, where):
    reached = asyncio.Event()

    async def waits(*_):
        exchange.gone = gone
        reached.set()
        await asyncio.Event().wait()

    plane = Plane(fakes, fakes.Lane(waits))
    exchange = plane.chat()
    if where == "body":
        exchange.before_body = waits
    record = _cancelled(plane, exchange, reached)
    if gone:
        assert (record["status"], record["error"]) == (499, "client_gone")
        assert not exchange.started
    else:
        assert (record["status"], record["error"], exchange.status) == (503, "draining", 503)
        assert exchange.closing
        assert int(exchange.sent_headers[b"retry-after"]) >= 1


@pytest.mark.parametrize("gone", [True, False])
def test_a_cancelled_stream_ends_with_an_error_event_unless_the_client_left(fakes, gone):
    reached = asyncio.Event()

    async def begins():
        answer, _ = fakes.answer(FIRST, 200, "text/event-stream", complete=False)
        asyncio.get_running_loop().call_soon(reached.set)
        return answer

    plane = Plane(fakes, fakes.Lane(begins))
    exchange = plane.chat(stream=True)
    exchange.gone = gone
    record = _cancelled(plane, exchange, reached)
    assert record["error"] == ("client_gone" if gone else "draining")
    assert exchange.finished is not gone
    assert b"[DONE]" not in exchange.sent
    assert (b'"draining"' in exchange.sent) is not gone


# --- what the gateway itself adds


def test_waiting_for_an_engine_that_fails_is_not_the_gateways_time(fakes):
    async def slow():
        plane.clock.now += 600.0
        raise EngineTimeout

    plane = Plane(fakes, fakes.Lane(slow))
    record = plane.serve(plane.chat())
    assert record["duration_ms"] == pytest.approx(600_000)
    assert record["overhead_ms"] == pytest.approx(0.0, abs=1.0)


def test_a_first_attempt_that_failed_is_not_the_gateways_time(fakes):
    async def slow():
        plane.clock.now += 5.0
        if plane.clock.now < 1_006.0:
            raise EngineReset
        return fakes.answer(WHOLE)[0]

    plane = Plane(fakes, *(fakes.Lane(slow, name=f"127.0.0.1:{n}") for n in range(2)))
    record = plane.serve(plane.chat())
    assert (record["attempts"], record["status"]) == (2, 200)
    assert record["overhead_ms"] == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize("broken", [True, False])
def test_waiting_for_a_body_is_not_the_gateways_time(fakes, broken):
    async def slow():
        plane.clock.now += 30.0
        if broken:
            raise Unavailable("request_timeout")

    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    exchange = plane.chat()
    exchange.before_body = slow
    record = plane.serve(exchange)
    assert record["overhead_ms"] == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize(
    ("epoch", "now", "holds"), [(7, 5.0, True), (8, 5.0, False), (None, 5.0, False), (7, 10.0, False), (7, 11.0, False)]
)
def test_what_a_head_told_holds_while_no_key_has_changed_and_it_has_not_expired(epoch, now, holds):
    grant = _grant(expires_at=10.0)
    visit = Visit(Entry(ROUTES["POST", CHAT]), grant, 7)
    assert visit.granted(epoch, now) is (grant if holds else None)


def test_while_the_age_of_what_is_known_is_unknown_nothing_holds():
    visit = Visit(Entry(ROUTES["POST", CHAT]), _grant(), None)
    assert visit.granted(None, 5.0) is None


def test_a_familiar_head_is_not_judged_again_but_its_key_is_when_any_key_has_changed(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE), fakes.says(WHOLE)))
    first = plane.chat()
    plane.serve(first)
    again = plane.chat()
    again.familiar = first.kept
    plane.keys.principals.clear()
    plane.serve(again)
    assert again.status == 200
    plane.keys.epoch += 1
    last = plane.chat()
    last.familiar = first.kept
    plane.serve(last)
    assert last.status == 401


@pytest.mark.parametrize(
    ("epoch", "now", "holds"), [(7, 9.9, True), (8, 9.9, False), (None, 9.9, False), (7, 10.0, False), (7, 11.0, False)]
)
def test_that_a_credential_is_no_good_holds_while_no_key_has_changed_and_for_a_time(epoch, now, holds):
    unknown = Unknown(10.0, b"", b"")
    visit = Visit(Entry(ROUTES["POST", CHAT]), None, 7, unknown)
    assert visit.turned_away(epoch, now) is (unknown if holds else None)
    assert visit.granted(epoch, now) is None
    assert visit._replace(epoch=None).turned_away(epoch, now) is None
    assert Visit(Entry(ROUTES["POST", CHAT]), None, 7).turned_away(7, 0.0) is None


def _stranger(plane, before=None):
    exchange = plane.chat(key="stranger")
    exchange.familiar = None if before is None else before.kept
    plane.serve(exchange)
    return exchange


def test_a_familiar_head_with_a_wrong_key_is_refused_unseen_and_counts_as_another_failure(fakes):
    plane = Plane(fakes)
    first = _stranger(plane)
    plane.keys.principals["stranger"] = AssertionError("it was just looked at")
    again = [_stranger(plane, first) for _ in range(3)]
    assert [exchange.status for exchange in (first, *again)] == [401, 401, 401, 429]
    assert (first.sent, first.sent_headers) == (again[0].sent, again[0].sent_headers)
    assert _error(again[2])["code"] == "rate_limited"
    assert [record["error"] for record in plane.records] == ["invalid_api_key"] * 3 + ["rate_limited"]


@pytest.mark.parametrize("change", ["a key", "the policy", "a second has passed"])
def test_a_familiar_head_with_a_wrong_key_is_looked_at_anew(fakes, change):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    first = _stranger(plane)
    plane.keys.principals["stranger"] = plane.keys.principals["good"]
    if change == "a key":
        plane.keys.epoch += 1
    elif change == "the policy":
        plane.epoch += 1
    else:
        plane.wall += 1.0
    assert _stranger(plane, first).status == 200


def test_only_a_credential_that_is_no_good_is_remembered_so(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    plane.keys.principals["stranger"] = Unavailable("store_unavailable")
    first = _stranger(plane)
    assert first.status == 503
    plane.keys.principals["stranger"] = plane.keys.principals["good"]
    assert _stranger(plane, first).status == 200


def test_a_credential_that_was_not_looked_at_is_not_taken_for_no_good(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    for _ in range(3):
        plane.failures.failed("127.0.0.1")
    first = _stranger(plane)
    assert first.status == 429
    plane.keys.principals["stranger"] = plane.keys.principals["good"]
    assert _stranger(plane, first).status == 200


def test_a_familiar_head_is_recognised_anew_when_the_policy_has_changed(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE), fakes.says(WHOLE)))
    first = plane.chat()
    plane.serve(first)
    plane.policy = Policy(SHIPPED.guards, parse_access("roles: {user: {aliases: [other]}}\ndefault_roles: [user]", "x"))
    plane.epoch += 1
    again = plane.chat()
    again.familiar = first.kept
    plane.serve(again)
    assert (again.status, _error(again)["code"]) == (404, "model_not_found")


# --- limits


def test_what_is_left_of_the_limits_is_told_with_the_answer(fakes):
    limits = Limits(requests_per_minute=5, tokens_per_minute=2_000)
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), limits=limits)
    exchange = plane.chat(max_tokens=100)
    record = plane.serve(exchange)
    reserved = -(-record["request_bytes"] // 4) + 100
    assert exchange.sent_headers.get(b"x-ratelimit-limit-requests") == b"5"
    assert exchange.sent_headers.get(b"x-ratelimit-remaining-requests") == b"4"
    assert exchange.sent_headers.get(b"x-ratelimit-remaining-tokens") == b"%d" % (2_000 - reserved)


def test_nothing_is_told_where_there_is_no_limit(fakes):
    exchange = Plane(fakes, fakes.Lane(fakes.says(WHOLE))).chat()
    assert exchange.sent_headers.get(b"x-ratelimit-limit-requests") is None


def test_a_refused_request_reaches_no_engine_and_says_which_limit_and_when(fakes):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane, limits=Limits(requests_per_minute=1))
    plane.serve(plane.chat())
    exchange = plane.chat()
    record = plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"], record["attempts"]) == (429, "rate_limited", 0)
    assert "requests per minute" in _error(exchange)["message"]
    assert "acme" not in exchange.sent.decode()
    assert exchange.sent_headers.get(b"retry-after") == b"60"
    assert exchange.sent_headers.get(b"x-ratelimit-remaining-requests") == b"0"
    assert len(lane.sent) == 1


def _limited(fakes, **limits) -> Plane:
    """A plane whose caller has used up one request a minute, and is one of whom ``limits`` are left."""
    plane = Plane(fakes, fakes.Lane(*[fakes.says(WHOLE)] * 2), limits=Limits(requests_per_minute=1, **limits))
    assert plane.serve(plane.chat())["status"] == 200
    return plane


@pytest.mark.parametrize("fields", [{"model": "unknown"}, {"not_a_member": 1}, {"max_tokens": "x"}, {}])
def test_whom_the_number_of_requests_refuses_is_refused_before_the_body_is_read_as_anything(fakes, monkeypatch, fields):
    plane = _limited(fakes)
    monkeypatch.setattr("gateway.proxy.accept", lambda *_: pytest.fail("looked into"))
    exchange = plane.chat(**fields)
    record = plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"], exchange.body_reads) == (429, "rate_limited", 1)
    assert (record["tenant"], record["key_id"], record["error"]) == ("acme", "key-1", "rate_limited")
    assert record["request_bytes"] == len(asyncio.run(exchange.body(1 << 20)))
    assert record["alias"] is None


def test_that_refusal_is_told_as_the_one_of_a_body_that_was_read(fakes, monkeypatch):
    plane = _limited(fakes, tokens_per_minute=100_000, tokens_per_day=10**6, concurrency=3)
    early, late = plane.chat(), plane.chat()
    records = [plane.serve(early)]
    monkeypatch.setattr("gateway.proxy.turn_back", lambda *_: None)
    records.append(plane.serve(late))
    assert (early.status, early.sent, early.sent_headers) == (late.status, late.sent, late.sent_headers)
    known = records[0].items() - {("alias", None), ("revision", None), ("model", None)}
    assert known <= records[1].items()


def test_who_may_ask_again_is_let_through_at_that_moment(fakes):
    plane = _limited(fakes)
    plane.clock.now += 58.0
    assert plane.serve(plane.chat())["status"] == 429
    plane.clock.now += 2.0
    assert plane.serve(plane.chat())["status"] == 200


def test_a_request_that_no_wait_would_help_is_told_not_to_try_again(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), limits=Limits(tokens_per_minute=50))
    exchange = plane.chat(max_tokens=100)
    plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"]) == (429, "tokens_limited")
    assert exchange.sent_headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in exchange.sent_headers


def _left(plane, fakes) -> int:
    """Tokens of the minute that are left, by what a request that reserves nothing is told."""
    lease = plane.limiter.admit(plane.policy.access.grant(plane.keys.principals["good"]).budgets, 0)
    lease.close()
    return lease.standing.remaining_tokens


def test_the_engines_count_takes_the_place_of_what_was_reserved(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), limits=Limits(tokens_per_minute=5_000))
    plane.serve(plane.chat(max_tokens=4_000))
    assert _left(plane, fakes) == 5_000 - 5


def test_a_request_that_no_engine_answered_costs_no_tokens_and_no_place(fakes):
    plane = Plane(fakes, limits=Limits(tokens_per_minute=5_000, concurrency=1))
    for _ in range(2):
        exchange = plane.chat(max_tokens=4_000)
        plane.serve(exchange)
        assert _error(exchange)["code"] == "no_ready_replica"
    assert _left(plane, fakes) == 5_000


# --- what depends on the alias, its engines, or the tenant's past


def _with_masks(text: str) -> Policy:
    shipped = (FOLDER / "guards.yaml").read_text()
    assert shipped.count("\naliases: []") == 1
    return Policy(parse_guards(shipped.replace("\naliases: []", text), "guards.yaml"), SHIPPED.access)


def test_the_masks_of_an_alias_are_judged_once_it_is_known_to_be_the_callers(fakes):
    policy = _with_masks('\naliases: [{match: ["gen*"], forbid: [presence_penalty]}]')
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), policy=policy)
    for model, status, param in (("general", 400, "presence_penalty"), ("genuine", 404, "model")):
        exchange = plane.chat(model=model, presence_penalty=1)
        plane.serve(exchange)
        assert (exchange.status, _error(exchange)["param"]) == (status, param)
    exchange = plane.chat()
    plane.serve(exchange)
    assert exchange.status == 200


def test_output_that_leaves_no_room_for_a_prompt_is_refused_before_an_engine_sees_it(fakes):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane)
    plane.fleet.length = 512
    exchange = plane.chat(max_tokens=512)
    plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"]) == (400, "context_length_exceeded")
    exchange = plane.chat(max_tokens=511)
    plane.serve(exchange)
    assert exchange.status == 200


def test_a_tenant_may_use_only_so_many_different_schemas(fakes):
    plane = Plane(fakes, fakes.Lane(*[fakes.says(WHOLE)] * 3))
    seen = []
    for name in ("a", "b", "a", "c"):
        schema = {"type": "object", "properties": {name: {"type": "string"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        exchange = plane.chat(response_format=wanted)
        plane.serve(exchange)
        seen.append(exchange.status)
    assert seen == [200, 200, 200, 429]


def test_a_source_that_fails_too_often_waits_but_a_known_key_from_there_does_not(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), keys=Keys(good=Principal("key-1", "acme")))
    seen = []
    for _ in range(5):
        exchange = plane.chat(key="bad")
        plane.serve(exchange)
        seen.append(exchange.status)
    assert seen == [401, 401, 401, 429, 429]
    assert int(exchange.sent_headers.get(b"retry-after")) > 0
    exchange = plane.chat()
    plane.serve(exchange)
    assert exchange.status == 200


# --- revisions

PINS = Policy(
    SHIPPED.guards, parse_access('roles: {user: {aliases: ["*"], pins: true}}\ndefault_roles: [user]', "access.yaml")
)


def _pinned(plane, number, model=MODEL):
    plane.table.current["general"] = Revision("general", 3, (Target("another"),), "ops", 5.0)
    plane.older["general", number] = Revision("general", number, (Target(model),), "ops", 4.0)


def test_a_name_may_be_pinned_where_policy_allows_and_is_shown_as_it_was_written(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), policy=PINS)
    _pinned(plane, 2)
    exchange = plane.chat(model="general@2")
    record = plane.serve(exchange)
    assert exchange.status == 200
    assert exchange.sent_headers[b"x-gateway-alias"] == b"general@2"
    assert orjson.loads(exchange.sent)["model"] == "general@2"
    assert (record["alias"], record["revision"], record["model"]) == ("general", 2, MODEL)


def test_without_a_role_that_allows_it_an_older_revision_is_not_there(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    _pinned(plane, 2)
    exchange = plane.chat(model="general@2")
    plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"]) == (404, "model_not_found")


def test_a_pin_to_the_current_revision_needs_no_leave(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)))
    exchange = plane.chat(model="general@1")
    plane.serve(exchange)
    assert exchange.status == 200


def test_a_pinned_revision_whose_model_is_gone_is_never_answered_by_another(fakes):
    lane = fakes.Lane(fakes.says(WHOLE))
    plane = Plane(fakes, lane, policy=PINS)
    _pinned(plane, 2, model="gone")
    exchange = plane.chat(model="general@2")
    plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"]) == (503, "no_ready_replica")
    assert lane.sent == []


def test_an_older_revision_that_cannot_be_read_is_no_404(fakes):
    plane = Plane(fakes, fakes.Lane(fakes.says(WHOLE)), policy=PINS)
    plane.older["general", 0] = None
    plane.table.current["general"] = Revision("general", 3, (Target(MODEL),), "ops", 5.0)
    plane.older["general", 2] = Unavailable("store_unavailable", retry_after=1)
    exchange = plane.chat(model="general@2")
    plane.serve(exchange)
    assert (exchange.status, _error(exchange)["code"]) == (503, "store_unavailable")


def test_a_conversation_stays_on_its_side_of_a_trial_and_records_say_which(fakes):
    plane = Plane(fakes, fakes.Lane(*[fakes.says(WHOLE)] * 400))
    plane.fleet.models = {"old", "new"}
    targets = (Target("old", 70), Target("new", 30))
    plane.table.current["general"] = Revision("general", 2, targets, "ops", 5.0, source="canary", canary_of=1)
    seen = {}
    for number in range(60):
        turns = [{"role": "user", "content": f"conversation {number}"}]
        tracks = set()
        for _ in range(2):
            record = plane.serve(plane.chat(messages=list(turns)))
            assert {"old": "stable", "new": "canary"}[record["model"]] == record["track"]
            tracks.add(record["track"])
            turns += [{"role": "assistant", "content": "well"}, {"role": "user", "content": "and?"}]
        assert len(tracks) == 1
        seen[number] = tracks.pop()
    assert 5 <= sum(track == "canary" for track in seen.values()) <= 35
