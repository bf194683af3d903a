"""The error table and the exceptions that carry its rows."""

from __future__ import annotations

import re

import pytest

from gateway import errors
from gateway.errors import CODES, EngineFailure, GatewayError, Refusal
from gateway.telemetry.fields import FIELDS

STATUSES = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "alias_forbidden": 403,
    "model_not_found": 404,
    "unsupported_endpoint": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "body_too_large": 413,
    "rate_limited": 429,
    "tokens_limited": 429,
    "concurrency_limited": 429,
    "queue_full": 429,
    "headers_too_large": 431,
    "client_gone": 499,
    "internal_error": 500,
    "engine_error": 502,
    "no_ready_replica": 503,
    "queue_timeout": 503,
    "store_unavailable": 503,
    "overloaded": 503,
    "draining": 503,
    "engine_timeout": 504,
}
OPENAI_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "api_error",
}
ANTHROPIC_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
}
_LEAF = re.compile(r"^    (?P<indent>[│├└─ ]*)(?P<name>[A-Z][A-Za-z]+)  +\S")


def _own_subclasses(parent: type) -> set[type]:
    return {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__ and parent in value.__bases__
    }


def _all_failures() -> set[type[EngineFailure]]:
    direct = _own_subclasses(EngineFailure)
    return direct.union(*(_own_subclasses(kind) for kind in direct))


def _tree_told() -> dict[str, str]:
    """Child and parent, as the module's docstring draws them."""
    told: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = _LEAF.match(line)
        if match is None:
            continue
        depth = len(match["indent"])
        above = [(level, name) for level, name in above if level < depth]
        told[match["name"]] = above[-1][1] if above else "Exception"
        above.append((depth, match["name"]))
    return told


def _tree_built() -> dict[str, str]:
    return {
        value.__name__: value.__bases__[0].__name__
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }


def test_the_docstring_draws_the_tree_as_it_is():
    assert _tree_told() == _tree_built()


def test_the_list_of_codes_is_closed_and_each_has_its_status():
    assert {code: spec.status for code, spec in CODES.items()} == STATUSES
    assert all(spec.code == code for code, spec in CODES.items())
    with pytest.raises(TypeError):
        CODES["new"] = CODES["draining"]  # type: ignore[index]


def test_the_types_are_those_that_the_clients_know():
    assert {spec.type for spec in CODES.values()} <= OPENAI_TYPES
    assert {spec.anthropic_type for spec in CODES.values()} <= ANTHROPIC_TYPES


def test_of_the_4xx_only_408_and_429_say_that_a_retry_can_help():
    helped = {spec.status for spec in CODES.values() if spec.retry and spec.status < 500}
    assert helped == {408, 429}
    assert all(spec.retry for spec in CODES.values() if spec.status in {408, 429} or spec.status >= 500)


def test_every_way_of_an_engine_to_fail_has_a_reason_of_its_own():
    reasons = [vars(failure).get("reason") for failure in _all_failures()]
    assert None not in reasons
    assert EngineFailure.reason not in reasons
    assert len(set(reasons)) == len(reasons) > 0


def test_the_record_field_lists_exactly_these_reasons():
    meaning = next(field.meaning for field in FIELDS if field.name == "reason")
    assert set(meaning.partition(": ")[2].split(", ")) == {failure.reason for failure in _all_failures()}


@pytest.mark.parametrize("failure", sorted(_all_failures(), key=lambda kind: kind.__name__))
def test_an_engine_failure_can_be_raised_bare_and_has_a_server_side_code(failure):
    assert failure().spec.status in {429, 502, 503, 504}


def test_whether_another_replica_may_do_better_is_said_by_kind():
    assert {kind.__name__: kind().elsewhere for kind in _all_failures()} == {
        "EngineUnreachable": True,
        "EngineBusy": True,
        "EngineReset": True,
        "EngineProtocolError": False,
        "EngineTimeout": False,
        "EngineHung": True,
        "EngineRefused": False,
        "EngineClosing": True,
        "EngineDead": False,
    }


def test_a_message_overrides_the_row_and_str_is_only_the_code():
    plain, told = Refusal("invalid_request"), Refusal("invalid_request", "Say more.", param="model", close=True)
    assert plain.message == CODES["invalid_request"].message
    assert (told.message, told.param, told.close) == ("Say more.", "model", True)
    assert str(told) == "invalid_request"


def test_an_unknown_code_is_a_mistake_of_the_program():
    with pytest.raises(KeyError):
        GatewayError("no_such_code")


def test_a_client_that_left_is_no_gateway_error():
    assert not issubclass(errors.ClientGone, GatewayError)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model", True),
        ("stream_options", True),
        ("a.b-c_9", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("9a", False),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("ä", False),
        ("a'", False),
        ("<b>", False),
        ("a\x00", False),
    ],
)
def test_only_plain_names_may_be_quoted(name, plain):
    assert bool(errors.PLAIN_NAME.match(name)) is plain
