"""What the gateway says by itself."""

from __future__ import annotations

import orjson

from gateway.model import AliasTable, Revision, Target
from gateway.steps.inform import health, model, models


def _table(*names):
    return AliasTable(1, {name: Revision(name, 2, (Target("served-secret"),), "ops", 5.9) for name in names})


def test_health_is_never_kept_by_a_cache():
    for ready, status in ((True, 200), (False, 503)):
        answer = health(ready)
        assert answer.status == status
        assert b"cache-control: no-store\r\n" in answer.lines


def test_the_list_holds_what_the_caller_may_call_by_name_and_no_more():
    answer = models(_table("b", "a", "c"), lambda name: name != "b", "req_1")
    said = orjson.loads(answer.body)
    assert [row["id"] for row in said["data"]] == ["a", "c"]
    assert (said["object"], answer.status) == ("list", 200)
    assert b"x-request-id: req_1\r\n" in answer.lines


def test_a_model_is_shown_under_its_alias_without_what_serves_it():
    revision = _table("a").current["a"]
    answer = model(revision, "req_1")
    assert orjson.loads(answer.body) == {"id": "a", "object": "model", "created": 5, "owned_by": "gateway"}
    assert b"served-secret" not in answer.body + answer.lines
