"""The tiny model: files that fit each other, the same bytes each time, a bias that works."""

import json
import struct

import pytest

from loadtests.vllm.model import END, SPECIAL, Shape, biases, byte_symbols, merges, tokenizer, weights, write_model

SMALL = Shape(vocabulary=300, hidden=8, inner=4, layers=1, heads=2, kv_heads=1)


def tensors(data: bytes) -> dict[str, list[float]]:
    """Each tensor of a safetensors file, its bfloat16 numbers widened."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    found = {}
    for name, entry in header.items():
        start, stop = (8 + length + place for place in entry["data_offsets"])
        words = struct.unpack(f"<{(stop - start) // 2}H", data[start:stop])
        found[name] = list(struct.unpack(f"<{len(words)}f", b"".join(struct.pack("<I", word << 16) for word in words)))
    return found


def test_byte_symbols_are_one_printable_character_each() -> None:
    symbols = byte_symbols()
    assert len(set(symbols)) == 256
    assert (symbols[ord("a")], symbols[ord(" ")], symbols[ord("\n")]) == ("a", "\u0120", "\u010a")


def test_each_merge_joins_two_known_tokens_into_a_new_one() -> None:
    made = tokenizer(Shape())["model"]
    vocabulary = made["vocab"]
    assert len(vocabulary) == Shape().vocabulary
    assert sorted(vocabulary.values()) == list(range(Shape().vocabulary))
    assert all({left, right, left + right} <= vocabulary.keys() for left, right in made["merges"])
    assert len(merges(5)) == 5


def test_weights_have_the_shapes_that_the_configuration_says() -> None:
    found = tensors(weights(SMALL))
    assert len(found["lm_head.weight"]) == SMALL.vocabulary * SMALL.hidden
    assert len(found["model.layers.0.self_attn.k_proj.weight"]) == SMALL.kv * SMALL.hidden
    assert set(found["model.norm.weight"]) == {1.0}


def test_first_dimension_of_the_residual_stream_is_a_constant() -> None:
    found = tensors(weights(SMALL))
    assert len(set(found["model.embed_tokens.weight"][:: SMALL.hidden])) == 1
    assert set(found["model.layers.0.self_attn.o_proj.weight"][: SMALL.hidden]) == {0.0}
    assert set(found["model.layers.0.mlp.down_proj.weight"][: SMALL.inner]) == {0.0}
    assert found["lm_head.weight"][:: SMALL.hidden] == biases(SMALL)


@pytest.mark.parametrize(
    ("text", "wanted"), [(b"a", True), (b"{", True), (b" ", False), (b"\n", False), (b"\xc3", False)]
)
def test_only_visible_ascii_comes_by_itself(text: bytes, wanted: bool) -> None:
    assert (biases(SMALL)[len(SPECIAL) + text[0]] == 0) is wanted


def test_the_end_comes_before_anything_else_unwanted() -> None:
    values = biases(SMALL)
    assert all(value == 0 or value < values[END] for number, value in enumerate(values) if number != END)


def test_files_are_the_same_each_time(tmp_path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path / name, SMALL)
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second
    assert first.keys() == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
