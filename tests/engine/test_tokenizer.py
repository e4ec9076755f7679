"""Prompts into tokens, and tokens back into text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer
from engine.errors import ConfigError, InvalidRequest
from engine.tokenizer import Tokenizer
from tests import vocabularies
from tests.engine.tokenizers import byte_fallback, byte_level, default_tokenizer


class TestDefaultModel:
    def test_every_digit_is_a_token(self) -> None:
        assert [default_tokenizer().token_text(token) for token in default_tokenizer().encode("12345")] == [*"12345"]

    def test_a_blank_line_before_a_number_is_one_token(self) -> None:
        tokens = default_tokenizer().encode("List:\n\n1.")
        assert [default_tokenizer().token_text(token) for token in tokens] == ["List", ":", "\n\n", "1", "."]

    @pytest.mark.parametrize(
        "text", ["", " ", "  two\t tabs\r\n", vocabularies.TEXT, "def f(x):\n    return x²½", "\x00"]
    )
    def test_text_comes_back(self, text: str) -> None:
        assert default_tokenizer().decode(default_tokenizer().encode(text)) == text


class TestTokenizer:
    @given(st.text())
    def test_byte_level_text_comes_back(self, text: str) -> None:
        tokenizer = byte_level()
        assert "<|end|>" in text or tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_lone_surrogate_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match=r"character 2 is the lone surrogate U\+D83D") as caught:
            byte_level().encode("ab\ud83dc")
        assert caught.value.param == "prompt"

    def test_a_text_that_brings_the_begin_token_gets_no_second_one(self) -> None:
        tokenizer = byte_fallback()
        assert tokenizer.encode("the")[0] == 1
        assert tokenizer.encode("<s>the").count(1) == 1

    def test_token_text_keeps_the_space_that_decoding_drops(self) -> None:
        tokenizer = byte_fallback()
        the, and_ = tokenizer.encode("the and")[1:]
        assert tokenizer.decode([the, and_]) == "the and"
        assert [tokenizer.token_text(token) for token in (the, and_, 1)] == [" the", " and", "<s>"]

    def test_token_text_of_special_and_cut_tokens(self) -> None:
        tokenizer = byte_level()
        assert tokenizer.token_text(0) == "<|end|>"
        assert tokenizer.token_text(tokenizer.encode("\u00ff")[0]) == "\ufffd"

    def test_a_decoder_that_looks_ahead_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="WordPiece"):
            Tokenizer(vocabularies.word_pieces())

    def test_added_tokens_that_are_not_spelled_in_bytes(self) -> None:
        added = vocabularies.byte_level()
        added.add_tokens(["two words", "日é"])
        tokenizer = Tokenizer(added)
        token_ids = tokenizer.encode("a two words日é, two words")
        assert {len(added) - 2, len(added) - 1} < set(token_ids)
        detokenizer = Detokenizer(tokenizer, ())
        for token_id in token_ids:
            detokenizer.append(token_id)
        assert detokenizer.take(final=True) == tokenizer.decode(token_ids)
        assert tokenizer.decode(token_ids).count("two words") == 2


class TestSpellings:
    def test_a_word_is_spelled_with_a_space_and_without_one(self) -> None:
        tokenizer = byte_level()
        assert [[tokenizer.token_text(i) for i in ids] for ids in tokenizer.spellings("the")] == [["t", "he"], [" the"]]
        assert tokenizer.spellings(" the") == tokenizer.spellings("the")

    def test_no_space_is_put_in_front_by_tokenizers_that_put_one_before_every_text(self) -> None:
        tokenizer = byte_fallback()
        assert [[tokenizer.token_text(i) for i in ids] for ids in tokenizer.spellings("the")] == [["t", "he"], [" the"]]

    def test_an_empty_word_has_no_tokens(self) -> None:
        assert () in byte_level().spellings(" ")

    def test_a_lone_surrogate_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
            byte_level().spellings("\ud83d")
        assert caught.value.param == "bad_words"


INFILL_SPELLINGS = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001
]


class TestInfill:
    @pytest.mark.parametrize("spelling", INFILL_SPELLINGS)
    def test_three_tokens_around_prefix_and_suffix(self, spelling: tuple[str, str, str]) -> None:
        hf = vocabularies.byte_level()
        hf.add_special_tokens({"additional_special_tokens": list(spelling)})
        tokenizer = Tokenizer(hf)
        prefix, suffix, middle = hf.convert_tokens_to_ids(list(spelling))
        before, behind = tokenizer.encode("the end"), tokenizer.encode(" of it")
        assert tokenizer.encode_infill("the end", " of it") == [prefix, *before, suffix, *behind, middle]
        # One text with the three tokens written into it is the same prompt.
        written = f"{spelling[0]}the end{spelling[1]} of it{spelling[2]}"
        assert tokenizer.encode_infill("the end", " of it") == tokenizer.encode(written)

    def test_the_begin_token_comes_first_and_the_suffix_gets_no_space(self) -> None:
        hf = vocabularies.byte_fallback()
        hf.add_special_tokens({"additional_special_tokens": ["▁<PRE>", "▁<SUF>", "▁<MID>"]})
        tokenizer = Tokenizer(hf)
        texts = [tokenizer.token_text(token) for token in tokenizer.encode_infill("the", "and the")]
        assert texts == ["<s>", " <PRE>", " the", " <SUF>", "a", "nd", " the", " <MID>"]
        plain = tokenizer.encode_infill("the", "and the", add_special_tokens=False)
        assert tokenizer.encode_infill("the", "and the")[1:] == plain

    def test_a_vocabulary_with_two_of_three_has_none(self) -> None:
        hf = vocabularies.byte_level()
        hf.add_special_tokens({"additional_special_tokens": ["<fim_prefix>", "<fim_suffix>"]})
        with pytest.raises(InvalidRequest, match="no tokens for text that is to be inserted") as caught:
            Tokenizer(hf).encode_infill("a", "b")
        assert caught.value.param == "suffix"


def test_without_special_tokens_there_is_no_begin_token() -> None:
    tokenizer = byte_fallback()
    assert tokenizer.encode("the", add_special_tokens=False) == tokenizer.encode("the")[1:]


def test_special_tokens_are_text_if_they_are_not_skipped() -> None:
    tokenizer = byte_level()
    token_ids = [*tokenizer.encode("the"), 0]
    assert tokenizer.decode(token_ids) == "the"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "the<|end|>"
