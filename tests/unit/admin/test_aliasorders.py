"""What may be ordered of an alias, and what not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.admin.aliasorders import AliasOrder, CanaryOrder, DeleteOrder, PromoteOrder, RollbackOrder, TargetOrder
from gateway.aliasing.plan import MAX_TARGETS, MAX_WEIGHT
from gateway.model import Target


def test_an_assignment_aims_at_one_model_or_at_several():
    assert AliasOrder(model="a").aims() == (Target("a"),)
    split = AliasOrder(targets=[TargetOrder(model="a", weight=9), TargetOrder(model="b")])
    assert split.aims() == (Target("a", 9), Target("b", 1))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (AliasOrder, {}),
        (AliasOrder, {"model": "a", "targets": [{"model": "b"}]}),
        (AliasOrder, {"targets": []}),
        (AliasOrder, {"targets": [{"model": "a"}, {"model": "a", "weight": 2}]}),
        (AliasOrder, {"targets": [{"model": f"m{number}"} for number in range(MAX_TARGETS + 1)]}),
        (AliasOrder, {"targets": [{"model": "a", "weight": 0}]}),
        (AliasOrder, {"targets": [{"model": "a", "weight": MAX_WEIGHT + 1}]}),
        (AliasOrder, {"targets": [{"model": "a", "url": "http://x"}]}),
        (AliasOrder, {"model": "a b"}),
        (AliasOrder, {"model": "a", "source": "automatic"}),
        (AliasOrder, {"model": "a", "note": "x\ny"}),
        (AliasOrder, {"model": "a", "note": "x" * 201}),
        (AliasOrder, {"model": "a", "expect_revision": -1}),
        (AliasOrder, {"model": "a", "author": "me"}),
        (RollbackOrder, {"to": 0}),
        (RollbackOrder, {"to": "1"}),
        (RollbackOrder, {"model": "a"}),
        (CanaryOrder, {}),
        (CanaryOrder, {"model": "a", "weight": 0}),
        (CanaryOrder, {"model": "a", "weight": 100}),
        (CanaryOrder, {"model": "a", "canary_of": 1}),
        (PromoteOrder, {"model": "a"}),
        (DeleteOrder, {"force": "yes"}),
    ],
)
def test_anything_else_is_refused(kind, fields):
    with pytest.raises(ValidationError):
        kind.model_validate(fields)
