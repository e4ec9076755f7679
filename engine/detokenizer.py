"""An output's text as its tokens come.

Knows when a text is certain and where a stop string ends it. Refuses to know requests and who reads the text.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from engine.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence as its tokens come, ended by stop strings.

    Only text that no later token can change or forbid is released: an unfinished character waits, and so does
    a tail that may yet become a stop string. Constant work a token, as long as ``take`` is called every few.

    Args:
        stop: strings that end the output. The one that is complete first does; of several that are complete
            with the same character, the longest.
        include_stop: whether the stop string is part of the text; then nothing has to wait for one.
        skip_special_tokens: whether special tokens give no text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._pieces = text_pieces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stop = stop
        self._include_stop = include_stop
        self._held = ""  # what is not released, behind what may still be the beginning of a stop string
        self._num_released = 0  # of it
        self._has_stopped = False

    def append(self, token_id: int, *, check_stop: bool = True, is_last: bool = False) -> str | None:
        """Take a token; the stop string that is complete with it, or None. Nothing may follow a stop string.

        Args:
            check_stop: False lets stop strings that are complete with this token pass as ordinary text.
            is_last: no token follows, so that what waited for the next one is certain now.
        """
        assert not self._has_stopped, "a token after the stop string"
        text = self._pieces.push(token_id)
        if is_last:
            text += self._pieces.flush()
        return self._extend(text, check_stop=check_stop)

    def take(self, *, final: bool = False) -> str:
        """New text that can be released; all that is left if ``final``, a cut character as U+FFFD."""
        if final and not self._has_stopped:
            self._extend(self._pieces.flush(), check_stop=True)
        num_undecided = 0 if final or self._has_stopped else self._num_undecided()
        cut = len(self._held) - num_undecided
        end = len(self._held) if self._include_stop else cut
        text, self._held = self._held[self._num_released : end], self._held[cut:]
        self._num_released = end - cut
        return text

    def _extend(self, text: str, *, check_stop: bool) -> str | None:
        num_old = len(self._held)
        self._held += text
        if not (text and check_stop):
            return None
        # What ends in older text was looked for before: start just early enough to find what straddles.
        found = [(self._held.find(stop, max(0, num_old - len(stop) + 1)), stop) for stop in self._stop]
        complete = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not complete:
            return None
        _, start, stop = min(complete)
        self._held = self._held[: start + len(stop) if self._include_stop else start]
        self._has_stopped = True
        return stop

    def _num_undecided(self) -> int:
        """Length of the longest tail that is a proper prefix of a stop string."""
        held = self._held
        lengths = (
            length
            for stop in self._stop
            for length in range(min(len(stop) - 1, len(held)), 0, -1)
            if held.endswith(stop[:length])
        )
        return max(lengths, default=0)


class Pieces(Protocol):
    """Turns tokens into pieces of text that, joined, are the decoded whole."""

    def push(self, token_id: int) -> str:
        """The text that is certain with this token and was not before."""

    def flush(self) -> str:
        """The text of what is still uncertain, when nothing follows."""


def text_pieces(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Pieces:
    """The way of ``tokenizer``, for one output."""
    kind = _BytePieces if tokenizer.is_byte_level else _WindowPieces
    return kind(tokenizer, skip_special_tokens=skip_special_tokens)


class _BytePieces:
    """Byte-level vocabularies: every token is some bytes, and a character is certain with its last byte."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if self._skips_special and self._tokenizer.is_special(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowPieces:
    """Other vocabularies: decode the new tokens behind the last ones, and take what those did not give.

    A run of byte tokens waits for its end, because one wrong byte turns the whole run into U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._context: list[int] = []
        self._new: list[int] = []

    def push(self, token_id: int) -> str:
        if self._tokenizer.is_silent(token_id, skip_special_tokens=self._skips_special):
            return ""
        self._new.append(token_id)
        return "" if self._tokenizer.is_byte(token_id) else self.flush()

    def flush(self) -> str:
        before = self._decode(self._context)
        text = self._decode(self._context + self._new)
        if self._new:
            self._context, self._new = self._new, []
        return text[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)
