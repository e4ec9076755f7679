"""Draws the target's token for every row: one rule for greedy, sampled, plain and speculative decoding.

    y = argmax_v  z_v + T * g(seed, t, v)

over the tokens that truncation kept, ``z`` being the adjusted logits: the Gumbel-max form of sampling from
``softmax(z / T)``, multiplied by ``T`` so that ``T = 0`` is greedy without a second rule. Ties: the smaller id.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from engine.model.upload import upload
from engine.sampling.logits import SamplingRow, adjust, needs_adjusting, truncate, truncates
from engine.sampling.native_draw import NativeDraw
from engine.sampling.noise import gumbel_noise
from engine.types import TokenLogprob


class ScoreRow(NamedTuple):
    """One row of logits whose next token is known: a prompt token to be scored."""

    token_id: int
    num_top: int


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
        wanted = [(i, n) for i, row in enumerate(rows) if (n := _num_top(row)) is not None]
        if not wanted:
            return tokens.tolist(), [None] * len(rows)
        return _with_logprobs(logits, tokens, wanted)

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


def _num_top(row: SamplingRow | ScoreRow) -> int | None:
    return row.num_top if isinstance(row, ScoreRow) else row.params.logprobs


def _with_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: list[tuple[int, int]]
) -> tuple[list[int], list[TokenLogprob | None]]:
    """Pack tokens, log-probabilities and best alternatives into one copy; float64 holds every id exactly."""
    index = upload([i for i, _ in wanted], logits.device)
    num_top = min(max(n for _, n in wanted), logits.shape[1])
    logprobs = logits[index].log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens[index].unsqueeze(1))
    top_ids = _best(logprobs, num_top)
    packed = torch.cat([chosen.double(), logprobs.gather(1, top_ids).double(), top_ids.double()], dim=1)
    flat = torch.cat([tokens.double(), packed.flatten()]).tolist()

    token_ids = [int(value) for value in flat[: len(tokens)]]
    entries: list[TokenLogprob | None] = [None] * len(tokens)
    width = 1 + 2 * num_top
    for position, (row, n) in enumerate(wanted):
        cells = flat[len(tokens) + position * width :][:width]
        top = zip(map(int, cells[1 + num_top :][:n]), cells[1:], strict=False)
        entries[row] = TokenLogprob(token_ids[row], cells[0], tuple(top))
    return token_ids, entries


def _best(values: torch.Tensor, number: int) -> torch.Tensor:
    """Ids of the largest values of each row, best first; of equal ones the smaller id, which ``topk`` leaves open.

    Args:
        values: float32 ``[num_rows, vocab_size]``.

    Returns:
        int64 ``[num_rows, number]``.
    """
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the floats
    ids = torch.arange(values.shape[1], device=values.device)
    keys = (ordered.long() << 32) + (0xFFFFFFFF - ids)  # no two are equal
    return keys.topk(number, dim=-1).indices
