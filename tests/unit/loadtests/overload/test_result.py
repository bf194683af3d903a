import pytest

from loadtests.overload.answers import Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.result import rows, spans
from loadtests.overload.scenarios import Phase, Stream

PHASES = (Phase("one", 10.0, (Stream("a", 1.0),)), Phase("two", 5.0, (Stream("a", 1.0), Stream("b", 1.0))))


def test_phases_follow_each_other() -> None:
    assert [(span.begin, span.end) for span in spans(PHASES, 3.0)] == [(3.0, 13.0), (13.0, 18.0)]


def test_there_is_a_row_for_each_stream_in_the_time_of_its_phase() -> None:
    served = Attempt(Request(1.0, "a", "one", 5, 10, 1), 0, 11.0, 1.0, Heard(ttft=0.0, tokens=10))
    found = rows([served], spans(PHASES, 10.0))
    assert [(row.phase, row.caller) for row in found] == [("one", "a"), ("two", "a"), ("two", "b")]
    assert [row.rate for row in found] == [pytest.approx(1.0), 0.0, 0.0]
