import orjson

from loadtests.overload import report
from loadtests.overload.answers import WRONG, Heard
from loadtests.overload.arrivals import Request
from loadtests.overload.client import Attempt
from loadtests.overload.figures import Capacity
from loadtests.overload.goals import Goal
from loadtests.overload.result import Host, Run, rows, spans
from loadtests.overload.runner import Measured, Wish
from loadtests.overload.scenarios import by_name
from loadtests.overload.targets import TARGETS


def attempt(heard: Heard, late: float = 0.0, phase: str = "overload") -> Attempt:
    return Attempt(Request(1.0, "all", phase, 5, 3, 1), 0, 11.0, 1.0, heard, late)


SERVED = attempt(Heard(ttft=0.1234, tokens=3))
REFUSED = attempt(Heard("queue_full", retry_after=4.0))


def measured(*attempts: Attempt, failed: str = "", host: Host | None = None) -> Measured:
    scenario = by_name("overload")
    when = spans(scenario.phases)
    made = Run(scenario, Capacity(817.0, 26.6), attempts, when, rows(attempts, when), host or Host(0.01, 0.0))
    return Measured(scenario, TARGETS[0], [] if failed else [made], failed)


def test_columns_stand_under_each_other() -> None:
    when = spans(by_name("overload").phases)
    lines = report.table(rows([SERVED, REFUSED], when))
    ends = [lines[0].index("sent") + len("sent"), *(lines[line].index(" 0 ") + len(" 0") for line in (1, 3))]
    assert len(set(ends)) == 1
    assert lines[2].split()[:4] == ["overload", "all", "2", "0"]
    assert lines[2].endswith("1 queue_full")


def test_goals_are_said_with_their_figures() -> None:
    lines = report.lines([measured(SERVED, REFUSED)])
    assert lines[0].startswith("overload: ")
    assert any("capacity 26.6 requests/s" in line for line in lines)
    assert any(line.startswith("  MISSED  goodput under overload") and ">= 0.90" in line for line in lines)
    assert report.verdict(Goal("p99", 0.5, "<=", 1.0, "s")) == "  met     p99: 0.50 s <= 1.00 s"
    assert "not measured" in report.verdict(Goal("p99", None, "<=", 1.0))


def test_a_host_that_was_too_busy_is_said() -> None:
    assert report.doubts([measured(SERVED)]) == []
    assert "200 ms late" in report.doubts([measured(attempt(Heard(ttft=0.1), 0.2))])[0]
    assert "40% of a run" in report.doubts([measured(SERVED, host=Host(0.4, 0.0))])[0]
    assert "stood still for 300 ms" in report.doubts([measured(SERVED, host=Host(None, 0.3))])[0]


def test_a_goal_that_is_missed_is_sound_and_a_wrong_answer_is_not() -> None:
    wrong = measured(attempt(Heard(WRONG, error="cut off")))
    lost = measured(failed="its last words")
    assert report.doubts([wrong, lost]) == [
        "ERROR: overload, gateway: cut off",
        "FAILED: overload, gateway: its last words",
    ]
    assert report.sound([measured(SERVED, REFUSED)])
    assert not report.sound([measured(SERVED), wrong])
    assert not report.sound([measured(SERVED), lost])
    assert not report.sound([])


def test_the_document_holds_every_attempt_and_every_goal() -> None:
    document = orjson.loads(orjson.dumps(report.document([measured(SERVED, REFUSED)], Wish(obey=True))))
    assert document["wish"]["obey"] is True
    (run,) = document["results"][0]["runs"]
    assert [each["outcome"] for each in run["attempts"]] == ["", "queue_full"]
    assert [goal["met"] for goal in run["goals"]] == [False, False, True]
    assert run["rows"][1]["refused"] == {"queue_full": 1}
