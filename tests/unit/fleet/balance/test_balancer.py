"""Each request's choice, what it leaves on its replica and what is learned of it, with real replicas and no engines."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.balance.balancer import Balancer, Sent
from gateway.fleet.balance.pace import Prior
from gateway.fleet.life import Sign, State
from gateway.fleet.look import Seen
from gateway.fleet.replica import Replica
from gateway.fleet.signals import Reading, Signal
from gateway.model import BodyKind, Endpoint, EngineSpec, InferenceRequest, Route, Usage
from gateway.policy.balancing import NAMES, Balancing
from gateway.policy.fleet import FleetPolicy
from gateway.telemetry.trace import Trace

CHAT = Route("POST", "/v1/chat/completions", Endpoint.CHAT, BodyKind.JSON)
MODEL = "served-7b"
WEIGHING = ("estimate", "session")  # those that look at the prompt
MIB = 1 << 20


class Link:
    """To an engine that answers nothing."""

    def __init__(self, on_lost: Any) -> None:
        self.sent: list[Any] = []

    async def _answer(self) -> str:
        return "an answer"

    def send(self, *order: Any, total: float | None) -> Any:
        self.sent.append((*order, total))
        return self._answer()


class Bench:
    """A balancer and replicas whose transitions it hears of. ``dice`` gives what chance decides."""

    def __init__(self, size: int = 3, dice: Any = None, **policy: Any) -> None:
        self.now = 1_000.0
        self.policy = Balancing(**policy)
        self.compared: list[tuple[str, str]] = []
        self.balancer = Balancer(
            lambda: self.policy,
            key=b"k" * 32,
            now=lambda: self.now,
            random=dice or random.Random(1).random,
            compared=lambda strategy, choice: self.compared.append((strategy, choice)),
        )
        self.replicas = [self.replica(number) for number in range(size)]

    def replica(self, number: int, *models: str) -> Replica:
        replica = Replica(
            EngineSpec(f"http://127.0.0.1:{8001 + number}"),
            Link,  # type: ignore[arg-type]
            FleetPolicy,
            self.balancer.on_transition,
            lambda replica: True,
            origin="configuration",
            now=lambda: self.now,
            random=lambda: 0.5,
        )
        replica.seen = Seen(models=models or (MODEL,))
        replica.take(Sign.HEALTHY)
        replica.take(Sign.WARM)
        return replica

    def count(self) -> None:
        """Have engines told how many bytes make a token: as many as was supposed."""
        for _ in range(2):
            self.balancer._pool(MODEL).learn(40_000, 10_000)

    def consider(
        self,
        *texts: str,
        alias: str = "general",
        model: str = MODEL,
        salt: str | None = None,
        stream: bool = True,
        **caller: Any,
    ) -> Any:
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
        request = InferenceRequest(CHAT, alias, {"messages": messages}, stream=stream)
        return self.balancer.consider(request, alias, model, salt, **{"request_id": "req_1", **caller})

    def send(self, *texts: str, **fields: Any) -> tuple[Replica, Any]:
        """A request that is sent now."""
        choice = self.consider(*texts, **fields)
        chosen = choice.among(self.replicas)
        lane = choice.lane(chosen)
        lane.enter()
        return chosen, lane

    def serve(self, *texts: str, seconds: float = 0.1, **fields: Any) -> Replica:
        """One that is answered at once."""
        chosen, lane = self.send(*texts, **fields)
        self.now += seconds
        lane.answered()
        self.now += seconds
        lane.leave()
        return chosen

    def to(self, replica: Replica, *texts: str, **fields: Any) -> Any:
        """One that is sent to this replica, whatever others there are."""
        choice = self.consider(*texts, **fields)
        assert choice.among([replica]) is replica
        return choice.lane(replica)

    def unanswered(self, replica: Replica) -> float:
        return replica.load(self.now).unanswered

    def weighed(self, replica: Replica, *texts: str, **fields: Any) -> float:
        """Tokens that a request is taken to cost there. Sending it teaches what its prompt begins with."""
        before, lane = self.unanswered(replica), self.to(replica, *texts, **fields)
        lane.enter()
        after = self.unanswered(replica)
        lane.leave()
        return after - before

    def level(self, *replicas: Replica) -> None:
        asyncio.run(self.balancer.level(replicas or self.replicas))

    def pool(self, model: str = MODEL) -> Any:
        return self.balancer._pools[model]

    def index(self, replica: Replica) -> Any:
        return self.pool()._held[replica.id].index


def text(number: object, size: int = 2_000) -> str:
    """A text that begins like no other one."""
    return f"{number}: " + "words and " * (size // 10)


def reading(**values: float) -> Reading:
    return Reading({Signal(name): value for name, value in values.items()}, frozenset())


# --- which strategy


def test_each_alias_has_the_strategy_that_policy_names():
    bench = Bench(strategy="least-in-flight", aliases={"other": "round-robin"})
    for replica in bench.replicas[1:]:
        replica.in_flight = 5
    assert {bench.serve("x") for _ in range(9)} == {bench.replicas[0]}
    assert [bench.serve("x", alias="other") for _ in range(6)] == [*bench.replicas[1:], bench.replicas[0]] * 2


def test_policy_holds_from_the_next_request_on():
    bench = Bench(strategy="least-in-flight")
    bench.replicas[0].in_flight = bench.replicas[1].in_flight = 9
    before = bench.consider("x")
    bench.policy = Balancing("round-robin")
    assert Counter(bench.serve("x") for _ in range(6)) == Counter(bench.replicas * 2)
    assert before.among(bench.replicas) is bench.replicas[2]


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(WEIGHING)))
def test_a_strategy_that_does_not_look_at_prompts_costs_nothing_of_them(name):
    bench = Bench(strategy=name)
    chosen, lane = bench.send(text(1))
    assert lane is chosen
    assert chosen.in_flight == 1
    lane.answered()
    lane.leave()
    assert chosen.in_flight == 0
    assert len(bench.pool().table) == 0
    assert chosen.work.pace.known == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_each_gives_one_that_has_room_or_none(name):
    bench = Bench(strategy=name, dry_run=name)
    bench.replicas[0].room = bench.replicas[2].room = 0
    assert {bench.serve(text(number)) for number in range(9)} == {bench.replicas[1]}
    bench.replicas[1].room = 0
    assert bench.consider("x").among(bench.replicas) is None
    assert bench.consider("x").among([]) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_next_attempt_is_among_those_that_are_left(name):
    bench = Bench(strategy=name)
    choice = bench.consider(text(1))
    left = list(bench.replicas)
    for _ in range(3):
        chosen = choice.among(left)
        lane = choice.lane(chosen)
        lane.enter()
        lane.leave()
        left.remove(chosen)
    assert left == []
    assert all(not replica.in_flight and not bench.unanswered(replica) for replica in bench.replicas)


# --- conversations


@pytest.mark.parametrize("name", WEIGHING)
def test_the_turns_of_a_conversation_go_to_one_replica_and_many_conversations_to_all(name):
    bench = Bench(strategy=name)
    places = Counter()
    for number in range(60):
        said = [text(number, 600)]
        first = bench.serve(*said)
        places[first] += 1
        for turn in range(6):
            said += [text(f"answer {turn}", 500), text(f"question {turn}", 500)]
            assert bench.serve(*said) is first
    assert min(places[replica] for replica in bench.replicas) >= 8


def test_what_a_replica_holds_is_not_counted_again():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    assert bench.weighed(replica, text(1, 8_000)) == pytest.approx(2_000, rel=0.02)
    assert bench.weighed(replica, text(1, 8_000)) < 300
    assert bench.weighed(replica, text(2, 8_000)) == pytest.approx(2_000, rel=0.02)


def test_tenants_that_are_kept_apart_share_nothing_and_others_do():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    whole = bench.weighed(replica, text(1, 8_000), salt="one")
    assert bench.weighed(replica, text(1, 8_000), salt="other") == whole
    assert bench.weighed(replica, text(1, 8_000), salt=None) == whole
    for salt in ("one", "other", None):
        assert bench.weighed(replica, text(1, 8_000), salt=salt) < whole / 5


def test_models_share_nothing_either():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    whole = bench.weighed(replica, text(1, 8_000), model="one")
    assert bench.weighed(replica, text(1, 8_000), model="two") == whole


def test_a_busy_replica_loses_a_conversation():
    bench = Bench(strategy="estimate")
    home = bench.serve(text(1, 4_000))
    assert bench.serve(text(1, 4_000)) is home
    for number in range(8):
        bench.to(home, text(f"other {number}", 40_000)).enter()
    assert bench.serve(text(1, 4_000)) is not home


def test_a_replica_that_is_half_as_fast_is_found_out_and_gets_less():
    bench = Bench(2, strategy="estimate")
    slow, fast = bench.replicas
    for number in range(40):
        for replica, rate in ((slow, 4_000.0), (fast, 8_000.0)):
            lane = bench.to(replica, text(f"{number} {replica.id}", 32_000))
            lane.enter()
            bench.now += 8_000 / rate + 0.03
            lane.answered()
            lane.leave()
    assert slow.pace.prefill < 0.7 * fast.pace.prefill
    got = Counter(bench.send(text(f"new {number}", 8_000))[0] for number in range(60))
    assert 1.5 < got[fast] / got[slow] < 3.0


# --- what is learned


def test_of_a_pace_that_is_well_known_not_every_first_token_teaches():
    def steps(gap: float) -> float:
        """The step that is learned where it has halved of late."""
        bench = Bench(1, strategy="estimate")
        replica = bench.replicas[0]
        for number in range(300):
            replica.pace.note_first_token(uncached=8_000, ahead=0, seconds=1.05, now=bench.now + number)
        bench.now += 300.0
        for number in range(200):
            lane = bench.to(replica, text(number, 32_000))
            lane.enter()
            bench.now += gap
            lane.answered()
            lane.leave()
        return replica.pace.prefill

    assert steps(0.001) < steps(0.03)  # a few of two hundred first tokens, and all of them


def test_a_first_token_teaches_the_pace_once():
    bench = Bench(1, strategy="estimate")
    bench.count()
    _, lane = bench.send(text(1, 40_000))
    replica = bench.replicas[0]
    bench.now += 5.0
    lane.answered()
    assert replica.pace.prefill < Prior().prefill
    known = replica.pace.known
    assert known > 0.0
    lane.answered()
    lane.leave()
    assert replica.pace.known == known
    assert replica.load(bench.now).mean_left == 0.0
    assert (replica.in_flight, bench.unanswered(replica)) == (0, 0)


def test_what_was_ahead_of_a_request_is_not_laid_to_its_own_prompt():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    _, first = bench.send(text(1, 160_000))
    _, second = bench.send(text(2, 4_000))
    bench.now += 5.0 + 0.03
    first.answered()
    bench.now += 0.125
    second.answered()
    assert replica.pace.prefill == pytest.approx(8_000, rel=0.05)


def test_a_pace_is_not_learned_in_tokens_that_nobody_has_counted():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    _, before = bench.send(text(1, 40_000))
    bench.count()
    bench.now += 5.0
    before.answered()
    assert replica.pace.known == 0.0
    bench.serve(text(2, 40_000))
    assert replica.pace.known > 0.0


def test_where_engines_never_count_a_pace_is_learned_all_the_same():
    bench = Bench(1, strategy="estimate")
    for number in range(80):
        bench.serve(text(number, 40_000))
    assert bench.replicas[0].pace.known > 0.5


def test_what_ends_within_a_block_is_taken_to_be_held_for_half_of_it():
    bench = Bench(1, strategy="estimate")
    replica, said = bench.replicas[0], text(1, 3_000)
    new = bench.weighed(replica, said)
    again = bench.weighed(replica, said, text("answer", 20), text("question", 20))
    assert 0 < again < new / 10


def test_who_comes_for_what_is_held_counts_by_how_much_that_is_and_fades():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    bench.serve(text(1, 40_000), seconds=0.0)
    assert replica.load(bench.now).returning == 0.0
    rates = []
    for _ in range(3):
        bench.serve(text(1, 40_000), seconds=0.0)
        rates.append(replica.load(bench.now).returning)
    assert 0.0 < rates[0] < rates[1] < rates[2]
    bench.now += 5.0
    assert replica.load(bench.now).returning < rates[2] / 2
    bench.now -= 10.0
    assert replica.load(bench.now).returning <= rates[2]


def test_a_full_batch_teaches_nothing():
    bench = Bench(1, strategy="estimate")
    bench.count()
    replica = bench.replicas[0]
    replica.pace.slots = 2
    lanes = [bench.send(text(number, 40_000))[1] for number in range(3)]
    bench.now += 60.0
    lanes[2].answered()
    assert replica.pace.known == 0.0
    lanes[1].answered()
    assert replica.pace.known > 0.0


def test_one_that_others_have_filled_teaches_nothing_either():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    replica.pace.slots = 2
    replica.work.scraped(reading(running=2, waiting=1), bench.now)
    _, lane = bench.send(text(1, 40_000))
    bench.now += 60.0
    lane.answered()
    assert replica.pace.known == 0.0


def test_where_no_estimate_was_made_nothing_is_learned_of_what_it_would_have_been():
    bench = Bench(1, strategy="session")
    bench.send(text(1, 400_000))
    _, lane = bench.send(text(2, 400))
    bench.now += 13.0
    lane.answered()
    assert bench.replicas[0].pace.known == 0.0


def test_a_request_without_a_first_token_teaches_nothing():
    bench = Bench(1, strategy="estimate")
    _, lane = bench.send(text(1, 40_000))
    replica = bench.replicas[0]
    bench.now += 60.0
    lane.leave()
    lane.answered()  # too late: it has ended
    assert replica.pace.known == replica.load(bench.now).mean_left == 0.0
    assert (replica.in_flight, bench.unanswered(replica)) == (0, 0)


def test_whole_answers_that_take_long_are_no_prompts_that_wait():
    """Else the pace that a stream beside them shows would be that of computing all their prompts at once."""
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    whole = [bench.send(text(number, 40_000), stream=False)[1] for number in range(20)]
    replica.work.scraped(reading(running=20, waiting=0), bench.now + 25.0)
    bench.now += 30.0
    for number in range(30):
        lane = bench.to(replica, text(f"stream {number}", 32_000))
        lane.enter()
        bench.now += 1.0
        lane.answered()
        lane.leave()
    assert replica.pace.prefill == pytest.approx(8_000, rel=0.15)
    assert bench.unanswered(replica) == 0
    for lane in whole:
        lane.leave()
        lane.answered()
    assert (replica.in_flight, bench.unanswered(replica)) == (0, 0)


def test_how_long_answers_take_is_learned():
    bench = Bench(1, strategy="estimate")
    bench.serve("x", seconds=4.0)
    assert bench.replicas[0].load(bench.now).mean_left == pytest.approx(2.0)


def test_bytes_a_token_are_learned_of_each_model_from_what_its_engines_counted():
    bench = Bench(1, strategy="estimate")
    replica, trace = bench.replicas[0], Trace("req_1", 0.0, 0.0)
    before = bench.weighed(replica, text(0, 8_000))
    for number in range(40):
        choice = bench.consider(text(f"learn {number}", 8_000))
        choice.learn(trace)  # an engine that counted nothing
        trace.usage = Usage(prompt=1_000)
        choice.learn(trace)
    assert bench.weighed(replica, text("new", 8_000)) == pytest.approx(before / 2, rel=0.1)
    assert bench.weighed(replica, text("new", 8_000), model="another") == pytest.approx(before, rel=0.02)


def test_a_strategy_without_prompts_learns_none():
    bench = Bench(1, strategy="power-of-two")
    trace = Trace("req_1", 0.0, 0.0)
    trace.usage = Usage(prompt=10)
    bench.consider(text(1)).learn(trace)
    assert bench.pool().scale.value == Prior().bytes_per_token


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "whole", "answered", "leave", "scrape", "restart"]), st.integers(0, 30)),
        max_size=40,
    )
)
def test_after_the_last_request_there_is_nothing_left_of_any(events):
    bench = Bench(2, strategy="estimate")
    open_: list[Any] = []
    for name, which in events:
        bench.now += 0.1
        replica = bench.replicas[which % 2]
        if name == "send":
            open_.append(bench.send(text(which, 700 * which))[1])
        elif name == "whole":
            open_.append(bench.send(text(which, 700 * which), stream=False)[1])
        elif name == "answered" and open_:
            open_[which % len(open_)].answered()
        elif name == "leave" and open_:
            open_.pop(which % len(open_)).leave()
        elif name == "scrape":
            replica.work.scraped(reading(running=which, waiting=1), bench.now)
        elif name == "restart":
            replica.take(Sign.RESTARTED)
        for replica in bench.replicas:
            load = replica.load(bench.now)
            assert min(load.unanswered, load.sent) >= 0
    for lane in open_:
        lane.leave()
    for replica in bench.replicas:
        load = replica.load(bench.now)
        assert (replica.in_flight, load.unanswered, load.sent) == (0, 0, 0)


def test_the_order_reaches_the_engine_as_it_is():
    bench = Bench(1, strategy="estimate")
    _, lane = bench.send("x")
    assert isinstance(lane, Sent)
    assert asyncio.run(_sent(lane)) == "an answer"
    assert bench.replicas[0].link.sent == [("/v1/x", b"application/json", b"{}", "req_1-1", 9.0)]  # type: ignore[attr-defined]


async def _sent(lane: Sent) -> Any:
    return await lane.send("/v1/x", b"application/json", b"{}", "req_1-1", total=9.0)


# --- replicas that start anew, come and go

SIGNS = [
    ((Sign.RESTARTED,), State.STARTING, True),
    ((Sign.LOST, Sign.RESTARTED), State.STARTING, True),
    ((Sign.DRAIN, Sign.EMPTY), State.GONE, True),
    ((Sign.DRAIN, Sign.UNDRAIN), State.FOUND, True),
    ((Sign.DRAIN,), State.DRAINING, False),
    ((Sign.FAILING,), State.EJECTED, False),
    ((Sign.FAILING, Sign.RESTED), State.PROBATION, False),
]


@pytest.mark.parametrize(("signs", "state", "forgotten"), SIGNS)
def test_only_a_new_process_or_a_replica_that_is_gone_is_forgotten(signs, state, forgotten):
    bench = Bench(2, strategy="estimate")
    replica, other = bench.replicas
    for each in bench.replicas:
        bench.weighed(each, text(1, 8_000))
        each.work.began(800.0, bench.now)
        each.pace.note_first_token(uncached=8_000, ahead=0, seconds=9.0, now=bench.now)
    for sign in signs:
        assert replica.take(sign)
    assert replica.life.state is state
    held = bench.pool().table.held_by_all(bench.consider(text(1, 8_000))._prompt)
    assert (replica.id not in held) is forgotten
    assert (replica.pace.known == 0.0) is forgotten
    assert (bench.unanswered(replica) == 0) is forgotten
    assert held[other.id] > 7_000
    assert other.pace.known > 0.0
    assert bench.unanswered(other) == 800


def test_what_the_process_before_still_says_teaches_nothing_of_the_next():
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    _, lane = bench.send(text(1, 40_000))
    replica.take(Sign.RESTARTED)
    bench.now += 60.0
    lane.answered()
    lane.leave()
    assert replica.pace.known == 0.0
    assert (replica.in_flight, bench.unanswered(replica)) == (0, 0)


def test_replicas_that_come_and_go_leave_nothing():
    bench = Bench(0, strategy="estimate")
    for number in range(300):
        replica = bench.replica(number)
        bench.weighed(replica, text(number, 3_000))
        bench.weighed(replica, text(number, 3_000), model="another")
        replica.take(Sign.DRAIN)
        replica.take(Sign.EMPTY)
    for model in (MODEL, "another"):
        pool = bench.pool(model)
        assert (len(pool.table), len(pool._held)) == (0, 0)
        assert len(pool.table._replicas) == 1  # the one place, taken again each time


def test_models_that_no_replica_has_any_more_are_forgotten():
    bench = Bench(2, strategy="estimate")
    bench.replicas[1].seen = Seen(models=("one", "two"))
    for model in (MODEL, "one", "two", *(f"gone-{number}" for number in range(50))):
        bench.consider("x", model=model)
    kept = bench.pool("two")
    bench.level()
    assert set(bench.balancer._pools) == {MODEL, "one", "two"}
    assert bench.pool("two") is kept
    last = bench.consider(text(1), model="two")
    bench.level(bench.replicas[0])
    lane = last.lane(last.among(bench.replicas))  # a request that is on its way then goes on
    lane.enter()
    lane.leave()


@pytest.mark.parametrize(
    ("tokens", "room"), [(None, 64 * MIB), (0, 64 * MIB), (1_000, 4_000), (1_000_000, 4_000_000), (1e300, 256 * MIB)]
)
def test_an_index_is_as_large_as_the_engine_says_its_cache_is_within_bounds(tokens, room):
    bench = Bench(1, strategy="estimate")
    replica = bench.replicas[0]
    if tokens is not None:
        replica.reading = reading(kv_tokens=tokens)
    bench.weighed(replica, "x")
    assert bench.index(replica).room == room


def test_an_index_follows_what_its_engine_tells_later_and_what_tokens_weigh():
    bench = Bench(2, strategy="estimate")
    replica = bench.replicas[0]
    bench.weighed(replica, text(1, 20_000))
    replica.reading = reading(kv_tokens=1_000)
    bench.level()
    index = bench.index(replica)
    assert index.room == 4_000
    assert 0 < index.size <= 4_000
    for _ in range(40):
        bench.pool().scale.note(8_000, 1_000)
    bench.level()
    assert index.room == int(1_000 * bench.pool().scale.value) > 7_000


def test_indexes_follow_what_tokens_weigh_as_soon_as_that_is_learned():
    bench = Bench(2, strategy="estimate")
    for replica in bench.replicas:
        replica.reading = reading(kv_tokens=1_000)
        bench.weighed(replica, "x")
    for _ in range(20):
        bench.pool().learn(8_000, 1_000)
    for replica in bench.replicas:
        assert bench.index(replica).room == pytest.approx(1_000 * bench.pool().scale.value, rel=0.1)
        assert bench.index(replica).room > 6_500


def test_an_index_shrinks_where_the_engine_finds_less_than_is_believed_and_grows_back():
    bench = Bench(2, strategy="estimate")
    replica = bench.replicas[0]

    def scraped(queries: float, hits: float) -> int:
        replica.reading = reading(kv_tokens=100_000, cache_queries=queries, cache_hits=hits)
        for _ in range(4):
            bench.weighed(replica, text(1, 8_000))
        bench.level()
        return bench.index(replica).room

    assert scraped(1_000_000, 0) == 400_000  # what was before the first request says nothing of it
    assert scraped(1_010_000, 0) == 400_000  # too little to tell
    assert scraped(1_030_000, 0) == 360_000
    assert scraped(1_040_000, 0) == 360_000  # counted from the last comparison on
    assert scraped(1_060_000, 0) == 324_000
    assert scraped(1_090_000, 29_000) == 356_400
    assert scraped(0, 0) == 356_400  # counters of another process
    assert scraped(30_000, 99_000) == 392_040  # more found than asked for: no engine says so
    assert scraped(60_000, 128_000) == 400_000


def test_an_engine_that_counts_no_hits_has_the_room_that_it_has():
    bench = Bench(2, strategy="estimate")
    replica = bench.replicas[0]
    replica.reading = reading(kv_tokens=100_000)
    for _ in range(30):
        bench.weighed(replica, text(1, 80_000))
        bench.level()
    assert bench.index(replica).room == 400_000


def test_one_that_has_shown_little_is_taken_for_what_is_usual_in_its_pool():
    bench = Bench(4, strategy="estimate")
    stranger = bench.replica(9, "another-model")
    for replica in bench.replicas[:3]:
        for number in range(20):
            replica.pace.note_first_token(uncached=8_000, ahead=0, seconds=4.03, now=bench.now + number)
    bench.level(*bench.replicas, stranger)
    assert bench.replicas[3].pace.prefill == pytest.approx(2_000, rel=0.1)
    assert stranger.pace.prefill == Prior().prefill


# --- one replica alone


def test_where_one_replica_serves_a_model_and_no_other_may_its_prompts_are_not_looked_at():
    bench = Bench(1, strategy="estimate")
    bench.serve(text(1))
    known = len(bench.pool().table)
    assert known > 0
    bench.level()
    chosen, lane = bench.send(text(2))
    assert lane is chosen
    lane.leave()
    assert len(bench.pool().table) == known
    chosen.room = 0
    assert bench.consider(text(3)).among(bench.replicas) is None


@pytest.mark.parametrize("models", [(MODEL,), ("other",), ()])
def test_they_are_where_another_is_listed_that_may_serve_it_though_it_does_not_now(models):
    bench = Bench(2, strategy="estimate")
    serving, out = bench.replicas
    bench.serve("x")
    out.seen = Seen(models=models)
    out.take(Sign.FAILING)
    bench.level()
    assert (bench.consider(text(1)).lane(serving) is serving) == (models == ("other",))


def test_when_a_second_one_is_listed_prompts_are_looked_at_again():
    bench = Bench(1, strategy="estimate")
    bench.serve("x")
    bench.level()
    bench.replicas.append(bench.replica(5))
    assert {bench.serve(text(number)) for number in range(20)} == set(bench.replicas)
    bench.level()
    first = bench.serve(text(1))
    assert {bench.serve(text(1)) for _ in range(5)} == {first}


# --- hundreds


def test_among_hundreds_conversations_stay_and_all_get_some():
    bench = Bench(100, strategy="estimate")
    replicas = tuple(bench.replicas)
    bench.replicas = replicas  # type: ignore[assignment]
    places, stayed = Counter(), 0
    for number in range(400):
        said = [text(number, 600)]
        first = bench.serve(*said)
        places[first] += 1
        stayed += bench.serve(*said, text("answer", 500), text("question", 500)) is first
    assert stayed >= 390  # one that has just shown itself as slow is left for one that nobody has tried yet
    assert len(places) > 90
    assert max(places.values()) < 20


def test_among_hundreds_the_free_one_is_found():
    bench = Bench(100, strategy="estimate")
    bench.replicas = tuple(bench.replicas)  # type: ignore[assignment]
    free = bench.replicas[70]
    for replica in bench.replicas:
        if replica is not free:
            bench.to(replica, text(replica.id, 80_000)).enter()
    bench.now += 0.2
    assert bench.serve(text(1)) is free


def test_among_hundreds_one_that_holds_the_prompt_is_found_wherever_it_stands():
    bench = Bench(100, strategy="estimate")
    bench.replicas = tuple(bench.replicas)  # type: ignore[assignment]
    holder = bench.replicas[33]
    for number in range(10):
        bench.weighed(holder, text(number, 8_000))
    assert {bench.serve(text(number, 8_000)) for number in range(10)} == {holder}


@pytest.mark.parametrize("name", NAMES)
def test_among_hundreds_one_that_has_room_is_found_or_none(name):
    bench = Bench(100, strategy=name, dry_run=name)
    bench.replicas = tuple(bench.replicas)  # type: ignore[assignment]
    for replica in bench.replicas:
        replica.room = 0
    assert bench.consider(text(1)).among(bench.replicas) is None
    bench.replicas[70].room = 1
    for number in range(20):
        assert bench.consider(text(number)).among(bench.replicas) is bench.replicas[70]
    assert {told.chosen for told in bench.balancer.decisions._kept} == {None, bench.replicas[70].id}
    assert max(len(told.seen) for told in bench.balancer.decisions._kept) < 60


# --- sessions that clients name


def test_what_a_client_names_stays_together_whatever_it_says():
    bench = Bench(5, strategy="session")
    for number in range(20):
        places = {bench.serve(text(each), tenant="one", session=b"s%d" % number) for each in range(6)}
        assert len(places) == 1
    assert len({bench.serve(text(number), tenant="one", session=b"s%d" % number) for number in range(40)}) == 5


def test_two_tenants_equal_names_are_two_sessions():
    bench = Bench(5, strategy="session")
    assert len({bench.serve(text(1), tenant=f"tenant-{number}", session=b"same") for number in range(40)}) == 5


def test_a_name_is_for_sessions_alone():
    bench = Bench(3, strategy="estimate")
    assert len({bench.serve(text(number), session=b"same") for number in range(30)}) == 3


def test_instances_agree_on_a_session_and_nobody_without_the_key_can_tell_where_it_goes():
    one, other = Bench(8, strategy="session"), Bench(8, strategy="session")
    other.balancer._key = b"x" * 32
    names = [b"s%d" % number for number in range(40)]
    places = [[bench.serve("x", session=name).id for name in names] for bench in (one, Bench(8, strategy="session"))]
    assert places[0] == places[1]
    assert places[0] != [other.serve("x", session=name).id for name in names]


# --- what is told of it afterwards


@pytest.mark.parametrize("name", NAMES)
def test_each_attempt_is_kept_with_what_was_known(name):
    bench = Bench(3, strategy=name)
    choice = bench.consider(text(1, 8_000), request_id="req_7", alias="special")
    first = choice.among(bench.replicas)
    choice.lane(first)
    second = choice.among([replica for replica in bench.replicas if replica is not first])
    told = bench.balancer.decisions.of("req_7")
    assert (told.alias, told.model, told.strategy, told.attempt, told.pool) == ("special", MODEL, name, 2, 2)
    assert (told.chosen, told.now) == (second.id, bench.now)
    assert (told.tokens > 1_500) == (told.size > 6_000) == (name in WEIGHING)
    assert {seen[0] for seen in told.seen} == {replica.id for replica in bench.replicas} - {first.id}
    assert all((seen[1] is not None) == (name == "estimate") for seen in told.seen)
    if name in WEIGHING:
        bench.to(first, text(1, 8_000), request_id="req_8")
        assert bench.balancer.decisions.of("req_8").held[first.id] > 6_000


# --- a strategy that is only asked


@pytest.mark.parametrize("beside", NAMES)
@pytest.mark.parametrize("live", NAMES)
def test_a_dry_run_is_counted_and_changes_no_choice(live, beside):
    def told(**policy: Any) -> tuple[list[str], Bench]:
        bench, places, open_ = Bench(dice=lambda: 0.4, strategy=live, **policy), [], []
        for number in range(30):
            chosen, lane = bench.send(text(number % 4, 900))
            places.append(chosen.id)
            open_.append(lane)
            bench.now += 0.01
            if number % 3:
                open_.pop(0).leave()
        return places, bench

    alone, bench = told()
    assert bench.compared == []
    both, bench = told(dry_run=beside)
    assert alone == both
    assert [name for name, _ in bench.compared] == [beside] * 30
    assert {choice for _, choice in bench.compared} <= {"same", "other"}
    assert sorted(replica.turn for replica in bench.replicas)[-1] == 30  # a turn is taken by the one that is chosen


def test_a_dry_run_tells_what_would_be_the_same():
    bench = Bench(2, strategy="least-in-flight", dry_run="round-robin")
    bench.replicas[1].in_flight = 5
    bench.consider("x").among(bench.replicas)  # nobody has had a turn yet: the first
    bench.consider("x").among(bench.replicas)
    assert bench.compared == [("round-robin", "same"), ("round-robin", "other")]
    bench.replicas[0].room = bench.replicas[1].room = 0
    bench.consider("x").among(bench.replicas)
    assert bench.compared[2:] == [("round-robin", "same")]


def test_what_a_dry_run_would_know_is_learned_from_what_is_served():
    bench = Bench(3, strategy="round-robin", dry_run="estimate")
    bench.count()
    first = bench.serve(text(1, 8_000))
    assert first.pace.known > 0.0
    assert bench.pool().table.held_by_all(bench.consider(text(1, 8_000))._prompt).keys() == {first.id}


# --- what is kept


def test_what_is_kept_of_models_and_tenants_is_bounded(monkeypatch):
    monkeypatch.setattr("gateway.fleet.balance.balancer._MOST_SEEDS", 8)
    bench = Bench(1, strategy="estimate")
    before = bench.consider(text(1), salt="tenant-0")._prompt
    for number in range(100):
        bench.consider("x", salt=f"tenant-{number}")
        assert len(bench.balancer._seeds) <= 8
    assert bench.consider(text(1), salt="tenant-0")._prompt == before


@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_a_prompt_is_kept_anywhere(name):
    bench = Bench(strategy=name, dry_run="estimate")
    lanes = [bench.send("hunter2 " + text(number), "hunter2", text("hunter2"))[1] for number in range(5)]
    choice = bench.consider(text("hunter2", 9_000))
    lane = choice.lane(choice.among(bench.replicas))
    bench.level()
    seen = _reachable(bench.balancer, bench.replicas, choice, lane, lanes)
    assert len(seen) > 50
    texts = [each for each in seen if isinstance(each, (str, bytes, bytearray))]
    assert not [each for each in texts if ("hunter2" if isinstance(each, str) else b"hunter2") in each]
    assert max(map(len, texts)) < 1_000


def _reachable(*roots: object) -> list[object]:
    """All objects that can be reached, but for what belongs to code."""
    seen: dict[int, object] = {}
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (type, FunctionType, ModuleType, Bench)):
            continue
        seen[id(each)] = each
        left += gc.get_referents(each)
    return list(seen.values())


def test_how_slow_it_was_while_it_was_cold_is_not_held_against_it():
    """Or one that was added would get nobody until all others are full: at low load, the faster ones suffice."""
    bench = Bench()
    replica = bench.replica(7)
    replica.take(Sign.RESTARTED)
    replica.take(Sign.HEALTHY)
    for tick in range(20):  # the scrapes of a warmup: a second a token
        replica.work.scraped(reading(itl_sum=10.0 * tick, itl_count=10.0 * tick), bench.now + tick)
    assert replica.pace.step > 0.1
    replica.take(Sign.WARM)
    assert replica.pace.step == bench.replicas[0].pace.step
