"""Log-probabilities of drawn and of known tokens, with their rank and with alternatives.

They are the raw model's: no adjustment of ``engine.sampling.logits`` is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from engine.model.upload import upload
from engine.sampling.logits import SamplingRow
from engine.types import TokenLogprob


class ScoreRow(NamedTuple):
    """One row of logits whose next token is known: a prompt token to be scored."""

    token_id: int
    num_top: int


class WantedLogprobs(NamedTuple):
    """The alternatives that one row is to give: the best ``num_top``, or those of ``token_ids`` if there are any."""

    num_top: int
    token_ids: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return len(self.token_ids) or self.num_top


def wanted_logprobs(row: SamplingRow | ScoreRow) -> WantedLogprobs | None:
    """None if the row's request wants no log-probabilities."""
    if isinstance(row, ScoreRow):
        return WantedLogprobs(row.num_top)
    params = row.params
    return None if params.logprobs is None else WantedLogprobs(params.logprobs, params.logprob_token_ids)


def with_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: Mapping[int, WantedLogprobs]
) -> tuple[list[int], list[TokenLogprob | None]]:
    """All tokens, and entries for the wanted rows. One device-to-host copy; float64 holds every id exactly.

    Args:
        logits: raw, float32 ``[num_rows, vocab_size]``.
        tokens: int64 ``[num_rows]``.
        wanted: by row.
    """
    index = upload(list(wanted), logits.device)
    logprobs = logits[index].log_softmax(dim=-1)
    chosen = tokens[index].unsqueeze(1)
    keys = _keys(logprobs)
    ranks = (keys > keys.gather(1, chosen)).sum(dim=1, keepdim=True) + 1
    top_ids = _alternatives(keys, list(wanted.values()))
    columns = (logprobs.gather(1, chosen), ranks, logprobs.gather(1, top_ids), top_ids)
    packed = torch.cat([column.double() for column in columns], dim=1)
    flat = torch.cat([tokens.double(), packed.flatten()]).tolist()

    token_ids = [int(value) for value in flat[: len(tokens)]]
    entries: list[TokenLogprob | None] = [None] * len(tokens)
    width = packed.shape[1]
    for position, (row, wish) in enumerate(wanted.items()):
        logprob, rank, *cells = flat[len(tokens) + position * width :][:width]
        values, ids = cells[: top_ids.shape[1]], cells[top_ids.shape[1] :]
        top = tuple(zip(map(int, ids[: wish.width]), values, strict=False))
        entries[row] = TokenLogprob(token_ids[row], logprob, top, int(rank))
    return token_ids, entries


def _alternatives(keys: torch.Tensor, wanted: list[WantedLogprobs]) -> torch.Tensor:
    """int64 ``[len(wanted), widest wish]``; what a row has not asked for is any id."""
    width = min(max(wish.width for wish in wanted), keys.shape[1])
    num_best = min(max((wish.num_top for wish in wanted if not wish.token_ids), default=0), width)
    ids = torch.zeros(len(wanted), width, dtype=torch.int64, device=keys.device)
    ids[:, :num_best] = keys.topk(num_best, dim=-1).indices
    for position, wish in enumerate(wanted):
        if wish.token_ids:
            ids[position, : len(wish.token_ids)] = upload(wish.token_ids, keys.device)
    return ids


def _keys(values: torch.Tensor) -> torch.Tensor:
    """An int64 for each value, no two of a row equal: larger values have larger ones, of equal values the smaller id.

    Args:
        values: float32 ``[num_rows, vocab_size]``.
    """
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the floats
    ids = torch.arange(values.shape[1], device=values.device)
    return (ordered.long() << 32) + (0xFFFFFFFF - ids)
