"""The text of an output as its tokens come: whole, never half a character, and ended where it should be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer
from engine.tokenizer import Tokenizer
from tests import vocabularies
from tests.engine.tokenizers import byte_fallback, byte_level, default_tokenizer

TOKENIZERS = pytest.mark.parametrize("make", [default_tokenizer, byte_level, byte_fallback])
# Text that no later token changes is known at once only here: the other kind waits for the end of a row of bytes.
BYTE_LEVEL_TOKENIZERS = pytest.mark.parametrize("make", [default_tokenizer, byte_level])


def run(
    tokenizer: Tokenizer, token_ids: list[int], stop: tuple[str, ...] = (), **options: Any
) -> tuple[str, str | None]:
    """The joined text, taken after every token, and the stop string that ended it."""
    detokenizer, text = Detokenizer(tokenizer, stop, **options), ""
    for token_id in token_ids:
        found = detokenizer.append(token_id)
        text += detokenizer.take()
        if found is not None:
            assert detokenizer.take(final=True) == ""
            return text, found
    return text + detokenizer.take(final=True), None


def cut(text: str, stop: tuple[str, ...], *, include_stop: bool) -> str:
    """The slow twin: grow the text by a character until it ends in a stop string."""
    for end in range(len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            return text[:end] if include_stop else text[: end - max(map(len, found))]
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


@TOKENIZERS
class TestJoinedText:
    @settings(deadline=None)
    @given(data=st.data(), skip=st.booleans())
    def test_equals_decoding_the_whole(self, make: object, data: st.DataObject, skip: bool) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
        assert run(tokenizer, token_ids, skip_special_tokens=skip) == (whole, None)

    @settings(deadline=None)
    @given(data=st.data(), skip=st.booleans(), include=st.booleans())
    def test_equals_the_whole_cut_at_the_stop(
        self, make: object, data: st.DataObject, skip: bool, include: bool
    ) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
        stop = draw_stop(data, whole)
        text, _ = run(tokenizer, token_ids, stop, skip_special_tokens=skip, include_stop=include)
        assert text == cut(whole, stop, include_stop=include)

    @settings(deadline=None)
    @given(data=st.data(), skip=st.booleans(), include=st.booleans())
    def test_does_not_depend_on_when_it_is_taken(
        self, make: object, data: st.DataObject, skip: bool, include: bool
    ) -> None:
        tokenizer = make()  # type: ignore[operator]
        token_ids = draw_ids(data, tokenizer)
        stop = draw_stop(data, tokenizer.decode(token_ids, skip_special_tokens=skip))
        options = {"skip_special_tokens": skip, "include_stop": include}
        detokenizer, text = Detokenizer(tokenizer, stop, **options), ""
        for token_id in token_ids:
            if detokenizer.append(token_id) is not None:
                break
            if data.draw(st.booleans()):
                text += detokenizer.take()
        assert text + detokenizer.take(final=True) == run(tokenizer, token_ids, stop, **options)[0]


@BYTE_LEVEL_TOKENIZERS
@settings(deadline=None)
@given(data=st.data(), include=st.booleans())
def test_no_more_is_withheld_than_must_be(make: object, data: st.DataObject, include: bool) -> None:
    tokenizer = make()  # type: ignore[operator]
    token_ids = draw_ids(data, tokenizer)
    stop = draw_stop(data, tokenizer.decode(token_ids))
    detokenizer, released = Detokenizer(tokenizer, stop, include_stop=include), ""
    for position, token_id in enumerate(token_ids):
        if detokenizer.append(token_id) is not None:
            return
        released += detokenizer.take()
        withheld = tokenizer.decode(token_ids[: position + 1]).removeprefix(released)
        beginnings = {""} if include else {one[:length] for one in stop for length in range(len(one))} | {""}
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

    def test_an_included_stop_that_began_in_text_already_given(self) -> None:
        detokenizer = Detokenizer(byte_level(), ("stop",), include_stop=True)
        taken, found = [], []
        for byte in b"a stop":
            found.append(detokenizer.append(self.byte(byte)))
            taken.append(detokenizer.take())
        assert taken == [*"a stop"]
        assert found == [None] * 5 + ["stop"]

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
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **options: lengths.append(len(ids)) or decode(ids, **options))
    run(tokenizer, tokenizer.encode("the and a " * 200))
    assert len(lengths) < 4000
    assert max(lengths) <= 2
