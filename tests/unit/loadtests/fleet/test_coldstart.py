import pytest
from typer.testing import CliRunner

from loadtests.fleet.__main__ import app
from loadtests.fleet.cold import Met, sender, spec
from loadtests.fleet.coldstart import Wish, became_ready, side
from loadtests.fleet.load import Sample


@pytest.mark.parametrize(
    ("seconds", "every", "additions"),
    [(60, 10, [10, 20, 30, 40, 50]), (61, 10, [10, 20, 30, 40, 50, 60]), (10, 10, []), (5, 10, []), (9, 4, [4, 8])],
)
def test_replicas_are_added_at_each_interval_and_none_at_the_end(seconds, every, additions):
    assert Wish(seconds=seconds, every=every).additions == additions


def test_only_replicas_that_are_ready_have_a_time():
    rows = [
        {"url": "http://127.0.0.1:1", "state": "ready", "since": 1000.5},
        {"url": "http://127.0.0.1:2", "state": "warming", "since": 1001.0},
    ]
    assert became_ready(rows) == {"http://127.0.0.1:1": 1000.5}


def test_times_count_from_the_beginning_and_cold_is_counted_on_all_engines():
    tally = {
        1: {"user": 90, "user_cold": 1, "warmup": 20},
        2: {"user": 4, "user_cold": 2, "warmup": 25},
        3: {"user": 0, "user_cold": 0, "warmup": 7},
    }
    ready = {"http://127.0.0.1:1": 990.0, "http://127.0.0.1:2": 1028.0}
    found = side([Sample(0.0, 0.1)], tally, {2: 1010.0, 3: 1020.0}, ready, begun=1000.0)
    assert found.cold == 3
    assert [(each.port, each.started, each.ready) for each in found.added] == [(2, 10.0, 28.0), (3, 20.0, None)]
    assert (found.added[0].user, found.added[0].user_cold, found.added[0].warmup) == (4, 2, 25)


@pytest.mark.parametrize(
    ("request_id", "whose"),
    [
        (b"warmup-0123", "warmup"),
        (b"canary-0123", "canary"),
        (b"0123", "user"),
        (b"user-1", "user"),
        (b"", "user"),
        (None, "user"),
        (b"warmupx-1", "user"),
    ],
)
def test_an_inference_is_a_users_unless_the_gateway_marked_it(request_id, whose):
    assert sender(request_id) == whose
    assert hasattr(Met(1), whose)


def test_an_added_engine_is_sixty_times_slower_at_first_and_the_others_never():
    assert (spec(cold=True).cold_factor, spec(cold=True).cold_requests > 0) == (60.0, True)
    assert spec(cold=False).cold_requests == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["coldstart", "--seconds", "1"],
        ["coldstart", "--every", "0"],
        ["coldstart", "--rate", "1000"],
        ["coldstart", "--repeat", "0"],
        ["scale", "--replicas", "0"],
        ["scale", "--replicas", "5000"],
        ["scale", "--busy", "2"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments):
    assert CliRunner().invoke(app, arguments).exit_code == 2
