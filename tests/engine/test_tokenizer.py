from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine.config import EngineConfig
from engine.errors import ConfigError, InvalidRequest
from engine.model.default_model import find_default_model
from engine.model.gguf_conversion import convert_gguf
from engine.tokenizer import Detokenizer, Tokenizer
from tests import vocabularies


@cache
def default_tokenizer() -> Tokenizer:
    folder = convert_gguf(find_default_model(), EngineConfig().cache_dir, lambda stage, fraction: None)
    return Tokenizer(AutoTokenizer.from_pretrained(folder))


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(vocabularies.byte_level())


@cache
def byte_fallback() -> Tokenizer:
    return Tokenizer(vocabularies.byte_fallback())


TOKENIZERS = pytest.mark.parametrize("make", [default_tokenizer, byte_level, byte_fallback])
# Text that no later token changes is known at once only here: the other kind waits for the end of a row of bytes.
BYTE_LEVEL_TOKENIZERS = pytest.mark.parametrize("make", [default_tokenizer, byte_level])


def run(tokenizer: Tokenizer, token_ids: list[int], stop: tuple[str, ...] = ()) -> tuple[str, str | None]:
    """The joined text, taken after every token, and the stop string that ended it."""
    detokenizer, text = Detokenizer(tokenizer, stop), ""
    for token_id in token_ids:
        found = detokenizer.append(token_id)
        text += detokenizer.take()
        if found is not None:
            assert detokenizer.take(final=True) == ""
            return text, found
    return text + detokenizer.take(final=True), None


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The slow twin: grow the text by a character until it ends in a stop string."""
    for end in range(len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Random tokens, those of text among them, and ids beyond the tokenizer's, as padded vocabularies give."""
    some_id = st.integers(0, 403)
    some_text = st.text(max_size=6).map(tokenizer.encode)
    return [token for part in data.draw(st.lists(st.lists(some_id, max_size=4) | some_text)) for token in part]


def draw_stop(data: st.DataObject, text: str) -> tuple[str, ...]:
    """Strings that occur in ``text``, and others that share their beginnings."""
    starts = st.integers(0, max(0, len(text) - 1))
    pieces = st.tuples(starts, st.integers(1, 5)).map(lambda at: text[at[0] : at[0] + at[1]])
    cousins = st.tuples(pieces, st.text(max_size=2)).map("".join)
    stop = data.draw(st.lists(st.one_of(pieces, cousins, st.text("ab", max_size=3)), max_size=4))
    return tuple(one for one in stop if one)


class TestDefaultModel:
    def test_every_digit_is_a_token(self) -> None:
        assert [default_tokenizer().token_text(token) for token in default_tokenizer().encode("12345")] == [*"12345"]

    def test_a_blank_line_before_a_number_is_one_token(self) -> None:
        tokens = default_tokenizer().encode("List:\n\n1.")
        assert [default_tokenizer().token_text(token) for token in tokens] == ["List", ":", "\n\n", "1", "."]

    def test_the_chat_template_opens_the_assistants_turn(self) -> None:
        text = default_tokenizer().render_chat([{"role": "user", "content": "Hi"}])
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert len({token for token in default_tokenizer().encode(text) if default_tokenizer().is_silent(token)}) == 2

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

    def test_no_chat_template(self) -> None:
        with pytest.raises(InvalidRequest, match="no chat template") as caught:
            Tokenizer(vocabularies.byte_level(chat_template=None)).render_chat([{"role": "user", "content": "Hi"}])
        assert caught.value.param == "messages"

    def test_a_chat_template_that_refuses(self) -> None:
        with pytest.raises(InvalidRequest, match="no tools here") as caught:
            byte_level().render_chat([{"role": "tool", "content": "Hi"}])
        assert caught.value.param == "messages"

    def test_a_decoder_that_looks_ahead_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="WordPiece"):
            Tokenizer(vocabularies.word_pieces())

    def test_added_tokens_that_are_not_spelled_in_bytes(self) -> None:
        added = vocabularies.byte_level()
        added.add_tokens(["two words", "日é"])
        tokenizer = Tokenizer(added)
        token_ids = tokenizer.encode("a two words日é, two words")
        assert {len(added) - 2, len(added) - 1} < set(token_ids)
        assert run(tokenizer, token_ids) == (tokenizer.decode(token_ids), None)
        assert tokenizer.decode(token_ids).count("two words") == 2


@TOKENIZERS
class TestJoinedText:
    @settings(deadline=None)
    @given(data=st.data())
    def test_equals_decoding_the_whole(self, make: object, data: st.DataObject) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        assert run(tokenizer, token_ids) == (tokenizer.decode(token_ids), None)

    @settings(deadline=None)
    @given(data=st.data())
    def test_equals_the_whole_cut_at_the_stop(self, make: object, data: st.DataObject) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        whole = tokenizer.decode(token_ids)
        stop = draw_stop(data, whole)
        text, _ = run(tokenizer, token_ids, stop)
        assert text == cut(whole, stop)

    @settings(deadline=None)
    @given(data=st.data())
    def test_does_not_depend_on_when_it_is_taken(self, make: object, data: st.DataObject) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        stop = draw_stop(data, tokenizer.decode(token_ids))
        detokenizer, text = Detokenizer(tokenizer, stop), ""
        for token_id in token_ids:
            if detokenizer.append(token_id) is not None:
                break
            if data.draw(st.booleans()):
                text += detokenizer.take()
        assert text + detokenizer.take(final=True) == run(tokenizer, token_ids, stop)[0]


@BYTE_LEVEL_TOKENIZERS
@settings(deadline=None)
@given(data=st.data())
def test_no_more_is_withheld_than_must_be(make: object, data: st.DataObject) -> None:
    tokenizer = make()  # type: ignore[operator]
    token_ids = draw_ids(data, tokenizer)
    stop = draw_stop(data, tokenizer.decode(token_ids))
    detokenizer, released = Detokenizer(tokenizer, stop), ""
    for position, token_id in enumerate(token_ids):
        if detokenizer.append(token_id) is not None:
            return
        released += detokenizer.take()
        withheld = tokenizer.decode(token_ids[: position + 1]).removeprefix(released)
        beginnings = {one[:length] for one in stop for length in range(len(one))} | {""}
        assert withheld in beginnings or (withheld[:-1] in beginnings and withheld[-1] == "\ufffd")


class TestStop:
    def feed(self, text: str, *stop: str) -> tuple[str, str | None]:
        """One token a byte."""
        return run(byte_level(), [self.byte(byte) for byte in text.encode()], stop)

    def byte(self, value: int) -> int:
        return next(i for i in range(400) if byte_level().token_bytes(i) == bytes([value]))

    @pytest.mark.parametrize(
        ("text", "stop", "expected"),
        [
            ("one two", ("tw",), ("one ", "tw")),
            ("aaab", ("aab",), ("a", "aab")),
            ("ababac", ("abac",), ("ab", "abac")),
            ("abcd", ("abcd", "bc"), ("a", "bc")),
            ("abc", ("bc", "abc", "c"), ("", "abc")),
            ("naïve", ("ïv",), ("na", "ïv")),
            ("🙂🎉!", ("🎉",), ("🙂", "🎉")),
            ("abx", ("abc",), ("abx", None)),
            ("ab", ("abc",), ("ab", None)),
        ],
    )
    def test_examples(self, text: str, stop: tuple[str, ...], expected: tuple[str, str | None]) -> None:
        assert self.feed(text, *stop) == expected

    def test_a_stop_inside_one_token(self) -> None:
        token = max(range(400), key=lambda i: len(byte_level().token_bytes(i)))
        text = byte_level().token_text(token)
        assert len(text) >= 4
        assert run(byte_level(), [token], (text[1:3],)) == (text[:1], text[1:3])

    def test_a_beginning_of_a_stop_waits_and_an_unfinished_character_too(self) -> None:
        detokenizer = Detokenizer(byte_level(), ("stop",))
        taken = []
        for byte in "asté".encode():
            detokenizer.append(self.byte(byte))
            taken.append(detokenizer.take())
        assert taken == ["a", "", "", "", "sté"]

    def test_an_unfinished_character_comes_out_in_the_end(self) -> None:
        detokenizer = Detokenizer(byte_level(), ())
        detokenizer.append(self.byte("é".encode()[0]))
        assert (detokenizer.take(), detokenizer.take(final=True)) == ("", "\ufffd")

    def test_a_stop_that_only_the_end_completes(self) -> None:
        detokenizer = Detokenizer(byte_fallback(), ("é",))
        first, last = (3 + byte for byte in "é".encode())  # the tokens <0xC3> and <0xA9>
        assert detokenizer.append(first) is None
        assert detokenizer.append(last, is_last=True) == "é"
        assert detokenizer.take(final=True) == ""

    def test_unchecked_stops_are_text_but_may_begin_one(self) -> None:
        detokenizer = Detokenizer(byte_level(), ("ab",))
        unchecked = [detokenizer.append(self.byte(byte), check_stop=False) for byte in b"aba"]
        assert (unchecked, detokenizer.take()) == ([None] * 3, "ab")
        assert (detokenizer.append(self.byte(ord("b"))), detokenizer.take()) == ("ab", "")

    def test_nothing_may_follow_a_stop(self) -> None:
        detokenizer = Detokenizer(byte_level(), ("a",))
        detokenizer.append(self.byte(ord("a")))
        with pytest.raises(AssertionError):
            detokenizer.append(self.byte(ord("b")))


def test_a_token_costs_the_same_however_long_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(vocabularies.byte_fallback())
    lengths: list[int] = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: lengths.append(len(ids)) or decode(ids))
    run(tokenizer, tokenizer.encode("the and a " * 200))
    assert len(lengths) < 4000
    assert max(lengths) <= 2
