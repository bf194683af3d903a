import itertools
from random import Random

import orjson
import pytest

from loadtests.overload.arrivals import Request, arrivals, encoded, groups, unending
from loadtests.overload.scenarios import Phase, Stream

PHASES = (
    Phase("before", 10.0, (Stream("a", 0.5),), settle=True),
    Phase("both", 20.0, (Stream("a", 3.0, prompt=40), Stream("b", 1.0))),
)


def test_loads_are_shares_of_the_capacity_and_phases_follow_each_other() -> None:
    made = arrivals(Random(1), PHASES, 20.0)
    assert [each.at for each in made] == sorted(each.at for each in made)
    sizes = {
        kind: len([each for each in made if (each.phase, each.caller) == kind])
        for kind in (("before", "a"), ("both", "a"), ("both", "b"))
    }
    assert sizes == {
        ("before", "a"): pytest.approx(100, rel=0.3),
        ("both", "a"): pytest.approx(1200, rel=0.1),
        ("both", "b"): pytest.approx(400, rel=0.15),
    }
    assert all((each.at < 10.0) == (each.phase == "before") for each in made)
    assert {each.prompt for each in made if (each.phase, each.caller) == ("both", "a")} == {40}


def test_a_seed_decides() -> None:
    assert arrivals(Random(2), PHASES, 20.0) == arrivals(Random(2), PHASES, 20.0)
    assert arrivals(Random(2), PHASES, 20.0) != arrivals(Random(3), PHASES, 20.0)


def test_a_closed_loop_has_no_times() -> None:
    first, second = itertools.islice(unending(Random(1), Stream("a", 1.0), "capacity"), 2)
    assert first.at == second.at == 0.0
    assert first.seed != second.seed


def test_phases_are_apart_where_engines_shall_be_idle() -> None:
    one, two, three = Phase("1", 1.0, ()), Phase("2", 1.0, ()), Phase("3", 1.0, (), settle=True)
    assert groups([one, two, three]) == [[one, two], [three]]
    assert groups([three, one]) == [[three, one]]


def test_a_request_is_whole_and_its_words_are_its_own() -> None:
    request = Request(0.0, "a", "both", 20, 7, 5)
    head, _, body = encoded(request, 8080, "sk-x").partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"authorization: Bearer sk-x" in head
    told = orjson.loads(body)
    assert len(told["messages"][0]["content"].split()) == 20
    assert (told["max_tokens"], told["stream"], told["ignore_eos"]) == (7, True, True)
    other = encoded(Request(0.0, "a", "both", 20, 7, 6), 8080, "")
    assert b"authorization" not in other
    assert body not in other
