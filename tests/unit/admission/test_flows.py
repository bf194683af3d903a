"""Fair between tenants in tokens, in order of arrival within each, and no ticket is too large or too small for it."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest

from gateway.admission.flows import EARLY, KEPT, MOST_TOKENS, QUANTUM, Ahead, Flows, Line, Ticket, stand
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
    assert waiting.next().tenant == "idle"
    drain(waiting, most=29)
    for number in range(100, 140):
        waiting.add(ticket(number, "idle", tokens=QUANTUM))
    assert [each.tenant for each in drain(waiting, most=10)].count("idle") <= 6


# --- who begins anew


def test_one_that_begins_anew_does_not_wait_for_the_turns_of_the_others():
    waiting = flows(*(ticket(100 * n + m, f"busy{n}") for n in range(50) for m in range(20)))
    drain(waiting, most=301)
    waiting.add(ticket(9_001, "new"))
    waiting.add(ticket(9_002, "newer", tokens=100 * QUANTUM))
    assert [each.number for each in drain(waiting, most=2)] == [9_001, 9_002]


def test_it_has_one_turn_early_and_the_next_when_it_comes():
    waiting = flows(*(ticket(100 * n + m, f"busy{n}", tokens=QUANTUM) for n in range(5) for m in range(20)))
    drain(waiting, most=22)
    for number in range(3):
        waiting.add(ticket(9_000 + number, "new", tokens=QUANTUM))
    places = [place for place, each in enumerate(drain(waiting, most=20)) if each.tenant == "new"]
    assert places[0] == 0
    assert places[2] - places[1] == 6
    assert 6 <= places[1] <= 2 * 6 + 3


def test_one_that_was_served_and_comes_again_in_the_same_round_is_not_new():
    """Else one that always has but one request would always be first, whatever it gets in all."""
    waiting = flows(*(ticket(n, f"busy{n % 4}", tokens=QUANTUM) for n in range(400)))
    served = Counter()
    for number in range(100):
        if not any(each.tenant == "single" for each in waiting._line.values()):
            waiting.add(ticket(9_000 + number, "single", tokens=QUANTUM))
        served[waiting.next().tenant] += 1
    assert max(served.values()) - min(served.values()) <= 2


def test_what_it_overdrew_is_not_forgotten_with_it():
    waiting = flows(*(ticket(n, "busy", tokens=QUANTUM) for n in range(100)))
    waiting.add(ticket(9_000, "huge", tokens=20 * QUANTUM))
    taken = [waiting.next() for _ in range(3)]
    assert {each.tenant for each in taken} == {"busy", "huge"}
    waiting.add(ticket(9_001, "huge", tokens=20 * QUANTUM))
    assert 15 <= [each.tenant for each in drain(waiting)].index("huge") <= 20


def test_one_that_left_unserved_is_new_again():
    waiting = flows(*(ticket(n, "busy") for n in range(100)))
    drain(waiting, most=10)
    gone = ticket(9_000, "new")
    waiting.add(gone)
    waiting.remove(gone)
    waiting.add(ticket(9_001, "new"))
    assert waiting.next().number == 9_001


@pytest.mark.parametrize("many", [1, 10, 200])
def test_however_many_are_new_each_of_the_others_has_its_turn(many):
    """Within four requests for each tenant that waited when it had its last turn."""
    waiting = flows(*(ticket(1_000 * n + m, f"old{n}", tokens=QUANTUM) for n in range(5) for m in range(100)))
    drain(waiting, most=10)
    left = {f"old{n}": (EARLY + 1) * 5 for n in range(5)}
    served, number = Counter(), 10_000
    for _ in range(400):
        for _ in range(many):
            number += 1
            waiting.add(ticket(number, f"new{number}", tokens=1))
        tenant = waiting.next().tenant
        left = {each: most - 1 for each, most in left.items()}
        if tenant.startswith("old"):
            left[tenant] = (EARLY + 1) * len({each.tenant for each in waiting._line.values()})
        served[tenant] += 1
        assert min(left.values()) >= 0
    assert min(served[each] for each in left) > 0
    assert EARLY == 3


def test_nobody_is_remembered_for_long():
    """A hundred thousand come once, beside one that always waits."""
    waiting = flows(*(ticket(n, "busy") for n in range(50)))
    for number in range(100_000):
        waiting.add(each := ticket(1_000 + number, f"t{number}", tokens=1_000_000))
        if number % 3:
            waiting.remove(each)
        else:
            waiting.next()
            waiting.add(ticket(1_000_000 + number, "busy", entered=1_000.0 + number))
        assert len(waiting._tenants) == len(waiting._turns) <= len(waiting) + 1 + max(KEPT, len(waiting))
    drain(waiting)
    assert (len(waiting._tenants), len(waiting._turns), len(waiting._early)) == (0, 0, 0)


def test_what_costs_nothing_does_not_keep_the_turn():
    free = [ticket(number, "free", tokens=0) for number in range(10_000)]
    waiting = flows(*free, ticket(20_000, "other"))
    assert "other" in {each.tenant for each in drain(waiting, most=QUANTUM + 2)}


def test_the_rounds_that_serve_nobody_are_not_gone_through(monkeypatch):
    """Else a request of ten million tokens and a weight of 0.01 would take half a million rounds."""
    passed = 0
    go_on = Flows.next.__globals__["_Flow"].go_on

    def counted(flow):
        nonlocal passed
        passed += 1
        go_on(flow)

    monkeypatch.setattr(Flows.next.__globals__["_Flow"], "go_on", counted)
    slow = [ticket(number, f"t{number % 100}", tokens=10**9, weight=0.01) for number in range(200)]
    waiting = flows(*slow, *(ticket(1_000 + number, "quick", tokens=1) for number in range(2_000)))
    assert len(drain(waiting)) == 2_200
    assert 200 <= passed < 400


def test_one_that_leaves_is_served_no_more_and_its_tenants_others_are():
    tickets = [ticket(1), ticket(2), ticket(3, "b"), ticket(4)]
    waiting = flows(*tickets)
    waiting.remove(tickets[0])
    waiting.remove(tickets[2])
    assert (len(waiting), waiting.tokens) == (2, 200)
    assert [each.number for each in drain(waiting)] == [2, 4]
    assert waiting.tokens == 0


def test_the_newest_word_on_a_weight_counts():
    first = [ticket(n, tokens=QUANTUM) for n in range(200)]
    waiting = flows(*first, *(ticket(1_000 + n, "b", tokens=QUANTUM) for n in range(200)))
    waiting.add(ticket(2_000, weight=4.0, tokens=QUANTUM))
    served = Counter(each.tenant for each in drain(waiting, most=100))
    assert abs(served["a"] / 4 - served["b"]) <= 2


def test_a_newcomer_has_before_it_what_is_of_its_tenant_and_as_much_of_others_as_they_get_until_then():
    heavy = [ticket(number, "heavy", tokens=QUANTUM) for number in range(100)]
    waiting = flows(*heavy, *(ticket(200 + number, "light", tokens=QUANTUM) for number in range(3)))
    assert waiting.ahead(ticket(900, "heavy", tokens=QUANTUM)) == Ahead(103, 103 * QUANTUM)
    assert waiting.ahead(ticket(900, "light", tokens=QUANTUM)) == Ahead(7, 7 * QUANTUM)
    assert Flows().ahead(ticket(1)) == Ahead(0, 0)


def test_before_one_that_begins_anew_are_those_that_do_too():
    waiting = flows(*(ticket(number, "busy", tokens=QUANTUM) for number in range(100)))
    drain(waiting, most=10)
    assert waiting.ahead(ticket(900, "new", tokens=50_000, weight=0.01)) == Ahead(0, 0)
    waiting.add(ticket(900, "newer"))
    waiting.add(ticket(901, "newer"))
    assert waiting.ahead(ticket(902, "new")) == Ahead(2, 200)
    assert waiting.ahead(ticket(902, "newer")) == Ahead(2, 200)
    drain(waiting, most=2)
    assert waiting.ahead(ticket(902, "newer", tokens=1)) == Ahead(0, 0)


def test_many_that_ask_what_is_before_them_do_not_have_all_counted():
    waiting = flows(*(ticket(number, f"t{number // 2}", tokens=QUANTUM) for number in range(2_000)))
    assert 0 < waiting.ahead(ticket(9_000, "t999")).requests <= 1_000


def test_a_hundred_thousand_wait():
    tenants = [f"t{number}" for number in range(1_000)]
    tickets = [ticket(number, tenants[number * 7 % 1_000], tokens=number % 5_000) for number in range(100_000)]
    waiting = flows(*tickets)
    for each in tickets[::2]:
        waiting.remove(each)
    served = drain(waiting)
    assert len(served) == 50_000
    assert (waiting.tokens, len(waiting)) == (0, 0)
