"""A conversation stays on its side, and nobody can choose a side."""

from __future__ import annotations

import pytest

from gateway.model import BodyKind, Endpoint, InferenceRequest, Principal, Route
from gateway.steps.conversation import session_of, split_point

KEY = b"k" * 32
ME = Principal("key-1", "acme")


def _request(**payload):
    return InferenceRequest(Route("POST", "/x", Endpoint.CHAT, BodyKind.JSON), "general", payload)


def _point(key=KEY, alias="general", head=None, principal=ME, **payload):
    return split_point(key, alias, head or {}, principal, _request(**payload))


def _said(*texts):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def test_all_turns_of_a_conversation_stand_at_one_point():
    first = _point(messages=_said("hello there"))
    assert _point(messages=_said("hello there", "hi", "and now?")) == first
    assert 0 <= first < 1


def test_another_opening_principal_tenant_alias_or_key_is_another_point():
    points = {
        _point(messages=_said("hello")),
        _point(messages=_said("hello!")),
        _point(messages=_said("hello"), principal=Principal("key-2", "acme")),
        _point(messages=_said("hello"), principal=Principal("key-1", "other")),
        _point(messages=_said("hello"), alias="other"),
        _point(messages=_said("hello"), key=b"x" * 32),
    }
    assert len(points) == 6


def test_a_session_of_the_clients_outweighs_what_is_said():
    head = {b"x-session-id": b"conversation-7"}
    assert _point(head=head, messages=_said("a")) == _point(head=head, messages=_said("b"))
    assert _point(head=head, messages=_said("a")) != _point(messages=_said("a"))
    assert _point(head=head) != _point(head=head, principal=Principal("key-2", "acme"))


@pytest.mark.parametrize("odd", [b"", b"a b", b"x" * 129, b"\xff", b"a\n"])
def test_a_session_that_is_not_plain_is_none(odd):
    assert _point(head={b"x-session-id": odd}, messages=_said("a")) == _point(messages=_said("a"))


@pytest.mark.parametrize(
    ("head", "session"),
    [
        ({}, None),
        ({b"x-session-id": b"conversation-7"}, b"conversation-7"),
        ({b"x-session-id": b"a" * 129}, None),
        ({b"x-session-id": b"a b"}, None),
        ({b"x-session-id": b"a\n"}, None),
        ({b"x-session-id": b""}, None),
    ],
)
def test_a_session_is_what_is_plain_and_short(head, session):
    assert session_of(head) == session


def test_parts_do_not_run_into_each_other():
    one = _point(principal=Principal("bc", "a"), messages=_said("x"))
    assert one != _point(principal=Principal("c", "ab"), messages=_said("x"))


@pytest.mark.parametrize(
    "payload",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
        {"prompt": "hello"},
        {"prompt": ["hello", "more"]},
        {"input": "hello"},
        {"input": [{"role": "user", "content": "hello"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
        {"query": "hello", "documents": ["x"]},
        {"text_1": ["hello"], "text_2": ["y"]},
    ],
)
def test_the_opening_is_found_in_every_form_of_a_body(payload):
    assert _point(**payload) == _point(prompt="hello")


@pytest.mark.parametrize(
    "payload", [{}, {"messages": [{"role": "assistant", "content": None}]}, {"messages": [{"content": [{}]}]}]
)
def test_what_says_nothing_is_one_conversation_of_its_caller(payload):
    assert _point(**payload) == _point()


def test_text_that_is_no_unicode_is_taken_too():
    assert 0 <= _point(messages=_said("\ud800")) < 1


def test_points_are_spread_evenly():
    points = [_point(messages=_said(f"conversation {n}")) for n in range(4_000)]
    for low in range(10):
        assert 300 < sum(low <= point * 10 < low + 1 for point in points) < 500
