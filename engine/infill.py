"""How models that were trained to insert text are asked to: three tokens around what stands before and behind the gap.

    prefix token, the text before, suffix token, the text behind, middle token

Knows spellings only; which text is tokenised how is the tokenizer's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The names say whose model cards spell them so; other models have taken them over.
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder  # noqa: RUF001
)


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids of the three tokens."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def find(cls, token_to_id: Callable[[str], int | None]) -> InfillTokens | None:
        """Those of a vocabulary; None if it has none of the known spellings in full."""
        for spelling in _SPELLINGS:
            ids = [token_to_id(token) for token in spelling]
            found = [token_id for token_id in ids if token_id is not None]
            if len(found) == len(spelling):
                return cls(*found)
        return None
