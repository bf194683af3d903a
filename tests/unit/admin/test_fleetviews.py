"""What may be said of engines: ids, URLs, labels and orders, by the configuration's own rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.admin.fleetviews import (
    AddOrder,
    DrainOrder,
    FleetPaging,
    engine_id,
    engine_reference,
    engine_spec,
    id_of,
    order_view,
)
from gateway.model import EngineOrder


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("http://127.0.0.1:8001/", "http://127.0.0.1:8001"),
        ("http://LOCALHOST", "http://localhost:80"),
        ("https://Gpu.Example", "https://gpu.example:443"),
        ("http://[::1]:8001", "http://[::1]:8001"),
    ],
)
def test_an_engine_has_one_url_however_it_is_written(given, url):
    assert engine_spec(given).url == AddOrder(url=given).spec().url == engine_reference(given) == url
    assert engine_id(id_of(url)) == id_of(engine_reference(given)) == url.partition("://")[2]


@pytest.mark.parametrize(
    "text", ["", "a", "a:b", "a/b:1", "u@h:1", "h:1\n", "h:65536", "..:1", "::1:1", "h:1 ", "x" * 999]
)
def test_what_is_no_id_is_refused_without_being_quoted(text):
    with pytest.raises(ValueError, match="expected the id of an engine, HOST:PORT") as refused:
        engine_id(text)
    assert len(str(refused.value)) < 100


@given(st.text(max_size=40))
def test_an_id_or_a_reference_is_in_its_final_form_or_refused(text):
    for read in (engine_id, engine_reference):
        try:
            known = read(text)
        except ValueError:
            continue
        assert read(known) == known
        assert known.isascii()
        assert known.isprintable()
        assert not set(id_of(known)) & set("/@?#% ")


@pytest.mark.parametrize(
    "more",
    [
        {"url": "http://user:hunter2@127.0.0.1:1"},
        {"url": 1},
        {"labels": {"a b": "c"}},
        {"labels": {"": "c"}},
        {"labels": {"a": 1}},
        {"labels": {"a": "b\n"}},
        {"labels": {"a": "b" * 129}},
        {"labels": {f"l{number}": "" for number in range(17)}},
        {"note": "a\x1b[31m"},
        {"note": "x" * 201},
        {"server_name": "evil.example"},
        {"draining": True},
    ],
)
def test_an_order_that_is_not_sound_is_refused(more):
    with pytest.raises(ValidationError):
        AddOrder.model_validate({"url": "http://127.0.0.1:8001", **more})


def test_an_order_takes_as_much_as_it_may():
    labels = {f"l{number}": "b" * 128 for number in range(16)}
    order = AddOrder(url="http://127.0.0.1:8001", labels=labels, note="x" * 200)
    assert order.spec().labels == labels
    assert DrainOrder().note == ""


def test_a_page_is_bounded():
    assert FleetPaging().limit == 100
    for bad in ({"limit": 0}, {"limit": 101}, {"after": "x" * 301}, {"model": "m"}):
        with pytest.raises(ValidationError):
            FleetPaging.model_validate(bad)


def test_an_order_is_shown_with_what_is_against_it():
    order = EngineOrder("https://gpu.example:443", True, False, {"gpu": "a100"}, "ops", 5.0, "new")
    view = order_view(order, "something else")
    assert view.model_dump() == {
        "id": "gpu.example:443",
        "url": "https://gpu.example:443",
        "added": True,
        "draining": False,
        "labels": {"gpu": "a100"},
        "author": "ops",
        "at": 5.0,
        "note": "new",
        "fault": "expected something else",
    }
    assert order_view(order).fault == ""
