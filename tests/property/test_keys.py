"""Key format: what is made is recognised, what is changed is not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.keys import Digester, digest, new_key, well_formed

ENVS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=16)


@given(env=ENVS, seed=st.integers())
def test_every_made_key_is_well_formed_and_carries_its_id(env: str, seed: int) -> None:
    key = new_key(env, random.Random(seed))
    text = key.text.reveal()
    assert well_formed(text)
    assert text.split("_")[1:3] == [env, key.id]


@given(seed=st.integers(), place=st.integers(0, 65), letter=st.characters())
def test_one_replaced_character_is_always_found(seed: int, place: int, letter: str) -> None:
    text = new_key("live", random.Random(seed)).text.reveal()
    changed = text[:place] + letter + text[place + 1 :]
    assert well_formed(changed) == (changed == text)


@given(st.text(max_size=300))
def test_any_text_is_judged_without_error(text: str) -> None:
    assert not well_formed(text)


@given(pepper=st.binary(max_size=200), text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_both_ways_to_hash_agree(pepper: bytes, text: str) -> None:
    assert Digester(pepper)(text) == digest(pepper, text)
