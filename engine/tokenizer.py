"""Between text and token ids: prompts one way, whole outputs the other.

Knows how vocabularies spell bytes. Refuses to know models, requests and how an output comes (``engine.detokenizer``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.chat_template import ChatTemplate
from engine.errors import ConfigError, InvalidRequest
from engine.infill import InfillTokens

# Under these a token is spelled by itself, the token before it, and the row of byte tokens it stands in.
_WINDOW_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    Attributes:
        info: its special tokens and the chat template, under the names of ``tokenizer_config.json``.

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
        self.is_byte_level = "ByteLevel" in decoders
        self._has_byte_fallback = "ByteFallback" in decoders
        strange = decoders - ({"ByteLevel", "Fuse"} if self.is_byte_level else _WINDOW_DECODERS)
        if strange:
            raise ConfigError(f"tokenizers with the decoder {'/'.join(sorted(strange))} are not supported")
        self._special_ids = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        self._inner_backend = _without_space_in_front(self._backend)
        self.chat_template = ChatTemplate(tokenizer)
        self.info: dict[str, Any] = {
            "tokenizer_class": type(tokenizer).__name__,
            **{name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
            "additional_special_tokens": sorted(set(tokenizer.all_special_tokens)),
            "chat_template": tokenizer.chat_template,
        }
        self._infill = InfillTokens.find(self._backend.token_to_id)
        self._byte_of_char = {char: byte for byte, char in bytes_to_unicode().items()}
        self._bytes_of_id: dict[int, bytes] = {}
        self._text_of_id: dict[int, str] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a prompt; if ``add_special_tokens``, with the begin token if the model wants one and the text
        brings none.

        Raises:
            InvalidRequest: the text holds half of a surrogate pair.
        """
        _check_text(text, "prompt")
        begin = self._hf.bos_token
        has_begin = bool(begin) and text.startswith(begin)
        # A batch, because the library lets other threads run meanwhile only then.
        return list(self._backend.encode_batch([text], add_special_tokens=add_special_tokens and not has_begin)[0].ids)

    def encode_infill(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        """The prompt that asks for the text between ``prefix`` and ``suffix``; otherwise as ``encode``.

        Raises:
            InvalidRequest: the vocabulary has no tokens for that, or a text holds half of a surrogate pair.
        """
        if self._infill is None:
            raise InvalidRequest(
                "suffix must be null or empty: this model has no tokens for text that is to be inserted", param="suffix"
            )
        _check_text(suffix, "suffix")
        begin = self.encode("") if add_special_tokens else []
        return [
            *begin,
            self._infill.prefix,
            *self.encode(prefix, add_special_tokens=False),
            self._infill.suffix,
            *self._encode_inside(suffix),
            self._infill.middle,
        ]

    def spellings(self, word: str) -> tuple[tuple[int, ...], ...]:
        """The token sequences of a word inside a text, with a space in front and without one.

        Raises:
            InvalidRequest: the word holds half of a surrogate pair.
        """
        _check_text(word, "bad_words")
        found = (tuple(self._encode_inside(f"{space}{word.lstrip(' ')}")) for space in ("", " "))
        return tuple(dict.fromkeys(found))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some tokens; U+FFFD for a cut character."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The text of one token as it reads after other text, special tokens included."""
        known = self._text_of_id.get(token_id)
        if known is None:
            # Some decoders drop the space in front of the very first token, so the second of two is looked at.
            once, twice = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
            known = self._text_of_id[token_id] = str(once) if self.is_byte_level else str(twice[len(once) :])
        return known

    def is_silent(self, token_id: int, *, skip_special_tokens: bool = True) -> bool:
        """Whether a token never gives text: one that only pads the model's vocabulary, or a special one if skipped."""
        return (skip_special_tokens and token_id in self._special_ids) or self._backend.id_to_token(token_id) is None

    def is_byte(self, token_id: int) -> bool:
        """Whether a token is a single byte that makes text only together with the bytes around it."""
        return self._has_byte_fallback and bool(_BYTE_TOKEN.fullmatch(self._backend.id_to_token(token_id)))

    def token_bytes(self, token_id: int) -> bytes:
        """What a token spells after other text, special ones too; nothing for one that only pads."""
        known = self._bytes_of_id.get(token_id)
        if known is None:
            known = self._bytes_of_id[token_id] = self._spell(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def _encode_inside(self, text: str) -> list[int]:
        """The tokens of a text that follows another."""
        return list(self._inner_backend.encode(text, add_special_tokens=False).ids)

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.is_byte(token_id):
            return bytes([int(token[3:5], 16)])
        if not self.is_byte_level:
            return self.token_text(token_id).encode()
        if all(char in self._byte_of_char for char in token):
            return bytes(self._byte_of_char[char] for char in token)
        return bytes(token, "utf-8")


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


def _without_space_in_front(backend: Backend) -> Backend:
    """A tokenizer for text that follows other text, for one that puts a space in front of every text."""
    written = json.loads(backend.to_str())
    before = json.dumps(written)
    for part in _parts(written["normalizer"], "normalizers"):
        if part["type"] == "Prepend":
            part["prepend"] = ""
    for part in _parts(written["pre_tokenizer"], "pretokenizers"):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    after = json.dumps(written)
    return backend if after == before else Backend.from_str(after)


def _parts(component: dict[str, Any] | None, inner: str) -> Iterator[dict[str, Any]]:
    if component is None:
        return
    yield from component[inner] if component["type"] == "Sequence" else [component]


def _check_text(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} is not valid text: character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}",
            param=param,
        ) from None
