"""Writes a tiny model for a real engine: random weights, a byte-level tokenizer, a chat template. No library is needed.

The text it makes is nonsense; what it is for is the protocol. Tokens that would disturb a test do not come unless a
grammar leaves no other: the end of text (an answer has exactly the length that was asked for), what would begin one
more item or tool call or go astray in white space (constrained answers are short), and bytes that are no ASCII (each
token is text).

Qwen2's output layer has no bias to say that with. So the first dimension of the residual stream is a constant: each
embedding holds it, no layer writes to it, and the output layer's weights for it are the bias.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = SPECIAL.index("<|im_end|>")
CHAT_TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
_SPACE = "\u0120"
_SCALE = 0.08
"""Standard deviation of the weights."""
_CONSTANT = 0.1
"""No larger than the embeddings' other numbers, or all tokens look alike to the layers."""
_UNWANTED, _LAST_CHOICE = -400.0, -200.0
"""Weights of the output layer for the constant: logits of about -25 and -12, where others have -3 to 3."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen2 model. vLLM's CPU kernels know heads of 32, 64, 80, 96, 128 ... numbers: `hidden / heads`.

    Ten layers make a step of about 8 ms. With two (3 ms) the process that serves HTTP falls behind the one that
    computes, and on two busy cores it answers nothing and notices no client that leaves until the generation is over.
    """

    vocabulary: int = 2048
    hidden: int = 128
    inner: int = 256
    layers: int = 10
    heads: int = 4
    kv_heads: int = 2
    positions: int = 4096

    @property
    def kv(self) -> int:
        return self.hidden // self.heads * self.kv_heads


def byte_symbols() -> list[str]:
    """The character that byte-level BPE writes for each byte (GPT-2's table): itself if it is visible, else a stand-in
    from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = (chr(0x100 + number) for number in range(256))
    return [chr(byte) if byte in visible else next(stand_ins) for byte in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """`count` merges: syllables, then pairs of syllables, each with and without a space before it."""
    syllables = ["".join(pair) for pair in product("bcdfghjklmnprstvwz", "aeiou")]
    short = ((syllable[0], syllable[1]) for syllable in syllables)
    spaced = ((_SPACE, syllable) for syllable in syllables)
    long = ((_SPACE + first, second) for first, second in product(syllables, syllables))
    return list(islice(chain(short, spaced, long), count))


def tokenizer(shape: Shape) -> dict[str, Any]:
    """A `tokenizer.json`. Ids: the special tokens, the 256 bytes, then one for each merge."""
    symbols = byte_symbols()
    pairs = merges(shape.vocabulary - len(SPECIAL) - len(symbols))
    words = [*SPECIAL, *symbols, *(left + right for left, right in pairs)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bpe = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {word: number for number, word in enumerate(words)},
        "merges": [list(pair) for pair in pairs],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": word, **flags} for number, word in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": bpe,
    }


def tokenizer_config(shape: Shape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.positions,
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[0],
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.positions,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": SPECIAL.index("<|endoftext|>"),
    }


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a Qwen2 model."""
    h, inner, kv = shape.hidden, shape.inner, shape.kv
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "self_attn.q_proj.weight": (h, h),
        "self_attn.q_proj.bias": (h,),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.weight": (kv, h),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (h, h),
        "mlp.gate_proj.weight": (inner, h),
        "mlp.up_proj.weight": (inner, h),
        "mlp.down_proj.weight": (h, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, h), "model.norm.weight": (h,)}
    shapes["lm_head.weight"] = (shape.vocabulary, h)
    for number in range(shape.layers):
        shapes |= {f"model.layers.{number}.{name}": size for name, size in layer.items()}
    return shapes


def biases(shape: Shape) -> list[float]:
    """For each token the weight of the constant: none for text, the end of text before what is never wanted."""
    bytes_ = (byte for byte in range(256) if not 0x20 < byte < 0x7F or byte in b",<")
    unwanted = {*range(len(SPECIAL)), *(len(SPECIAL) + byte for byte in bytes_)}
    values = [_UNWANTED if number in unwanted else 0.0 for number in range(shape.vocabulary)]
    values[END] = _LAST_CHOICE
    return values


def _bfloat16(numbers: Sequence[float]) -> bytes:
    """The upper two bytes of each 32-bit number."""
    wide = struct.pack(f"<{len(numbers)}f", *numbers)
    narrow = bytearray(len(numbers) * 2)
    narrow[0::2], narrow[1::2] = wide[2::4], wide[3::4]
    return bytes(narrow)


def _values(name: str, size: tuple[int, ...], shape: Shape, dice: random.Random) -> list[float]:
    count = math.prod(size)
    if "norm" in name:
        return [1.0] * count
    values = [dice.gauss(0.0, _SCALE) for _ in range(count)]
    if "embed_tokens" in name:
        values[:: shape.hidden] = [_CONSTANT] * shape.vocabulary
    elif name == "lm_head.weight":
        for number, bias in enumerate(biases(shape)):
            values[number * shape.hidden] = bias
    elif name.endswith(("o_proj.weight", "down_proj.weight")):
        values[: size[1]] = [0.0] * size[1]
    return values


def weights(shape: Shape, seed: int = 0) -> bytes:
    """A safetensors file: the length of its header, the header in JSON, the tensors one after another."""
    dice = random.Random(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    place = 0
    for name, size in tensor_shapes(shape).items():
        tensor = _bfloat16(_values(name, size, shape, dice))
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [place, place + len(tensor)]}
        data.append(tensor)
        place += len(tensor)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data)


def write_model(folder: Path, shape: Shape | None = None) -> None:
    """Write the model into `folder`, which is made. The same bytes each time."""
    size = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    files: Mapping[str, dict[str, Any]] = {
        "config.json": config(size),
        "tokenizer.json": tokenizer(size),
        "tokenizer_config.json": tokenizer_config(size),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(weights(size))
