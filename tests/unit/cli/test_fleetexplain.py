"""``gateway fleet explain``: a table of what each candidate's estimate was made of, and a sentence."""

from __future__ import annotations

import json

import pytest

from gateway.admin.explainviews import decision_view
from gateway.cli.fleetexplain import COLUMNS, cells, remarks
from gateway.fleet.balance.estimate import Load, Quote
from gateway.fleet.balance.explained import Decision
from gateway.fleet.balance.pace import Prior

ID = "req_0123456789abcdef01234567"


def decision(request_id=ID, alias="general", **fields):
    quote = Quote()
    quote.renew(Load(unanswered=800), Prior(prefill=8_000.0), 90.0)
    seen = [("127.0.0.1:8001", quote.said, 2, 1 << 30), ("127.0.0.1:8002", None, 1, 1)]
    given = Decision((request_id, alias, "m"), 90.0, "estimate", 1, 100.0, 400, {}, True, 2, seen, "127.0.0.1:8001")
    return given._replace(**fields)


def test_a_candidate_is_a_row_of_milliseconds():
    busy, other = sorted(decision_view(decision(), 0.0).candidates, key=lambda one: one.replica)
    row = dict(zip(COLUMNS, cells(busy), strict=True))
    assert (row["REPLICA"], row["QUEUE"], row["FACTOR"]) == ("127.0.0.1:8001", "100.0", "1.00")
    assert (row["HOLDS"], row["IN FLIGHT"], row["CHOSEN"]) == ("0", "2", "yes")
    assert cells(other)[1:] == (*["-"] * 8, "0", "1 of 1", "")


def test_a_sentence_says_what_decided_and_about_what():
    placed, why = remarks(decision_view(decision(), 86_400.0))
    assert placed == f"{ID} went to 127.0.0.1:8001 at 1970-01-02 00:00:00Z (attempt 1, estimate, among 2)."
    assert why.endswith(" Its prompt: 400 bytes, about 100 tokens.")
    placed, why = remarks(decision_view(decision(chosen=None, pool=256, size=0), 0.0))
    assert "went nowhere" in placed
    assert "among 256, of which 2 are shown" in placed
    assert why == "None of the candidates had room."


@pytest.fixture
def asked(cli, running):
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    return cli, running.decisions


def test_the_newest_or_one_by_its_id(asked):
    cli, kept = asked
    kept.add(decision())
    kept.add(decision(request_id=ID[:-1] + "0", alias="other"))
    header, *rows = (line.split("\t") for line in cli.ok("fleet", "explain", "--request-id", ID).splitlines())
    assert (tuple(header), len(rows)) == (COLUMNS, 2)
    assert json.loads(cli.ok("fleet", "explain", "--json"))["alias"] == "other"
    assert json.loads(cli.ok("fleet", "explain", "--alias", "general", "--json"))["request_id"] == ID
    assert f"{ID} went to 127.0.0.1:8001" in cli("fleet", "explain", "--request-id", ID).stderr


@pytest.mark.parametrize("unknown", ["req_" + "f" * 24, "../../keys", "a/b?c#d", "x" * 2_000])
def test_one_that_is_not_there_is_refused_with_what_to_do(asked, unknown):
    cli, _ = asked
    assert "ask the instance that served it" in cli.refused("fleet", "explain", "--request-id", unknown).lower()


def test_two_questions_at_once_are_a_usage_error(asked):
    cli, _ = asked
    assert "give one of them, not both" in cli.refused("fleet", "explain", "--request-id", ID, "--alias", "a", code=2)


def test_without_a_gateway_nobody_knows(cli):
    cli.ok("keys", "create", "app")
    assert "known to a running gateway alone" in cli.refused("fleet", "explain")


def test_it_teaches_by_an_example(cli):
    assert "Example:  gateway fleet explain" in cli.ok("fleet", "explain", "--help")
