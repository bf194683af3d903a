"""The text of a key: shape, checksum, hash."""

from __future__ import annotations

import hmac
import random
import zlib

import pytest

from gateway.identity.keys import ALPHABET, MAX_LENGTH, Digester, checksum, digest, new_key, well_formed


def test_a_key_has_the_documented_shape() -> None:
    key = new_key("live", random.Random(7))
    prefix, env, key_id, secret = key.text.reveal().split("_")
    assert (prefix, env, key_id) == ("gw", "live", key.id)
    assert (len(key_id), len(secret)) == (8, 43 + 6)
    assert set(key_id + secret) <= set(ALPHABET)


@pytest.mark.parametrize("env", ["", "Live", "a_b", "x" * 17, "é"])
def test_an_environment_that_would_break_the_shape_is_refused(env: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        new_key(env, random.Random(7))


def test_another_secret_for_a_key_keeps_its_id() -> None:
    first = new_key("live", random.Random(7))
    second = new_key("live", random.Random(8), first.id)
    assert second.id == first.id == second.text.reveal().split("_")[2]
    assert well_formed(second.text.reveal())
    assert second.text != first.text


@pytest.mark.parametrize("key_id", ["", "short", "AAAAAAA_", "AAAAAAA\n", "AAAAAAAé", "A" * 9])
def test_an_id_that_would_break_the_shape_is_refused(key_id: str) -> None:
    with pytest.raises(ValueError, match="id"):
        new_key("live", random.Random(7), key_id)


def test_the_checksum_is_crc32_in_base_62() -> None:
    body = b"gw_live_AAAAAAAA_" + b"x" * 43
    number = 0
    for letter in checksum(body):
        number = number * 62 + ALPHABET.index(letter)
    assert number == zlib.crc32(body)


def test_every_single_changed_character_is_found() -> None:
    text = new_key("live", random.Random(7)).text.reveal()
    for place, letter in enumerate(text):
        other = "B" if letter == "A" else "A"
        assert not well_formed(text[:place] + other + text[place + 1 :])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text.replace("gw_", "GW_"),
        lambda text: text[:30] + "é" + text[31:],
        lambda text: text[:30] + "\0" + text[31:],
        lambda text: text[:30] + "٣" + text[31:],
        lambda text: text * 10,
        lambda text: "gw_live_" + "A" * 10_000_000,
    ],
)
def test_what_is_not_quite_a_key_is_not_well_formed(spoil) -> None:  # type: ignore[no-untyped-def]
    text = new_key("live", random.Random(7)).text.reveal()
    assert well_formed(text)
    assert not well_formed(spoil(text))


def test_the_longest_key_fits_the_cap() -> None:
    text = new_key("x" * 16, random.Random(7)).text.reveal()
    assert well_formed(text)
    assert len(text) < MAX_LENGTH


@pytest.mark.parametrize("pepper", [b"", b"p", b"p" * 63, b"p" * 64, b"p" * 65, b"p" * 200])
def test_the_prepared_hash_is_hmac_sha256(pepper: bytes) -> None:
    assert Digester(pepper)("text") == digest(pepper, "text") == hmac.digest(pepper, b"text", "sha256")


def test_another_pepper_gives_another_hash() -> None:
    assert digest(b"one", "text") != digest(b"two", "text")
