"""Draws a draft model's tokens as the target's are drawn, with the same noise, and says how far each was ahead.

Two distributions that are drawn from with the same Gumbel noise give the same token as often as such noise allows, so a
draft is right more often than one drawn by itself, or than the draft model's likeliest token. Source: Daliri, Musco,
Suresh (arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from engine.model.upload import upload
from engine.sampling.logits import SamplingRow, adjusted_copies
from engine.sampling.native_draw import NativeDraw
from engine.sampling.sampler import perturbed_scores


class Drawn(NamedTuple):
    """Tokens and how far they were ahead.

    Attributes:
        tokens: int64 ``[num_rows]``.
        margins: float32 ``[num_rows]``, the best score less the second best: of logits if the temperature is 0, else
            of logits over the temperature plus noise. Infinite where no other token was left.
    """

    tokens: torch.Tensor
    margins: torch.Tensor


class DraftSampler:
    """Stateless. Asks nothing of the device on the way.

    Args:
        end_token_ids: tokens that end an output.
        native: draws sampled rows in the place of torch, on the CPU.
    """

    def __init__(self, end_token_ids: frozenset[int], native: NativeDraw | None = None) -> None:
        self._end_token_ids = end_token_ids
        self._draw_hot = native.draw_with_margins if native else _draw_hot_slowly

    def draw(self, logits: torch.Tensor, rows: Seq[SamplingRow]) -> Drawn:
        """
        Args:
            logits: ``[len(rows), vocab_size]``, any float type; not changed.
        """
        logits = logits.float()
        own = adjusted_copies(logits, dict(enumerate(rows)), self._end_token_ids)
        hot = [i for i, row in enumerate(rows) if row.params.temperature > 0]
        if not hot and not own:
            return _best(logits)
        cold = [i for i, row in enumerate(rows) if row.params.temperature == 0]
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        margins = torch.empty(len(rows), device=logits.device)
        if cold:
            place = upload(cold, logits.device)
            tokens[place], margins[place] = _best(torch.stack([own.get(i, logits[i]) for i in cold]))
        if hot:
            place = upload(hot, logits.device)
            tokens[place], margins[place] = self._draw_hot([own.get(i, logits[i]) for i in hot], [rows[i] for i in hot])
        return Drawn(tokens, margins)


def _draw_hot_slowly(logits: Seq[torch.Tensor] | torch.Tensor, rows: Seq[SamplingRow]) -> Drawn:
    tokens, margins = _best(perturbed_scores(logits, rows))
    return Drawn(tokens, margins / upload([row.params.temperature for row in rows], margins.device, torch.float32))


def _best(scores: torch.Tensor) -> Drawn:
    """The best of each row, ``[num_rows, vocab_size]``; of equal ones the smaller id."""
    tokens = scores.argmax(dim=-1, keepdim=True)
    best = scores.gather(1, tokens)
    second = scores.scatter(1, tokens, -torch.inf).amax(dim=-1, keepdim=True)
    margins = torch.where(best > second, best - second, torch.zeros_like(best))
    return Drawn(tokens.squeeze(1), margins.squeeze(1))
