"""From raw logits to the distribution that is sampled, in one fixed order:

    1. logit_bias               added
    2. repetition_penalty       over prompt and output: positive logits divided by it, negative ones multiplied
    3. frequency, presence      over the output: minus count times the one, minus the other once
    4. masks                    -inf, so that it makes no difference which comes first:
         allowed_token_ids        every other token
         bad_words                the token that would complete one, begun in the prompt or in the output
         min_tokens               end tokens and stop_token_ids while the output is shorter
    5. temperature
    6. top_k, 7. top_p, 8. min_p   each over what the one before left, renormalised; ties: the smaller id first

Steps 2 to 4 see the confirmed tokens and the draft tokens before the row, which is what plain decoding would see if it
came that far; rows behind a rejected token are thrown away.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache

import torch

from engine.model.upload import upload
from engine.params import SamplingParams
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits to draw a token from.

    Attributes:
        sequence: whose confirmed tokens come first.
        draft_prefix: the draft tokens between them and this row.
    """

    sequence: Sequence
    draft_prefix: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return self.sequence.params

    @property
    def output_index(self) -> int:
        """The absolute index, in the output, of the token to draw: what noise is keyed by."""
        return self.sequence.num_output_tokens + len(self.draft_prefix)

    def tail(self, length: int) -> list[int]:
        """The last tokens before the one to draw, of prompt, output and draft together."""
        num_confirmed = max(length - len(self.draft_prefix), 0)
        confirmed = self.sequence.token_ids[-num_confirmed:] if num_confirmed else []
        return [*confirmed, *self.draft_prefix]


def adjust(logits: torch.Tensor, rows: Seq[SamplingRow], end_token_ids: frozenset[int]) -> None:
    """Steps 1 to 4, in place.

    Args:
        logits: ``[len(rows), vocab_size]`` float32.
    """
    for index, row in enumerate(rows):
        params = row.params
        if params.logit_bias:
            _add_bias(logits[index], params)
        if params.repetition_penalty != 1:
            _penalise_repetition(logits[index], row)
        if params.frequency_penalty or params.presence_penalty:
            _penalise_frequency(logits[index], row)
        if params.allowed_token_ids is not None:
            logits[index].masked_fill_(_others(params.allowed_token_ids, logits.shape[1], logits.device), -math.inf)
        if params.bad_words:
            bad_words = row.sequence.bad_words
            completing = bad_words.after(row.tail(bad_words.longest - 1))
            logits[index].index_fill_(0, _ids(completing, logits), -math.inf)
        if row.output_index < params.min_tokens:
            logits[index].index_fill_(0, _ids(end_token_ids | params.stop_token_ids, logits), -math.inf)


def adjusted_copies(
    logits: torch.Tensor, rows: Mapping[int, SamplingRow], end_token_ids: frozenset[int]
) -> dict[int, torch.Tensor]:
    """Steps 1 to 4 on copies, float32 ``[vocab_size]``, of the rows that ask for any, by their place in ``logits``.

    Args:
        logits: float32 ``[num_rows, vocab_size]``.
        rows: by their place.
    """
    wanted = {i: row for i, row in rows.items() if needs_adjusting(row)}
    if not wanted:
        return {}
    own = logits[upload(list(wanted), logits.device)]
    adjust(own, list(wanted.values()), end_token_ids)
    return dict(zip(wanted, own, strict=True))


def reads_draft(params: SamplingParams) -> bool:
    """Whether the adjustments look at which tokens are in the draft before a row, and not only at their number."""
    return bool(
        params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty or params.bad_words
    )


def needs_adjusting(row: SamplingRow) -> bool:
    params = row.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1
        or params.frequency_penalty
        or params.presence_penalty
        or params.allowed_token_ids is not None
        or params.bad_words
        or row.output_index < params.min_tokens
    )


def truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def truncate(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Steps 5 to 8 as a mask: the logits of one row, -inf where a token is cut off.

    Args:
        logits: ``[vocab_size]`` float32, adjusted, not yet divided by the temperature.
    """
    if not truncates(params):
        return logits
    ordered, order = torch.sort(logits, descending=True, stable=True)
    # The difference first: a tiny temperature then gives exact zeros behind the best token, never NaN.
    temperature = max(params.temperature, torch.finfo(ordered.dtype).tiny)
    probabilities = ((ordered - ordered[0]) / temperature).exp_()
    if params.top_k:
        probabilities[params.top_k :] = 0
    is_kept = probabilities > 0
    if params.top_p < 1:
        mass = probabilities.cumsum(0)
        is_kept &= mass - probabilities < params.top_p * mass[-1]
    if params.min_p > 0:
        is_kept &= probabilities >= params.min_p
    is_kept[0] = True  # the best token stays, also where float32 turns a tiny top_p into 0
    return torch.empty_like(logits).index_copy_(0, order, ordered.masked_fill_(~is_kept, -math.inf))


def _add_bias(logits: torch.Tensor, params: SamplingParams) -> None:
    ids = _ids(params.logit_bias, logits)
    logits[ids] += upload(list(params.logit_bias.values()), logits.device, logits.dtype)


def _penalise_repetition(logits: torch.Tensor, row: SamplingRow) -> None:
    seen = row.sequence.prompt_token_set.union(row.sequence.output_counts, row.draft_prefix)
    ids = _ids(seen, logits)
    values, penalty = logits[ids], row.params.repetition_penalty
    logits[ids] = torch.where(values > 0, values / penalty, values * penalty)


def _penalise_frequency(logits: torch.Tensor, row: SamplingRow) -> None:
    counts = row.sequence.output_counts
    if row.draft_prefix:
        counts = counts + Counter(row.draft_prefix)
    if not counts:
        return
    ids = _ids(counts, logits)
    values = upload(list(counts.values()), logits.device, logits.dtype)
    logits[ids] -= values * row.params.frequency_penalty + row.params.presence_penalty


@lru_cache(maxsize=64)
def _others(token_ids: frozenset[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """bool ``[vocab_size]``: the tokens that are not among ``token_ids``. Kept, for the list may be long."""
    mask = torch.ones(vocab_size, dtype=torch.bool, device=device)
    mask.index_fill_(0, upload(sorted(token_ids), device), False)
    return mask


def _ids(token_ids: Iterable[int], like: torch.Tensor) -> torch.Tensor:
    return upload(list(token_ids), like.device)
