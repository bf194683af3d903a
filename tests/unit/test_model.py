"""The shared values: frozen, closed where they say so, and readable as labels."""

from __future__ import annotations

import dataclasses

import pytest

from gateway import model
from gateway.model import (
    INSTANCE_TTL,
    SOURCES,
    AliasTable,
    BodyKind,
    Dialect,
    Endpoint,
    EngineOrder,
    EngineOrders,
    EngineSpec,
    FormPart,
    InferenceRequest,
    Instance,
    Principal,
    Priority,
    Revision,
    Route,
    Target,
    Usage,
)

ROUTE = Route("POST", "/v1/chat/completions", Endpoint.CHAT)
REVISION = Revision("internal-general", 3, (Target("m"),), "ops", 1.0)
TRIAL = Revision("internal-general", 4, (Target("m", 95), Target("n", 5)), "ops", 2.0, source="canary", canary_of=3)
INSTANCE = Instance("i1", "gw-1", "1.2", "http://127.0.0.1:9090", 1.0, 2.0, 7)
VALUES = [
    *(ROUTE, REVISION, INSTANCE, Target("m"), Principal("k", "t"), AliasTable()),
    *(EngineSpec("http://x"), EngineOrder("http://x"), EngineOrders(), FormPart("a", b"")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_shared_values_are_frozen_and_have_no_room_for_more(value):
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("value", [Usage(), InferenceRequest(ROUTE, "a", {})], ids=lambda value: type(value).__name__)
def test_values_of_a_request_cannot_be_changed(value):
    for name in value._fields:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


def test_defaults_that_hold_something_cannot_be_changed_for_all():
    with pytest.raises(TypeError):
        AliasTable().current["a"] = REVISION  # type: ignore[index]
    with pytest.raises(TypeError):
        EngineSpec("http://x").labels["gpu"] = "a100"  # type: ignore[index]
    with pytest.raises(TypeError):
        EngineOrder("http://x").labels["gpu"] = "a100"  # type: ignore[index]
    with pytest.raises(TypeError):
        EngineOrders().engines["http://x"] = EngineOrder("http://x")  # type: ignore[index]


def test_an_order_orders_nothing_unless_it_says_so():
    assert EngineOrder("http://x") == EngineOrder("http://x", False, False, {}, "", 0.0, "")
    assert EngineOrders() == EngineOrders(0, {})


def test_the_endpoints_are_closed():
    assert sorted(endpoint.value for endpoint in Endpoint) == sorted(
        [
            "chat",
            "completions",
            "embeddings",
            "responses",
            "messages",
            "count_tokens",
            "rerank",
            "score",
            "classify",
            "pooling",
            "transcriptions",
            "translations",
            "tokenize",
            "detokenize",
            "models",
            "health",
            "other",
        ]
    )


def test_priorities_are_a_closed_order():
    ranks = {priority.value: priority.rank for priority in sorted(Priority, key=lambda priority: priority.rank)}
    assert ranks == {"interactive": 0, "standard": 1, "bulk": 2}


@pytest.mark.parametrize("kind", [Endpoint, Dialect, BodyKind, Priority])
def test_an_enum_member_prints_as_its_value_and_is_found_by_it(kind):
    for member in kind:
        assert str(member) == f"{member}" == member.value
        assert {member: 1}[member.value] == 1
        assert hash(member) == hash(member.value)


def test_a_label_names_the_revision():
    assert REVISION.label == "internal-general@3"


@pytest.mark.parametrize(
    ("revision", "model", "track"),
    [
        (TRIAL, "n", "canary"),
        (TRIAL, "m", "stable"),
        (TRIAL, "gone", "stable"),
        (REVISION, "m", "stable"),
        (dataclasses.replace(TRIAL, canary_of=None), "n", "stable"),
    ],
)
def test_only_the_new_model_of_a_trial_is_on_the_other_track(revision, model, track):
    assert revision.track(model) == track


def test_where_a_revision_comes_from_is_closed():
    assert sorted(SOURCES) == ["api", "automatic", "canary", "cli", "file", "rollback"]
    assert {REVISION.source, TRIAL.source} <= SOURCES


def test_an_instance_is_up_to_date_unless_it_says_otherwise():
    assert (INSTANCE.table_age, INSTANCE.degraded) == (0.0, False)
    assert INSTANCE_TTL == 10.0


def test_a_principal_may_call_everything_unless_told_otherwise():
    assert Principal("k", "t").aliases == ("*",)


def test_the_module_does_no_io():
    unwanted = {"asyncio", "socket", "os", "time", "httpx", "pathlib", "sqlite3"}
    assert unwanted.isdisjoint(vars(model))
