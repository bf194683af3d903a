"""A secret does not get out by accident."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import traceback
from dataclasses import dataclass

import pytest

from gateway.secret import Secret

TEXT = "canary-4711-do-not-print"


@dataclass(frozen=True)
class Holder:
    token: Secret


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        lambda s: f"{s}",
        lambda s: f"{s!r:>40}",
        lambda s: f"{s:>40}",
        lambda s: "%s %r" % (s, s),  # noqa: UP031
        lambda s: str([s, {"k": s}]),
        lambda s: repr(Holder(s)),
    ],
)
def test_it_never_prints(show) -> None:  # type: ignore[no-untyped-def]
    assert TEXT not in show(Secret(TEXT))


def test_it_never_reaches_a_log_or_a_traceback_with_locals() -> None:
    sink = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(sink))
    secret = Secret(TEXT)
    try:
        raise ValueError(secret)
    except ValueError as error:
        logger.exception("failed with %s and %r", secret, Holder(secret))
        shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "***" in sink.getvalue()
    assert TEXT not in sink.getvalue() + shown


def test_it_cannot_be_serialised() -> None:
    for serialise in (pickle.dumps, json.dumps, copy.deepcopy):
        with pytest.raises(TypeError) as refused:
            serialise(Secret(TEXT))
        assert TEXT not in str(refused.value)
    with pytest.raises(TypeError):
        hash(Secret(TEXT))


def test_it_reveals_and_compares() -> None:
    assert Secret(TEXT).reveal() == TEXT
    assert Secret(TEXT) == Secret(TEXT)
    assert Secret(TEXT) != Secret(TEXT + "x")
    assert Secret(TEXT) != TEXT
    assert len(Secret(TEXT)) == len(TEXT)
