"""How many tokens a request is taken to use before an engine has said how many it did. Pure."""

from __future__ import annotations

_BYTES_PER_TOKEN = 4


def prompt_tokens(prompt_bytes: int, bytes_per_token: float) -> int:
    """Tokens to reserve for a prompt, by its length."""
    return -int(-prompt_bytes // bytes_per_token)


def answer_tokens(choices: int, max_tokens: int | None, default: int) -> int:
    """Tokens to reserve for all answers: the most that each may hold.

    ``max_tokens`` is what the request allows for one answer, ``default`` what is assumed where it does not say.
    """
    return choices * (default if max_tokens is None else max_tokens)


def cut_tokens(prompt: int, events: int, answer_bytes: int, first_bytes: int) -> int:
    """Tokens to charge for a stream that was cut before its usage came.

    ``prompt`` are the prompt's tokens, ``events`` the events that carried text, ``answer_bytes`` all their bytes,
    ``first_bytes`` the bytes of the first one: what an event weighs with hardly any text in it.

    An event holds a token at least, so ``events`` is a lower bound. It is not enough: an engine merges the tokens of
    several steps into one event when its reader is slow, and a caller could read slowly to be charged less. What the
    bytes hold beyond the events' own frames is text, at about four bytes for a token. The larger of the two counts.
    """
    by_text = (answer_bytes - events * first_bytes) // _BYTES_PER_TOKEN
    return prompt + max(events, by_text)
