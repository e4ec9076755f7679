"""Draws the target's token for every row: one rule for greedy, sampled, plain and speculative decoding.

    y = argmax_v  z_v + T * g(seed, t, v)

over the tokens that truncation kept, ``z`` being the adjusted logits: the Gumbel-max form of sampling from
``softmax(z / T)``, multiplied by ``T`` so that ``T = 0`` is greedy without a second rule. Ties: the smaller id.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.model.upload import upload
from engine.sampling.logits import SamplingRow, adjust, needs_adjusting, truncate, truncates
from engine.sampling.logprobs import ScoreRow, wanted_logprobs, with_logprobs
from engine.sampling.native_draw import NativeDraw
from engine.sampling.noise import gumbel_noise
from engine.types import TokenLogprob


class Sampler:
    """Stateless; knows which tokens end an output.

    Args:
        native: draws sampled rows in the place of torch, on the CPU.
    """

    def __init__(self, end_token_ids: frozenset[int], native: NativeDraw | None = None) -> None:
        self._end_token_ids = end_token_ids
        self._native = native

    def sample(
        self, logits: torch.Tensor, rows: Seq[SamplingRow | ScoreRow]
    ) -> tuple[list[int], list[TokenLogprob | None]]:
        """The token of each row (for a score row the known one) and its log-probability where it is wanted.

        Args:
            logits: ``[len(rows), vocab_size]``, any float type; not changed.

        Log-probabilities are the raw model's, before every adjustment. One device-to-host copy in all.
        """
        logits = logits.float()
        tokens = self._draw(logits, rows)
        wanted = {i: w for i, row in enumerate(rows) if (w := wanted_logprobs(row)) is not None}
        if not wanted:
            return tokens.tolist(), [None] * len(rows)
        return with_logprobs(logits, tokens, wanted)

    def _draw(self, logits: torch.Tensor, rows: Seq[SamplingRow | ScoreRow]) -> torch.Tensor:
        """int64 ``[len(rows)]``."""
        tokens = logits.argmax(dim=-1)
        known = [(i, row.token_id) for i, row in enumerate(rows) if isinstance(row, ScoreRow)]
        if known:
            index, token_ids = upload(known, logits.device).unbind(1)
            tokens[index] = token_ids
        drawn = [(i, row) for i, row in enumerate(rows) if isinstance(row, SamplingRow)]
        special = [(i, row) for i, row in drawn if needs_adjusting(row) or row.params.temperature > 0]
        if special:
            index = upload([i for i, _ in special], logits.device)
            tokens[index] = self._draw_special(logits[index], [row for _, row in special])
        return tokens

    def _draw_special(self, logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
        """Rows with temperature or adjustments; ``logits`` is theirs alone and may be changed."""
        adjust(logits, rows, self._end_token_ids)
        hot = [i for i, row in enumerate(rows) if row.params.temperature > 0]
        tokens = logits.argmax(dim=-1)
        if hot:
            index = upload(hot, logits.device)
            draw = self._native.draw if self._native else draw_slowly
            tokens[index] = draw(logits[index], [rows[i] for i in hot])
        return tokens


def draw_slowly(logits: torch.Tensor, rows: Seq[SamplingRow]) -> torch.Tensor:
    """The tokens of sampled rows, in torch and on any device: the reference.

    Args:
        logits: float32 ``[len(rows), vocab_size]``, adjusted.
    """
    noise = gumbel_noise([(row.params.seed, row.output_index) for row in rows], logits.shape[1], logits.device)
    temperatures = upload([row.params.temperature for row in rows], logits.device, torch.float32)
    if any(truncates(row.params) for row in rows):
        logits = torch.stack([truncate(of_row, row.params) for of_row, row in zip(logits, rows, strict=True)])
    return (logits + noise.mul_(temperatures.unsqueeze(1))).argmax(dim=-1)
