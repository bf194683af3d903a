"""The closed set of admin verbs and its usual sets."""

from __future__ import annotations

import json

from gateway.policy.verbs import ALL_VERBS, VERB_SETS, Verb


def test_the_set_of_verbs_is_what_is_agreed() -> None:
    agreed = "keys:read keys:write aliases:read aliases:write fleet:read fleet:write policy:read audit:read"
    assert frozenset(agreed.split()) == ALL_VERBS == frozenset(Verb)


def test_a_viewer_reads_all_and_writes_nothing() -> None:
    assert {verb for verb in ALL_VERBS if verb.endswith(":read")} == VERB_SETS["viewer"]


def test_an_operator_swaps_aliases_and_tends_the_fleet_and_makes_no_keys() -> None:
    assert VERB_SETS["operator"] - VERB_SETS["viewer"] == {"aliases:write", "fleet:write"}
    assert VERB_SETS["admin"] == ALL_VERBS


def test_a_verb_is_its_text_in_a_set_and_in_json() -> None:
    assert "keys:write" in ALL_VERBS
    assert "keys:write" not in VERB_SETS["operator"]
    assert Verb.KEYS_READ in frozenset({"keys:read"})
    assert json.dumps([Verb.KEYS_READ]) == '["keys:read"]'
