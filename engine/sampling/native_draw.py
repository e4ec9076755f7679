"""Tokens of sampled rows on the CPU through our C++: truncation without sorting, noise only where it can win.

The law is that of ``truncate`` and ``gumbel_noise``, which stay the reference; the last digits of the noise differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq

import torch

from engine.native.functions import Arguments, NativeLibrary
from engine.sampling.logits import SamplingRow
from engine.sampling.noise import key_words


class _Draw(ctypes.Structure):
    """Mirrors ``Draw`` of the C++."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("vocab_size", "top_k", "token")),
        *((name, ctypes.c_uint32) for name in ("key_low", "key_high")),
        *((name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "margin")),
    )


class _Draws(Arguments):
    """Mirrors ``Draws`` of the C++."""

    _fields_ = (("of", ctypes.POINTER(_Draw)),)


class NativeDraw:
    """Draws what ``Sampler`` draws."""

    def __init__(self, library: NativeLibrary) -> None:
        self._draw = library.function("draw")

    def draw(self, logits: Seq[torch.Tensor] | torch.Tensor, rows: Seq[SamplingRow]) -> torch.Tensor:
        """
        Args:
            logits: for each row float32 ``[vocab_size]``, adjusted, contiguous.

        Returns:
            int64 ``[len(rows)]``.
        """
        tokens, _ = self.draw_with_margins(logits, rows)
        return tokens

    def draw_with_margins(
        self, logits: Seq[torch.Tensor] | torch.Tensor, rows: Seq[SamplingRow]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``draw``, and how far each token was ahead.

        Returns:
            The tokens, and float32 ``[len(rows)]``: the winner's perturbed score less the runner-up's, in units of the
            temperature; infinite where no other token was left.
        """
        draws = (_Draw * len(rows))(*(_describe(logits[i], row) for i, row in enumerate(rows)))
        self._draw(_Draws(num_rows=len(rows), of=draws))
        return torch.tensor([draw.token for draw in draws]), torch.tensor([draw.margin for draw in draws])


def _describe(logits: torch.Tensor, row: SamplingRow) -> _Draw:
    params = row.params
    low, high = key_words(params.seed, row.output_index)
    return _Draw(
        logits=logits.data_ptr(),
        vocab_size=len(logits),
        top_k=min(params.top_k, len(logits)),
        key_low=low,
        key_high=high,
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
    )
