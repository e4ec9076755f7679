"""An alphabet of the 256 bytes and one end token, so that tests can count tokens by eye."""

from __future__ import annotations

from collections.abc import Sequence

END_TOKEN = 256
VOCAB_SIZE = 257


class ByteTokenizer:
    """Token ``i`` is byte ``i``; token 256 ends a text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.spell(token_ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")

    def spell(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        end = b"" if skip_special_tokens else b"<end>"
        return b"".join(end if token_id == END_TOKEN else bytes([token_id]) for token_id in token_ids)

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == END_TOKEN else bytes([token_id]).decode("utf-8", "replace")
