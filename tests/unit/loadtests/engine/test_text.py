"""Tokens and text: reversible, repeatable, cut where a stop string says."""

from hypothesis import given
from hypothesis import strategies as st

from loadtests.engine.plan import cut_at_stop, example_of
from loadtests.engine.text import (
    VOCABULARY,
    Sampling,
    generated_pieces,
    logprobs_of,
    natural_length,
    piece_of,
    pieces,
    token_id,
)


@given(st.text())
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_ids_lead_back_to_the_text(text: str) -> None:
    assert "".join(piece_of(token_id(piece)) for piece in pieces(text)) == text


def test_prose_has_about_five_characters_a_token() -> None:
    text = " the gateway checks who is calling and picks the replica that will answer soonest" * 20
    assert 4 < len(text) / len(pieces(text)) < 7


def test_answers_repeat_and_depend_on_prompt_seed_and_choice() -> None:
    def words(prompt: str, seed: int | None = None, choice: int = 0, temperature: float = 1.0) -> tuple[str, ...]:
        return generated_pieces(prompt, Sampling(temperature, seed, choice), 20)

    assert words("a") == words("a")
    assert len({words("a"), words("b"), words("a", 1), words("a", 2), words("a", 1, 1)}) == 5
    assert words("a", 1, temperature=0.0) == words("a", 2, temperature=0.0)


def test_longer_answers_begin_like_shorter_ones() -> None:
    assert generated_pieces("prompt", Sampling(), 30)[:10] == generated_pieces("prompt", Sampling(), 10)


def test_some_text_is_not_ascii() -> None:
    assert not "".join(VOCABULARY).isascii()
    assert not "".join(generated_pieces("prompt", Sampling(), 300)).isascii()


def test_natural_length_stays_near_the_mean() -> None:
    lengths = [natural_length(f"prompt {number}", Sampling(), 200) for number in range(200)]
    assert min(lengths) >= 100
    assert max(lengths) < 300
    assert len(set(lengths)) > 50


def test_logprobs_name_each_token_first() -> None:
    words = generated_pieces("prompt", Sampling(), 5)
    entries = logprobs_of("prompt", Sampling(), words, 3)
    assert [entry.token for entry in entries] == list(words)
    assert all(len(entry.others) == 3 and entry.others[0] == (entry.token, entry.logprob) for entry in entries)
    assert all(entry.logprob <= 0 for entry in entries)


def test_stop_string_across_tokens_is_cut_and_its_token_counted() -> None:
    shown, reason, stop = cut_at_stop(("ab", "cd", "ef"), "length", {"stop": ["zz", "bc"]})
    assert (shown, reason, stop) == (("a", ""), "stop", "bc")


def test_no_stop_string_changes_nothing() -> None:
    assert cut_at_stop(("ab",), "length", {"stop": "x"}) == (("ab",), "length", None)


def test_example_follows_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"enum": ["x", "y"]},
            "b": {"type": "integer"},
            "c": {"type": "array"},
            "d": {"type": "object", "properties": {"e": {"const": 5}}},
        },
        "required": ["a", "b", "c", "d"],
    }
    assert example_of(schema) == {"a": "x", "b": 1, "c": [], "d": {"e": 5}}
