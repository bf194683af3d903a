"""What is the shared limiter's own: several instances, leases that end, deliveries, and the way to the fallback."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gateway.limits.breaker import Breaker
from gateway.limits.interfaces import LimitReached
from gateway.limits.local import LocalLimiter
from gateway.limits.outbox import Outbox
from gateway.limits.redis import RedisLimiter
from gateway.limits.scripts import ADMIT, DELIVER, RENEW, key_of
from gateway.limits.told import Told
from gateway.model import Budget, Limits
from gateway.redislink import LinkFault
from gateway.stores import redis


def one(**figures):
    return [Budget("principal:a", Limits(**figures))]


class FakeLink:
    """Answers as told: a fault, an answer, or whatever a callable gives. Keeps what was asked."""

    def __init__(self, *turns):
        self.turns = itertools.chain(turns, itertools.repeat(turns[-1]))
        self.asked = []

    async def evaluate(self, script, keys, *values):
        self.asked.append((script, list(keys), list(values)))
        turn = next(self.turns)
        if callable(turn):
            turn = await turn()
        if isinstance(turn, Exception):
            raise turn
        return turn


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def limiter_on(link, *, share=0.5, **options):
    clock, reports = Clock(), []
    breaker = Breaker(clock, jitter=lambda: 0.5, report=reports.append)
    limiter = RedisLimiter(link, LocalLimiter(clock), breaker, share=share, name="me", **options)
    return limiter, clock, reports


async def given(outcome):
    return await outcome if asyncio.iscoroutine(outcome) else outcome


def test_a_caller_who_was_refused_costs_the_store_nothing_until_it_may_ask_again():
    told_clock = Clock()
    link = FakeLink(["0", "60"], ["1", "60"])
    limiter, _, _ = limiter_on(link, told=Told(told_clock))
    budgets = one(requests_per_minute=60)

    async def body():
        with pytest.raises(LimitReached):
            await given(limiter.admit(budgets, 5))
        assert limiter.spent(budgets).retry_after == 1
        told_clock.now += 1.0
        assert limiter.spent(budgets) is None
        await given(limiter.admit(budgets, 5))

    asyncio.run(body())
    assert [script for script, _, _ in link.asked] == [ADMIT, ADMIT]


def test_while_the_store_is_lost_its_last_word_counts_no_more():
    link = FakeLink(["0", "60"], LinkFault("REFUSED"))
    limiter, _, _ = limiter_on(link)

    async def body():
        with pytest.raises(LimitReached):
            await given(limiter.admit(one(requests_per_minute=60), 0))
        while not limiter.alone:
            await given(limiter.admit([Budget("principal:b", Limits(requests_per_minute=60))], 0))
        assert limiter.spent(one(requests_per_minute=60)) is None
        await given(limiter.admit(one(requests_per_minute=60), 0))

    asyncio.run(body())


# --- several instances on one server


def test_a_place_that_another_instance_gave_back_is_there_after_its_delivery(make_redis_site):
    site = make_redis_site(instances=2)
    lease = site.admit(*one(concurrency=1))
    assert site.admitted(4, *one(concurrency=1)) == 0
    lease.close()
    site.deliver()
    assert site.admitted(4, *one(concurrency=1)) == 1


def test_places_of_an_instance_that_died_come_back_and_those_of_a_living_one_do_not(make_redis_site):
    site = make_redis_site(instances=2)
    assert site.admitted(2, *one(concurrency=2)) == 2
    site.advance(50)
    site.run(site.limiters[0].renew())
    site.advance(50)
    assert site.admitted(4, *one(concurrency=2)) == 1


def test_a_renewal_gives_a_restarted_server_back_what_is_in_flight(make_redis_site):
    site = make_redis_site(instances=1)
    leases = [site.admit(*one(concurrency=3)) for _ in range(3)]
    leases.pop().close()
    site.deliver()
    site.server.command("FLUSHALL")
    site.run(site.limiter.renew())
    assert site.admitted(4, *one(concurrency=3)) == 1


def test_many_leases_are_renewed_in_pieces(make_redis_site, redis_server):
    site = make_redis_site(instances=1)
    assert site.admitted(1_500, *one(concurrency=2_000)) == 1_500
    redis_server.command("DEL", key_of("places", "principal:a"))
    site.run(site.limiter.renew())
    assert redis_server.command("ZCARD", key_of("places", "principal:a")) == 1_500


def test_a_server_that_forgot_the_scripts_is_told_them(make_redis_site):
    site = make_redis_site(instances=1)
    assert site.admitted(3, *one(requests_per_minute=5)) == 3
    site.server.command("SCRIPT", "FLUSH")
    assert site.admitted(5, *one(requests_per_minute=5)) == 2


def test_the_rights_that_the_gateway_is_to_be_given_suffice_and_none_of_them_ends_the_trail(
    make_redis_site, redis_server
):
    rights = redis.__doc__.partition(">PASSWORD ")[2].partition("\n\n")[0].replace("\\", "").split()
    redis_server.command("ACL", "SETUSER", "limiter", "reset", "on", ">pw", *rights)
    try:
        site = make_redis_site(instances=2, user="limiter:pw@")
        budgets = one(requests_per_minute=9, tokens_per_minute=90, tokens_per_day=900, concurrency=2)
        assert site.admitted(5, *budgets, tokens=10) == 2
        site.deliver()
        assert site.reports == []
        for command in (("DEL", "{gw}:audit"), ("PEXPIRE", "{gw}:audit", "1"), ("SET", "{gw}:audit", "x")):
            assert b"no permissions" in redis_server.command("ACL", "DRYRUN", "limiter", *command)
    finally:
        redis_server.command("ACL", "DELUSER", "limiter")


def test_a_flush_waits_for_something_to_tell(make_redis_site, redis_server):
    site = make_redis_site(instances=1)

    async def story():
        flush = asyncio.create_task(site.limiter.flush())
        lease = await site.limiter.admit(one(concurrency=1), 0)
        assert not flush.done()
        lease.close()
        await asyncio.wait_for(flush, 5)

    site.run(story())
    assert redis_server.command("EXISTS", key_of("places", "principal:a")) == 0


# --- one script for an admission, and what is said in it


def test_an_admission_is_one_call_whatever_it_asks_of():
    link = FakeLink([b"1", b"1", b"0.5", b"1", b"0", b"2"])
    limiter, _, _ = limiter_on(link)
    own = one(requests_per_minute=60, tokens_per_minute=600, tokens_per_day=9, concurrency=5)
    asyncio.run(given(limiter.admit([*own, Budget("tenant:t", Limits(requests_per_minute=30))], 5)))
    assert [script for script, _, _ in link.asked] == [ADMIT]


def test_a_request_without_limits_does_not_ask():
    link = FakeLink(AssertionError)
    limiter, _, _ = limiter_on(link)
    assert asyncio.run(given(limiter.admit(one(), 5))).standing is None
    assert link.asked == []


def test_who_has_no_limits_does_not_use_up_a_probe():
    async def story():
        link = FakeLink(LinkFault("REFUSED"), [b"1", b"1"])
        limiter, clock, _ = limiter_on(link)
        await given(limiter.admit(one(requests_per_minute=5), 0))
        clock.now += 2
        assert not asyncio.iscoroutine(limiter.admit([], 5))
        await given(limiter.admit(one(requests_per_minute=5), 0))
        return limiter.alone

    assert not asyncio.run(story())


def test_an_empty_tick_costs_the_store_nothing():
    async def story():
        link = FakeLink(b"1")
        limiter, _, _ = limiter_on(link)
        await limiter.renew()
        await limiter.close()
        return link.asked

    assert asyncio.run(story()) == []


def test_an_answer_that_was_lost_is_delivered_again_under_the_same_number():
    async def story():
        link = FakeLink([b"1", b"1"], LinkFault("TIMEOUT"), 1, 1)
        limiter, clock, _ = limiter_on(link)
        lease = await limiter.admit(one(tokens_per_minute=60), 10)
        lease.settle(4)
        await limiter.close()
        clock.now += 10
        lease.settle(2)
        await limiter.close()
        return [(keys, values) for script, keys, values in link.asked if script is DELIVER]

    first, second = asyncio.run(story())
    assert first == second == ([key_of("delivered", "me"), key_of("tokens", "principal:a")], [1, "rate", 6.0, 0.0])


def test_a_renewal_and_a_delivery_take_turns():
    async def story():
        gate, order = asyncio.Event(), []

        async def slowly():
            order.append("renewal begins")
            await gate.wait()
            order.append("renewal ends")
            return 1

        async def then():
            order.append("delivery")
            return 1

        link = FakeLink([b"1", b"1"], slowly, then)
        limiter, _, _ = limiter_on(link, deadline=5.0)
        lease = await limiter.admit(one(concurrency=1), 0)
        renewal = asyncio.create_task(limiter.renew())
        while not order:
            await asyncio.sleep(0)
        lease.close()
        delivery = asyncio.create_task(limiter.flush())
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(renewal, delivery)
        return order, [script for script, _, _ in link.asked]

    order, asked = asyncio.run(story())
    assert order == ["renewal begins", "renewal ends", "delivery"]
    assert asked == [ADMIT, RENEW, DELIVER]


def test_a_caller_that_leaves_while_it_is_asked_for_leaves_no_place_taken():
    async def story():
        async def never():
            await asyncio.Event().wait()

        link = FakeLink(never, 1)
        limiter, _, reports = limiter_on(link, deadline=60.0)
        asking = asyncio.create_task(limiter.admit(one(concurrency=1), 0))
        while not link.asked:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await limiter.close()
        return link.asked, reports

    (asked, delivered), reports = asyncio.run(story())
    assert delivered == (DELIVER, [key_of("delivered", "me"), asked[1][0]], [1, "places", 1, asked[2][0]])
    assert reports == []


def test_a_refusal_leaves_nothing_to_tell():
    async def story():
        link = FakeLink([b"0", b"1"])
        limiter, _, _ = limiter_on(link)
        with pytest.raises(LimitReached):
            await limiter.admit(one(concurrency=1), 0)
        await limiter.close()
        return link.asked

    assert len(asyncio.run(story())) == 1


# --- when the store fails


@pytest.mark.parametrize(
    "turn", [LinkFault("TIMEOUT"), LinkFault("READONLY"), b"OK", None, [], [b"1"], [b"1", b"x"], [b"7", b"0"], 7]
)
def test_whatever_the_store_says_the_share_is_held(turn):
    async def story():
        limiter, _, reports = limiter_on(FakeLink(turn), share=0.25)
        outcomes = []
        for _ in range(20):
            try:
                outcomes.append(await given(limiter.admit(one(requests_per_minute=20), 0)))
            except LimitReached as error:
                outcomes.append(error)
        assert limiter.alone
        return [o for o in outcomes if not isinstance(o, LimitReached)], reports

    admitted, reports = asyncio.run(story())
    assert len(admitted) == 5
    assert len(reports) == 1


def test_a_store_that_does_not_answer_costs_one_deadline():
    async def story():
        async def never():
            await asyncio.Event().wait()

        limiter, _, _ = limiter_on(FakeLink(never), deadline=0.01)
        await limiter.admit(one(requests_per_minute=20), 0)
        return limiter.admit(one(requests_per_minute=20), 0)

    assert not asyncio.iscoroutine(asyncio.run(story()))


def test_a_request_larger_than_the_share_takes_it_all_and_leaves_a_debt():
    async def story():
        limiter, clock, _ = limiter_on(FakeLink(LinkFault("REFUSED")), share=0.25)
        lease = await given(limiter.admit(one(tokens_per_minute=4_000), 2_000))
        lease.settle(2_000)
        with pytest.raises(LimitReached) as caught:
            limiter.admit(one(tokens_per_minute=4_000), 10)
        clock.now += caught.value.retry_after
        await given(limiter.admit(one(tokens_per_minute=4_000), 10))
        return caught.value

    error = asyncio.run(story())
    assert not error.never
    assert error.retry_after == pytest.approx(60, abs=1)


def test_a_request_larger_than_the_whole_figure_never_passes_alone_either():
    async def story():
        limiter, _, _ = limiter_on(FakeLink(LinkFault("REFUSED")))
        with pytest.raises(LimitReached) as caught:
            await limiter.admit(one(tokens_per_minute=4_000), 4_001)
        return caught.value

    assert asyncio.run(story()).never


def test_the_share_may_change_as_instances_come_and_go():
    async def story():
        shares = [0.5]
        limiter, _, _ = limiter_on(FakeLink(LinkFault("REFUSED")), share=lambda: shares[0])
        left = [(await given(limiter.admit(one(requests_per_minute=20), 0))).standing.limit_requests]
        shares[0] = 0.1
        left.append((await given(limiter.admit(one(requests_per_minute=20), 0))).standing.limit_requests)
        return left

    assert asyncio.run(story()) == [10, 2]


def test_a_lease_from_before_the_loss_is_settled_when_the_store_is_back():
    async def story():
        link = FakeLink([b"1", b"1", b"1"], LinkFault("REFUSED"), 1)
        limiter, clock, reports = limiter_on(link)
        lease = await limiter.admit(one(tokens_per_minute=60, concurrency=5), 10)
        await given(limiter.admit(one(requests_per_minute=60), 0))
        lease.settle(1)
        lease.close()
        await limiter.close()
        assert limiter.alone
        clock.now += 2
        await limiter.close()
        return limiter.alone, reports, link.asked[-1]

    alone, reports, (script, keys, _) = asyncio.run(story())
    assert not alone
    assert len(reports) == 2
    assert script is DELIVER
    assert set(keys[1:]) == {key_of("tokens", "principal:a"), key_of("places", "principal:a")}


def test_what_waits_for_a_lost_store_is_bounded():
    async def story():
        link = FakeLink([b"1", b"1"])
        limiter, _, _ = limiter_on(link, outbox=Outbox(most=10))
        for _ in range(25):
            (await limiter.admit(one(concurrency=50), 0)).close()
        return limiter.dropped

    assert asyncio.run(story()) == 15
