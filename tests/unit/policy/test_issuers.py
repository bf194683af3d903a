"""What a policy may allow of an issuer, and what it allows when nothing more is said."""

from __future__ import annotations

from gateway.policy.issuers import ALGORITHMS, ClaimRule, IssuerPolicy


def test_no_algorithm_can_be_forged_by_who_verifies() -> None:
    assert not [name for name in ALGORITHMS if name.startswith("HS") or name.lower() == "none"]


def test_a_rule_without_a_word_grants_nothing() -> None:
    assert (ClaimRule().claim, dict(ClaimRule().values), ClaimRule().fixed) == ((), {}, ())


def test_an_id_token_is_a_type_apart_only_where_a_policy_says_so() -> None:
    policy = IssuerPolicy("main", "https://id.test", ("gateway",), ("RS256",), ClaimRule(), ClaimRule())
    assert policy.types == ("at+jwt", "jwt")
    assert (policy.leeway, policy.max_lifetime) == (30.0, 86_400.0)
    assert (policy.jwks_url, policy.keys_file) == (None, None)
