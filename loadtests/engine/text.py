"""Deterministic tokens and text: the same prompt and sampling always give the same answer.

The words are made of syllables like those of the captured engine (a tiny model with random weights). Where an answer
was captured from vLLM 0.32.0, exactly that answer comes back, so that bodies can be compared byte for byte.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

MAX_CHARS_PER_TOKEN = 13
"""Longest token of the captured engine's vocabulary; vLLM refuses longer prompts before it counts tokens."""

_PIECES = re.compile(
    r"<\|im_start\|>|<\|im_end\|>| \w{1,7}|(?<=\w{8})\w{1,7}|he|lo|hi|se|si|ta|or|ld|iz|ar|\w|\s|[^\w\s]{1,3}"
)
"""Tuned so that the captured prompts have the captured number of tokens; prose has about five characters a token."""

_IDS = {
    "<|im_start|>": 1, "<|im_end|>": 2, "\n": 201, "u": 87, "se": 342, "r": 84, "he": 259, "l": 78, "lo": 264,
    " world": 292, "w": 89, "or": 266, "ld": 280, "a": 67, "s": 85, "si": 376, "ta": 350, "n": 80, "t": 86,
    " v": 300, " j": 301, " m": 302,
}  # fmt: skip
_BY_ID = {number: piece for piece, number in _IDS.items()}
_FIRST_PACKED_ID = 1 << 16

_SYLLABLES = tuple(c + v for c in "bdfghjklmnprstvwz" for v in "aeiou")
_BEYOND_ASCII = (" café", "né", " über", " 日本", "語", " naïve", " Ελλάς", " 🙂")
"""One token in 32 is not ASCII, so that a stream cut inside a character shows."""


def _vocabulary_word(number: int) -> str:
    if number % 32 == 31:
        return _BEYOND_ASCII[number // 32]
    first, second = _SYLLABLES[number % 85], _SYLLABLES[(number * 37 + 11) % 85]
    word = first if number % 5 == 0 else first + second
    return " " + word if number % 3 == 0 else word


VOCABULARY = tuple(_vocabulary_word(number) for number in range(256))


def pieces(text: str) -> list[str]:
    """The token texts of `text`; their concatenation is `text`."""
    return _PIECES.findall(text)


def token_id(piece: str) -> int:
    """A number from which `piece_of` restores the piece: a captured id, or the piece's own bytes as one integer."""
    known = _IDS.get(piece)
    return known if known is not None else _FIRST_PACKED_ID + int.from_bytes(b"\x01" + piece.encode(), "big")


def piece_of(number: int) -> str:
    """The text of a token id; any id has one."""
    known = _BY_ID.get(number)
    if known is not None:
        return known
    if number < _FIRST_PACKED_ID:
        return VOCABULARY[number % 256]
    packed = number - _FIRST_PACKED_ID
    return packed.to_bytes((packed.bit_length() + 7) // 8, "big")[1:].decode("utf-8", "replace")


def in_vocabulary(number: int) -> bool:
    """Whether the model knows a token id: all below 65536, and those that `token_id` gives."""
    return 0 <= number < _FIRST_PACKED_ID or (number >= 0 and token_id(piece_of(number)) == number)


def prefix_key(number: int) -> str | int:
    """What stands for a token in the prefix cache: equal for a text and its ids, different for different ids."""
    piece = piece_of(number)
    return piece if token_id(piece) == number else number


def shown_token(piece: str) -> str:
    """A token as /tokenize shows it with `return_token_strs`: byte-level BPE's stand-ins for space and line end."""
    return piece.replace(" ", "Ġ").replace("\n", "Ċ")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token with its alternatives, as the logprobs of an answer list them."""

    token: str
    logprob: float
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """What of a request decides the text."""

    temperature: float = 1.0
    seed: int | None = None
    choice: int = 0


def render_chat(messages: list[tuple[str, str]]) -> str:
    """The prompt text of a conversation of (role, content), in the ChatML template of the captured engine."""
    turns = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return turns + "<|im_start|>assistant\n"


def _user(content: str, role: str = "user") -> str:
    return render_chat([(role, content)])


_GREEDY: dict[str, tuple[str, ...]] = {
    _user("hello world"): ("gari", " le", "gari", " dawo", "matudo", "gari", "gari", "gari"),
    _user("x"): ("gari", " dawo"),
    _user("hi"): ("gari", " dawo"),
    _user("yo"): ("gari", " dawo"),
    _user("x", "wizard"): ("gari", " wulanu"),
    _user("the quick brown fox " * 60): ("femubo", "pagi"),
    "hello world": (" bufi", " jida", "kemaru", "mako", "kemaru", " borore"),
    "hello": ("kugige", "wele", " tucatave"),
    "world": (" hoja", "tola", " vone"),
    " v j m": ("\x1e", "mulo", "heci"),
}
_SEEDED: dict[tuple[str, int, int], tuple[TokenLogprob, ...]] = {
    (_user("hello world"), 7, 0): (
        TokenLogprob(" luvi", -7.458041191101074, ((" luvi", -7.458041191101074), ("gari", -6.621127128601074))),
        TokenLogprob("jo", -7.315457344055176, (("jo", -7.315457344055176), ("gari", -6.922879219055176))),
        TokenLogprob("gone", -7.549525260925293, (("gone", -7.549525260925293), ("]}", -6.851283073425293))),
    ),
    (_user("hello world"), 7, 1): (
        TokenLogprob("dibepe", -7.569857597351074, (("dibepe", -7.569857597351074), ("gari", -6.621127128601074))),
        TokenLogprob(
            " zunijohi", -7.613797187805176, ((" zunijohi", -7.613797187805176), (" guwo", -6.831814765930176))
        ),
        TokenLogprob(" jipagi", -7.445300579071045, ((" jipagi", -7.445300579071045), ("gari", -6.783191204071045))),
    ),
}


def _captured(prompt: str, sampling: Sampling) -> tuple[str, ...]:
    if sampling.temperature == 0:
        return _GREEDY.get(prompt, ())
    if sampling.seed is None:
        return ()
    return tuple(entry.token for entry in _SEEDED.get((prompt, sampling.seed, sampling.choice), ()))


def _state(prompt: str, sampling: Sampling, purpose: str) -> int:
    chosen = f"{purpose}/{sampling.temperature}/{sampling.seed}/{sampling.choice}" if sampling.temperature else purpose
    return (zlib.crc32(prompt.encode("utf-8", "replace")) << 32) | zlib.crc32(chosen.encode())


def generated_pieces(prompt: str, sampling: Sampling, count: int) -> tuple[str, ...]:
    """The first `count` tokens of the answer to a prompt."""
    head = _captured(prompt, sampling)[:count]
    state = _state(prompt, sampling, "text")
    words = list(head)
    for _ in range(count - len(head)):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        words.append(VOCABULARY[state >> 56])
    return tuple(words)


def natural_length(prompt: str, sampling: Sampling, mean: int) -> int:
    """How many tokens an answer has when nothing cuts it: between half and one and a half of `mean`, at least 16."""
    spread = max(mean, 2)
    mixed = (_state(prompt, sampling, "length") * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    return max(16, spread // 2 + (mixed >> 32) % spread)


def logprobs_of(prompt: str, sampling: Sampling, words: tuple[str, ...], top: int) -> tuple[TokenLogprob, ...]:
    """Made-up, repeatable log probabilities of the sampled tokens with `top` alternatives each."""
    captured = _SEEDED.get((prompt, sampling.seed if sampling.seed is not None else -1, sampling.choice), ())
    if captured and words == tuple(entry.token for entry in captured)[: len(words)] and top == 2:
        return captured[: len(words)]
    return tuple(_made_up_logprob(word, index, top) for index, word in enumerate(words))


def _made_up_logprob(word: str, index: int, top: int) -> TokenLogprob:
    value = -((zlib.crc32(word.encode()) + index) % 4096) / 512
    others = ((word, value), *((VOCABULARY[(index + rank) % 256], value - rank / 8) for rank in range(1, top)))
    return TokenLogprob(word, value, others[:top])
