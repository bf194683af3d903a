"""Trying a model and going back, as commands: on a store and through a gateway."""

from __future__ import annotations

import json

import pytest

from gateway.admin.comparison import comparison_view
from gateway.cli.rollout import remarks, row_cells
from gateway.model import Revision, Target

TRIAL = Revision("chat", 4, (Target("a", 95), Target("b", 5)), "ops", 9.0, source="canary", canary_of=3)


def track(requests: int, errors: int, *counts: int) -> dict[str, object]:
    tpot = {"tpot_bounds": [0.1, 0.2], "tpot_counts": [0, 0, 0]}
    return {"requests": requests, "errors": errors, "ttft_bounds": [0.1, 0.2], "ttft_counts": list(counts), **tpot}


def test_a_trial_is_begun_widened_promoted_and_rolled_back(anywhere):
    cli = anywhere
    cli.ok("alias", "set", "team/chat", "--model", "model-a")
    begun = cli("alias", "canary", "team/chat", "--model", "model-b")
    assert (begun.exit_code, begun.stdout) == (0, "")
    assert "model-a 95 %, model-b 5 % (a canary of revision 1) since revision 2" in begun.stderr
    wider = json.loads(cli.ok("alias", "canary", "team/chat", "--model", "model-b", "--weight", "50", "--json"))
    assert ([one["weight"] for one in wider["targets"]], wider["canary_of"]) == ([50, 50], 1)
    assert "promote or abort it first" in cli.refused("alias", "canary", "team/chat", "--model", "model-a")
    assert "model-b alone since revision 4" in cli("alias", "promote", "team/chat").stderr
    assert "no canary of team/chat runs" in cli.refused("alias", "promote", "team/chat")
    assert "model-a again, since revision 5" in cli("alias", "rollback", "team/chat", "--note", "slow").stderr
    cli.ok("alias", "canary", "team/chat", "--model", "model-b")
    assert json.loads(cli.ok("alias", "abort", "team/chat", "--json"))["targets"] == [{"model": "model-a", "weight": 1}]
    back = json.loads(cli.ok("alias", "rollback", "team/chat", "--to", "4", "--expect-revision", "7", "--json"))
    assert (back["revision"], back["targets"][0]["model"]) == (8, "model-b")
    assert "was a canary" in cli.refused("alias", "rollback", "team/chat", "--to", "3")
    assert "revision 7 was expected" in cli.refused("alias", "rollback", "team/chat", "--expect-revision", "7")
    assert "o alias has that name" in cli.refused("alias", "rollback", "none")


def test_a_gateway_refuses_a_rollback_to_what_nobody_serves(cli, running):
    cli.ok("alias", "set", "chat", "--model", "gone")
    cli.ok("alias", "set", "chat", "--model", "model-a")
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    assert "No replica serves gone now" in cli.refused("alias", "rollback", "chat")
    cli.ok("alias", "rollback", "chat", "--force")
    verbs = [line["verb"] for line in json.loads(cli.ok("audit", "list", "--json"))]
    assert verbs == ["alias.set", "alias.set", "alias.force", "alias.rollback"]


@pytest.mark.parametrize(
    "args",
    [
        ("rollback", "chat", "--to", "0"),
        ("rollback", "chat@2"),
        ("canary", "chat"),
        ("canary", "chat", "--model", "m", "--weight", "100"),
        ("canary", "chat", "--model", "m m"),
        ("promote",),
        ("abort", "chat", "--note", "a\nb"),
    ],
)
def test_wrong_usage_is_2_and_changes_nothing(cli, args):
    cli.refused("alias", *args, code=2)
    assert not cli.folder.exists()


def test_a_trial_is_compared_by_a_gateway_alone(cli, running):
    cli.ok("alias", "set", "chat", "--model", "model-a")
    cli.ok("alias", "canary", "chat", "--model", "model-b")
    assert "--admin-url" in cli.refused("alias", "compare", "chat")
    cli.env["GATEWAY_ADMIN_URL"] = running.url
    running.tracks.update(stable=track(1_000, 0, 990, 10, 0), canary=track(60, 20, 40, 0, 0))
    result = cli("alias", "compare", "chat")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows[0][0] == "MEASURE"
    assert rows[1][:6] == ["error rate", "0.00 %", "1000", "33.33 %", "60", "+33.33 %"]
    assert rows[1][-1] == "worse"
    assert rows[3][-1] == "not enough data"
    assert "Not enough data for TTFT p95: 100 samples of each track are needed; canary has 40." in result.stderr
    assert "this gateway's alone" in result.stderr
    view = json.loads(cli.ok("alias", "compare", "chat", "--json"))
    assert (view["canary"]["errors"], view["rows"][0]["verdict"]) == (20, "worse")
    cli.ok("alias", "abort", "chat")
    assert "nothing to compare" in cli.refused("alias", "compare", "chat")


def test_a_row_shows_seconds_open_ends_and_what_is_missing():
    view = comparison_view(TRIAL, {"stable": track(200, 0, 200, 0, 0), "canary": track(200, 0, 0, 0, 200)})
    assert row_cells(view.rows[1]) == (
        "TTFT p50",
        *("0.050 s", "200", "0.200 s", "200"),
        *("+0.150 s", "+0.100 s to -", "worse"),
    )
    assert row_cells(view.rows[3])[1:] == ("-", "0", "-", "0", "-", "-", "not enough data")
    assert remarks(view)[1].endswith("30 samples of each track are needed; stable has 0, canary has 0.")
