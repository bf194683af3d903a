"""Fair between tenants in tokens, in order of arrival within each, and no ticket is too large or too small for it."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest

from gateway.admission.flows import MOST_TOKENS, QUANTUM, Ahead, Flows, Line, Ticket, stand
from gateway.model import Priority


def ticket(number: int, tenant: str = "a", *, tokens: int = 100, weight: float = 1.0, entered: float | None = None):
    return Ticket(
        alias="alias",
        tenant=tenant,
        priority=Priority.STANDARD,
        weight=weight,
        tokens=tokens,
        size=1,
        deadline=1e9,
        entered=float(number) if entered is None else entered,
        number=number,
    )


def flows(*tickets: Ticket) -> Flows:
    made = Flows()
    for each in tickets:
        made.add(each)
    return made


def drain(waiting: Flows, most: int = 10**9) -> list[Ticket]:
    taken = []
    while len(waiting) and len(taken) < most:
        taken.append(waiting.next())
    return taken


@pytest.mark.parametrize(("given", "kept"), [(0, 1), (-7, 1), (5, 5), (10**30, MOST_TOKENS)])
def test_what_a_ticket_costs_is_bounded(given, kept):
    assert ticket(1, tokens=given).tokens == kept


@pytest.mark.parametrize(("given", "kept"), [(0.0, 0.01), (-1.0, 0.01), (2.5, 2.5), (1e30, 1_000.0)])
def test_what_a_tenant_weighs_is_bounded(given, kept):
    assert ticket(1, weight=given).weight == kept


def test_one_that_comes_again_stands_where_it_stood():
    line: Line = OrderedDict()
    for number, entered in enumerate([5.0, 7.0, 6.0, 1.0, 5.0, 9.0, 3.0]):
        stand(line, ticket(number, entered=entered))
    assert [each.entered for each in line.values()] == [1.0, 3.0, 5.0, 5.0, 6.0, 7.0, 9.0]
    assert [number for number, each in line.items() if each.entered == 5.0] == [0, 4]


def test_a_tenant_is_served_in_order_of_arrival():
    waiting = flows(ticket(1), ticket(2), ticket(3, entered=0.5))
    assert waiting.oldest is not None
    assert waiting.oldest.number == 3
    assert [each.number for each in drain(waiting)] == [3, 1, 2]
    assert waiting.oldest is None


def test_two_tenants_get_as_many_tokens_however_many_requests_they_send():
    many = [ticket(number, "many", tokens=256) for number in range(800)]
    few = [ticket(1_000 + number, "few", tokens=4_096) for number in range(50)]
    served = Counter()
    for each in drain(flows(*many, *few), most=400):
        served[each.tenant] += each.tokens
    assert abs(served["many"] - served["few"]) <= QUANTUM + 4_096
    assert served["few"] > 50_000


@pytest.mark.parametrize("weight", [0.01, 0.5, 3.0, 1_000.0])
def test_a_weight_is_a_share(weight):
    heavy = [ticket(number, "heavy", weight=weight, tokens=500) for number in range(4_000)]
    plain = [ticket(10_000 + number, "plain", tokens=500) for number in range(4_000)]
    served = Counter()
    for each in drain(flows(*heavy, *plain), most=3_900):
        served[each.tenant] += each.tokens
    assert abs(served["heavy"] / weight - served["plain"]) <= QUANTUM + 500 / min(weight, 1.0)


def test_nobody_saves_up_while_nothing_of_it_waits():
    waiting = flows(ticket(1, "idle", tokens=1), *(ticket(10 + n, "busy", tokens=QUANTUM) for n in range(40)))
    drain(waiting, most=30)
    for number in range(100, 140):
        waiting.add(ticket(number, "idle", tokens=QUANTUM))
    assert [each.tenant for each in drain(waiting, most=10)].count("idle") <= 6


def test_what_costs_nothing_does_not_keep_the_turn():
    free = [ticket(number, "free", tokens=0) for number in range(10_000)]
    waiting = flows(*free, ticket(20_000, "other"))
    assert "other" in {each.tenant for each in drain(waiting, most=QUANTUM + 2)}


def test_the_rounds_that_serve_nobody_are_not_gone_through(monkeypatch):
    """Else a request of ten million tokens and a weight of 0.01 would take half a million rounds."""
    fed = 0
    feed = Flows.next.__globals__["_Flow"].feed

    def counted(flow, rounds):
        nonlocal fed
        fed += 1
        feed(flow, rounds)

    monkeypatch.setattr(Flows.next.__globals__["_Flow"], "feed", counted)
    waiting = flows(*(ticket(number, f"t{number}", tokens=10**9, weight=0.01) for number in range(10)))
    assert len(drain(waiting)) == 10
    assert fed < 200


def test_one_that_leaves_is_served_no_more_and_its_tenants_others_are():
    tickets = [ticket(1), ticket(2), ticket(3, "b"), ticket(4)]
    waiting = flows(*tickets)
    waiting.remove(tickets[0])
    waiting.remove(tickets[2])
    assert (len(waiting), waiting.tokens, waiting.weight) == (2, 200, 1.0)
    assert [each.number for each in drain(waiting)] == [2, 4]
    assert (waiting.tokens, waiting.weight) == (0, 0.0)


def test_the_newest_word_on_a_weight_counts():
    waiting = flows(ticket(1, weight=1.0), ticket(2, "b"), ticket(3, weight=4.0))
    assert waiting.weight == 5.0


def test_a_newcomer_has_before_it_what_is_of_its_tenant_and_as_much_of_others_as_they_get_until_then():
    heavy = [ticket(number, "heavy", tokens=1_000) for number in range(100)]
    waiting = flows(*heavy, ticket(200, "light", tokens=1_000))
    assert waiting.ahead(ticket(201, "heavy", tokens=1_000)) == Ahead(101, 101_000)
    assert waiting.ahead(ticket(201, "light", tokens=1_000)) == Ahead(3, 3_000)
    assert waiting.ahead(ticket(201, "new", tokens=1_000)) == Ahead(2, 2_000)
    assert waiting.ahead(ticket(201, "new", tokens=1_000, weight=0.01)) == Ahead(101, 101_000)
    assert Flows().ahead(ticket(1)) == Ahead(0, 0)


def test_a_hundred_thousand_wait():
    tenants = [f"t{number}" for number in range(1_000)]
    tickets = [ticket(number, tenants[number * 7 % 1_000], tokens=number % 5_000) for number in range(100_000)]
    waiting = flows(*tickets)
    for each in tickets[::2]:
        waiting.remove(each)
    served = drain(waiting)
    assert len(served) == 50_000
    assert (waiting.tokens, len(waiting)) == (0, 0)
