"""Which tokens would complete a forbidden sequence, against a search through every word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.bad_words import BadWords

words = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6)
texts = st.lists(st.integers(0, 3), max_size=10)


@given(words=words, text=texts)
def test_what_would_complete_a_word_is_forbidden_and_nothing_else(words: list[list[int]], text: list[int]) -> None:
    expected = {word[-1] for word in words if (text + word[-1:])[-len(word) :] == word}
    assert BadWords(words).after(text) == expected


@given(words=words.filter(bool), text=texts)
def test_the_longest_word_says_how_much_text_is_enough(words: list[list[int]], text: list[int]) -> None:
    bad_words = BadWords(words)
    enough = text[len(text) - min(len(text), bad_words.longest - 1) :]
    assert bad_words.after(enough) == bad_words.after(text)
