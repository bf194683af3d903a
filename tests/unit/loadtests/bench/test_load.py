from itertools import pairwise

import pytest

from loadtests.bench import load
from loadtests.bench.answers import chat_answer
from loadtests.bench.scenarios import by_name

REFUSAL = b'{"error":{"message":"invalid credential","code":"invalid_credential"}}'
END = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("scenario", "status", "body", "chunks", "slack", "wrong"),
    [
        ("chat", 200, chat_answer(), 0, 0, None),
        ("chat", 500, b"oops", 0, 0, "status 500"),
        ("chat", 200, b"{}", 0, 0, "not the engine's answer"),
        ("refused", 401, REFUSAL, 0, 0, None),
        ("refused", 200, chat_answer(), 0, 0, "status 200 instead of 401"),
        ("stream", 200, END, 201, 0, None),
        ("stream", 200, END, 202, 0, None),
        ("stream", 200, END, 200, 0, "lacks 1 of 200"),
        ("stream", 200, END, 200, 2, None),
        ("stream", 200, b'data: {"error":{}}\n\n', 201, 0, "does not end with"),
    ],
)
def test_an_answer_that_is_not_as_it_must_be_is_a_fault(
    scenario: str, status: int, body: bytes, chunks: int, slack: int, wrong: str | None
) -> None:
    found = load.fault(by_name(scenario), status, body, chunks, slack)
    assert found is None if wrong is None else found is not None and wrong in found


def test_a_phase_ends_at_its_time_or_at_its_count() -> None:
    tally = load.Tally(limit=2, until=10.0)
    assert tally.may_send(9.9)
    assert not tally.may_send(10.0)
    tally.sent = 2
    assert not tally.may_send(0.0)
    assert load.Tally(limit=0, until=10.0, sent=10**9).may_send(0.0)


def test_only_the_first_errors_are_kept_and_all_are_counted() -> None:
    tally = load.Tally(0, 0.0)
    for number in range(50):
        tally.fail(f"error {number}")
    done = load.outcome(tally, 1.0)
    assert done.errors == 50
    assert done.first_errors == tuple(f"error {number}" for number in range(load.ERRORS_KEPT))
    assert done.p50 is None


@pytest.mark.parametrize("cuts", [(), (1,), (7,), (8,), (9,), (8, 9), tuple(range(1, 38))])
def test_events_are_counted_however_the_reads_cut_them(cuts: tuple[int, ...]) -> None:
    body = b"data: a\n\ndata: bb\n\ndata: [DONE]\n\n"
    run = load.Run(load.Job("stream", 1, "", 1.0, 0, 0.0, 0))
    client = load.Client(run)
    edges = [0, *[cut for cut in cuts if cut < len(body)], len(body)]
    for start, end in pairwise(edges):
        client.on_body(body[start:end])
    assert client._chunks == 3
    assert b"".join(client._body).endswith(load.STREAM_END)
