"""Between text and token ids: prompts one way, finished and streamed output the other.

Knows how vocabularies spell bytes, when a text is certain, and where a stop string ends it.
Refuses to know models, requests and who reads the text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.errors import ConfigError, InvalidRequest

# Under these a token is spelled by itself, the token before it, and the row of byte tokens it stands in.
_WINDOW_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    Raises:
        ConfigError: its decoder is of a kind whose text cannot be streamed exactly.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._hf = tokenizer
        # The wrapper changes shared settings at every call; the Rust object below it is safe between threads.
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        decoders = _decoder_types(self._backend)
        self._is_byte_level = "ByteLevel" in decoders
        self._has_byte_fallback = "ByteFallback" in decoders
        strange = decoders - ({"ByteLevel", "Fuse"} if self._is_byte_level else _WINDOW_DECODERS)
        if strange:
            raise ConfigError(f"tokenizers with the decoder {'/'.join(sorted(strange))} are not supported")
        self._special_ids = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        self._byte_of_char = {char: byte for byte, char in bytes_to_unicode().items()}
        self._bytes_of_id: dict[int, bytes] = {}
        self._text_of_id: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, with the model's begin token if it wants one and the text brings none.

        Raises:
            InvalidRequest: the text holds half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"prompt is not valid text: character {error.start} is the lone surrogate "
                f"U+{ord(text[error.start]):04X}",
                param="prompt",
            ) from None
        begin = self._hf.bos_token
        has_begin = bool(begin) and text.startswith(begin)
        # A batch, because the library lets other threads run meanwhile only then.
        return list(self._backend.encode_batch([text], add_special_tokens=not has_begin)[0].ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, without special tokens; U+FFFD for a cut character."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """The text of one token as it reads after other text, special tokens included."""
        known = self._text_of_id.get(token_id)
        if known is None:
            # Some decoders drop the space in front of the very first token, so the second of two is looked at.
            once, twice = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
            known = self._text_of_id[token_id] = str(once) if self._is_byte_level else str(twice[len(once) :])
        return known

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text of a conversation, open for the assistant's turn.

        Raises:
            InvalidRequest: the model has no chat template, or it refuses these messages.
        """
        if not self._hf.chat_template:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        try:
            return str(
                self._hf.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                )
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def is_silent(self, token_id: int) -> bool:
        """Whether a token never gives text: a special one, or one that only pads the model's vocabulary."""
        return token_id in self._special_ids or self._backend.id_to_token(token_id) is None

    def is_byte(self, token_id: int) -> bool:
        """Whether a token is a single byte that makes text only together with the bytes around it."""
        return self._has_byte_fallback and bool(_BYTE_TOKEN.fullmatch(self._backend.id_to_token(token_id)))

    def token_bytes(self, token_id: int) -> bytes:
        """What a token of a byte-level vocabulary adds to the output; nothing for a silent one."""
        known = self._bytes_of_id.get(token_id)
        if known is None:
            known = self._bytes_of_id[token_id] = b"" if self.is_silent(token_id) else self._spell(token_id)
        return known

    def new_pieces(self) -> Pieces:
        """An empty output that takes tokens one at a time."""
        return _BytePieces(self) if self._is_byte_level else _WindowPieces(self)

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if all(char in self._byte_of_char for char in token):
            return bytes(self._byte_of_char[char] for char in token)
        return bytes(token, "utf-8")


class Detokenizer:
    """The text of one sequence as its tokens come, ended by stop strings.

    Only text that no later token can change or forbid is released: an unfinished character waits, and so does
    a tail that may yet become a stop string. Constant work a token, as long as ``take`` is called every few.

    Args:
        stop: strings that end the output. The one that is complete first does; of several that are complete
            with the same character, the longest.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._pieces = tokenizer.new_pieces()
        self._stop = stop
        self._held = ""
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
        num_withheld = 0 if final or self._has_stopped else self._num_withheld()
        cut = len(self._held) - num_withheld
        text, self._held = self._held[:cut], self._held[cut:]
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
        self._held = self._held[:start]
        self._has_stopped = True
        return stop

    def _num_withheld(self) -> int:
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


class _BytePieces:
    """Byte-level vocabularies: every token is some bytes, and a character is certain with its last byte."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowPieces:
    """Other vocabularies: decode the new tokens behind the last ones, and take what those did not give.

    A run of byte tokens waits for its end, because one wrong byte turns the whole run into U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._new: list[int] = []

    def push(self, token_id: int) -> str:
        if self._tokenizer.is_silent(token_id):
            return ""
        self._new.append(token_id)
        return "" if self._tokenizer.is_byte(token_id) else self.flush()

    def flush(self) -> str:
        before = self._tokenizer.decode(self._context)
        text = self._tokenizer.decode(self._context + self._new)
        if self._new:
            self._context, self._new = self._new, []
        return text[len(before) :]


def _decoder_types(backend: Any) -> frozenset[str]:
    if backend.decoder is None:
        return frozenset()
    return frozenset(_types_in(json.loads(backend.decoder.__getstate__())))


def _types_in(decoder: Mapping[str, Any]) -> Iterator[str]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _types_in(part)
    elif decoder["type"] == "Strip" and decoder["stop"]:
        yield "Strip at the end"
    else:
        yield decoder["type"]
