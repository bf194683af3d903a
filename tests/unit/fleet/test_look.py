"""Looks at engines that are well, that are not, and that answer with whatever they like."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineBusy, EngineFailure, EngineProtocolError, EngineReset, EngineTimeout, EngineUnreachable
from gateway.fleet.engines.adapter import GENERIC
from gateway.fleet.engines.sglang import SGLANG
from gateway.fleet.engines.vllm import VLLM
from gateway.fleet.look import (
    Answered,
    Seen,
    look_at_health,
    look_at_models,
    look_at_signals,
    look_at_version,
    read_models,
)
from gateway.fleet.signals import Reading, Signal

REFUSED, SLOW = EngineUnreachable(), EngineUnreachable(slow=True)
FAILURES = [REFUSED, SLOW, EngineTimeout(), EngineReset(), EngineProtocolError(), EngineBusy()]


class Eyes:
    """Says the same to each look, and keeps what was asked."""

    def __init__(self, said: tuple[int, bytes] | EngineFailure) -> None:
        self.said = said
        self.asked: list[tuple[str, float, bool]] = []

    async def get(self, path: str, patience: float, *, fresh: bool = False) -> tuple[int, bytes]:
        self.asked.append((path, patience, fresh))
        if isinstance(self.said, EngineFailure):
            raise self.said
        return self.said


def row(**fields: object) -> dict[str, object]:
    return {"id": "m", **fields}


NAMELESS = [None, 7, "m", [], {}, row(id=None), row(id=7), row(id=["m"]), row(id="")]
UNPRINTABLE = [row(id="x" * 257), row(id="a\nb"), row(id="\x1b[31m"), row(id="\u2028"), row(id="\u202e")]


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"data": [row(max_model_len=2048), row(id="n")]}, Seen(("m", "n"), 2048)),
        ({"data": [row(max_model_len=9), row(id="n", max_model_len=5)]}, Seen(("m", "n"), 5)),
        ({"data": [row(), row(), row(id="n"), row()]}, Seen(("m", "n"))),
        ({"data": [row(max_model_len=True), row(max_model_len="9"), row(max_model_len=1.5)]}, Seen(("m",))),
        ({"data": [row(max_model_len=0), row(max_model_len=-4096)]}, Seen(("m",))),
        ({"data": []}, Seen()),
        ({"data": NAMELESS}, Seen()),
        ({"data": [*UNPRINTABLE, row()]}, Seen(("m",))),
        ({"data": [row(id=f"m{n}") for n in range(1000)]}, Seen(tuple(f"m{n}" for n in range(256)))),
        ({"data": [row(owned_by="vllm"), row(id="n", owned_by="x")]}, Seen(("m", "n"), owner="vllm")),
        ({"data": [row(owned_by=["vllm"])]}, Seen(("m",))),
        ({"data": [row(owned_by="a\nb")]}, Seen(("m",))),
        ({"data": {"id": "m"}}, None),
        ({"data": None}, None),
        ({}, None),
        ([], None),
        ("m", None),
        (None, None),
        (7, None),
    ],
)
def test_a_list_of_models_is_read_with_distrust(answer, wanted):
    assert read_models(orjson.dumps(answer)) == wanted


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(["data", "id", "max_model_len", "owned_by"]), st.text()), inner),
    ),
    max_leaves=20,
)


@given(st.one_of(st.binary(), JSON.map(orjson.dumps), JSON.map(lambda v: orjson.dumps({"data": [v]}))))
def test_whatever_a_list_says_what_is_read_can_be_printed_and_is_bounded(body):
    seen = read_models(body)
    if seen is not None:
        assert len(seen.models) <= 256
        for name in (*seen.models, seen.owner or "x"):
            assert name.isprintable()
            assert 0 < len(name) <= 256
        assert seen.max_model_len is None or seen.max_model_len > 0


def test_json_nested_without_end_is_no_list():
    assert read_models(b"[" * 100_000) is None
    assert read_models(b'{"data":' * 100_000) is None


@pytest.mark.parametrize(
    ("said", "answered", "why"),
    [
        ((200, b""), Answered.WELL, ""),
        ((200, b"garbage"), Answered.WELL, ""),
        ((503, b""), Answered.UNWELL, "its health check says 503"),
        ((404, b""), Answered.UNWELL, "its health check says 404"),
        ((204, b""), Answered.UNWELL, "its health check says 204"),
        (REFUSED, Answered.REFUSED, "it takes no connection"),
        (SLOW, Answered.SILENT, "it takes no connection"),
        (EngineTimeout(), Answered.SILENT, "its health check does not answer"),
        (EngineReset(), Answered.SILENT, "its health check breaks off"),
        (EngineProtocolError(), Answered.SILENT, "its health check breaks off"),
        (EngineBusy(), Answered.SILENT, "its health check breaks off"),
    ],
)
def test_health_on_a_connection_of_its_own(said, answered, why):
    eyes = Eyes(said)
    assert asyncio.run(look_at_health(eyes, VLLM)) == (answered, why)
    assert eyes.asked == [("/health", 3.5, True)]


def test_a_slow_kind_has_its_patience_and_a_path_of_its_own():
    eyes = Eyes((200, b""))
    asyncio.run(look_at_health(eyes, replace(SGLANG, health_path="/healthy")))
    assert eyes.asked == [("/healthy", 5.0, True)]


@pytest.mark.parametrize("said", [*FAILURES, (404, b"{}"), (200, b"{"), (200, b'{"data": []}'), (500, b'{"data": []}')])
def test_what_lists_no_models_lists_none(said):
    assert asyncio.run(look_at_models(Eyes(said), VLLM)) is None


def test_a_list_counts_only_with_a_200():
    listed = orjson.dumps({"data": [row()]})
    assert asyncio.run(look_at_models(Eyes((200, listed)), VLLM)) == Seen(("m",))
    assert asyncio.run(look_at_models(Eyes((500, listed)), VLLM)) is None


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ((200, b'{"version": "0.32.0"}'), "0.32.0"),
        ((404, b'{"version": "0.32.0"}'), None),
        ((200, b'{"version": 7}'), None),
        ((200, b'{"version": ""}'), None),
        ((200, b'{"version": "a\\nb"}'), None),
        ((200, orjson.dumps({"version": "9" * 257})), None),
        ((200, b'["0.32.0"]'), None),
        ((200, b"0.32.0"), None),
        ((200, b""), None),
        *((failure, None) for failure in FAILURES),
    ],
)
def test_a_version_is_believed_if_it_can_be_printed(said, version):
    assert asyncio.run(look_at_version(Eyes(said), VLLM)) == version


def test_one_without_a_version_is_not_asked():
    eyes = Eyes((200, b'{"version": "1"}'))
    assert asyncio.run(look_at_version(eyes, SGLANG)) is None
    assert eyes.asked == []


def test_signals_are_read_by_the_engines_table():
    reading: Any = asyncio.run(look_at_signals(Eyes((200, b"vllm:num_requests_running 3\n")), VLLM))
    assert reading.values[Signal.RUNNING] == 3.0
    assert Signal.WAITING in reading.missing


@pytest.mark.parametrize("status", [404, 500, 503])
def test_an_engine_that_gives_no_page_has_all_its_signals_missing(status):
    page = b"vllm:num_requests_running 3\n"
    assert asyncio.run(look_at_signals(Eyes((status, page)), VLLM)) == Reading({}, VLLM.expected)
    assert asyncio.run(look_at_signals(Eyes((status, page)), GENERIC)) == Reading({}, frozenset())


@pytest.mark.parametrize("failure", FAILURES)
def test_only_a_refused_connection_is_more_than_no_signals_now(failure):
    if failure is REFUSED:
        with pytest.raises(EngineUnreachable):
            asyncio.run(look_at_signals(Eyes(failure), VLLM))
    else:
        assert asyncio.run(look_at_signals(Eyes(failure), VLLM)) is None
