"""Draws the target's token for every row: one rule for greedy, sampled, plain and speculative decoding.

    y = argmax_v  z_v + T * g(seed, t, v)

over the tokens that truncation kept, ``z`` being the adjusted logits: the Gumbel-max form of sampling from
``softmax(z / T)``, multiplied by ``T`` so that ``T = 0`` is greedy without a second rule. Ties: the smaller id.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.model.upload import upload
from engine.sampling.logits import SamplingRow, adjusted_copies, truncate
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
        self._draw_hot = native.draw if native else draw_slowly

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
        """int64 ``[len(rows)]``. Rows are copied only to be adjusted, and each is looked through once."""
        known: dict[int, ScoreRow] = {}
        hot: dict[int, SamplingRow] = {}
        cold: dict[int, SamplingRow] = {}
        for i, row in enumerate(rows):
            if isinstance(row, ScoreRow):
                known[i] = row
            elif row.params.temperature > 0:
                hot[i] = row
            else:
                cold[i] = row
        own = adjusted_copies(logits, hot | cold, self._end_token_ids)
        if len(cold) == len(rows) and not own:
            return logits.argmax(dim=-1)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        if cold:
            best = torch.stack([own.get(i, logits[i]) for i in cold]).argmax(dim=-1)
            tokens[upload(list(cold), logits.device)] = best
        if hot:
            drawn = self._draw_hot([own.get(i, logits[i]) for i in hot], list(hot.values()))
            tokens[upload(list(hot), logits.device)] = drawn
        if known:
            token_ids = [row.token_id for row in known.values()]
            tokens[upload(list(known), logits.device)] = upload(token_ids, logits.device)
        return tokens


def draw_slowly(logits: Seq[torch.Tensor] | torch.Tensor, rows: Seq[SamplingRow]) -> torch.Tensor:
    """The tokens of sampled rows, in torch and on any device: the reference.

    Args:
        logits: for each row float32 ``[vocab_size]``, adjusted.
    """
    return perturbed_scores(logits, rows).argmax(dim=-1)


def perturbed_scores(logits: Seq[torch.Tensor] | torch.Tensor, rows: Seq[SamplingRow]) -> torch.Tensor:
    """What a token is the best of: ``z + T * g``, -inf where truncation cuts off. Arguments as in ``draw_slowly``."""
    kept = torch.stack([truncate(of_row, row.params) for of_row, row in zip(logits, rows, strict=True)])
    noise = gumbel_noise([(row.params.seed, row.output_index) for row in rows], kept.shape[1], kept.device)
    temperatures = upload([row.params.temperature for row in rows], kept.device, torch.float32)
    return kept + noise.mul_(temperatures.unsqueeze(1))
