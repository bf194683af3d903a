"""Versions as engines write them, and what the policy makes of them."""

from __future__ import annotations

import pytest

from gateway.policy.document import Document, PolicyFault
from gateway.policy.engines import TAKEN, Floor, Verdict, judge_engine, read_floors

FLOORS = {"vllm": Floor("0.23.1", refuse=True)}
WARNED = {"vllm": Floor("0.23.1", refuse=False)}


@pytest.mark.parametrize("version", ["0.23.1", "0.23.1.post1", "0.23.10", "0.24", "0.100.0", "1.0", "0.33.0rc1+cu130"])
def test_versions_that_are_taken(version: str) -> None:
    assert judge_engine(FLOORS, "vllm", version) == TAKEN


@pytest.mark.parametrize(
    ("version", "shown"),
    [("0.23.0", "0.23.0"), ("0.23", "0.23"), ("0.9.9", "0.9.9"), ("0.11.0.post2", "0.11.0"), ("0.1.dev1+gabc", "0.1")],
)
def test_versions_that_are_too_old(version: str, shown: str) -> None:
    reason = f"vllm {shown} is older than 0.23.1, the oldest that policy takes"
    assert judge_engine(FLOORS, "vllm", version) == Verdict(True, reason)
    assert judge_engine(WARNED, "vllm", version) == Verdict(False, reason)


@pytest.mark.parametrize("version", [None, "", "dev", "1", "main\n", "v", "9999999.1", "\u0660.\u0661"])
def test_a_version_that_is_not_known_is_reported_and_not_refused(version: str | None) -> None:
    verdict = judge_engine(FLOORS, "vllm", version)
    assert verdict == Verdict(False, "vllm does not say its version; 0.23.1 or newer is expected")


def test_nothing_is_said_of_engines_without_a_floor() -> None:
    for engine in (None, "sglang", "somebody"):
        assert judge_engine(FLOORS, engine, "0.0.1") == TAKEN
    assert judge_engine({}, "vllm", "0.0.1") == TAKEN


def test_the_section_and_its_default() -> None:
    assert read_floors(Document("", "x"), {}) == FLOORS
    document = Document("", "x")
    assert read_floors(document, {"vllm": {"minimum": "0.30", "below": "warn"}}) == {"vllm": Floor("0.30", False)}
    document.finish()


@pytest.mark.parametrize("minimum", [0.23, 1, "latest", "0.23.x", "", None, "1.2.3.4.5"])
def test_a_minimum_is_a_version_as_text(minimum: object) -> None:
    document = Document("", "x")
    read_floors(document, {"vllm": {"minimum": minimum}})
    with pytest.raises(PolicyFault, match="expected a version in quotes"):
        document.finish()
