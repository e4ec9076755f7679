"""Sample and match: the target draws its own token at every row, and the draft is right as far as it guessed them.

Plain decoding draws exactly the same tokens, because a token depends on (logits, parameters, seed, output index) alone.
So there is nothing to prove about the output law, no draft probabilities to keep and no residual to sample.
Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding"
(arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import islice

import torch

from engine.sampling.logits import SamplingRow
from engine.sampling.logprobs import ScoreRow
from engine.sampling.sampler import Sampler
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.types import Draft, TokenLogprob, Verdict


class Verifier:
    """Turns the logits of one forward into one verdict an entry."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def verify(self, batch: ScheduledBatch, drafts: Seq[Draft], logits: torch.Tensor) -> list[Verdict]:
        """
        Args:
            logits: ``[num_rows, vocab_size]``: for each entry in order its ``scored_positions``, then, if it samples,
                one row for its last confirmed token and one for each draft token.
        """
        rows: list[SamplingRow | ScoreRow] = []
        for entry, draft in zip(batch, drafts, strict=True):
            rows += _score_rows(entry)
            if entry.samples:
                rows += [SamplingRow(entry.sequence, draft.token_ids[:i]) for i in range(len(draft.token_ids) + 1)]
        if not rows:
            return [Verdict()] * len(batch)
        token_ids, logprobs = self._sampler.sample(logits, rows)
        drawn = zip(token_ids, logprobs, strict=True)
        return [_judge(entry, draft, drawn) for entry, draft in zip(batch, drafts, strict=True)]


def _score_rows(entry: ScheduledSequence) -> list[ScoreRow]:
    num_top = entry.sequence.params.prompt_logprobs or 0
    return [ScoreRow(entry.sequence.token_ids[position + 1], num_top) for position in entry.scored_positions]


def _judge(entry: ScheduledSequence, draft: Draft, drawn: Iterator[tuple[int, TokenLogprob | None]]) -> Verdict:
    scores = tuple(logprob for _, logprob in islice(drawn, len(entry.scored_positions)) if logprob is not None)
    if not entry.samples:
        return Verdict(prompt_logprobs=scores)
    rows = list(islice(drawn, len(draft.token_ids) + 1))
    num_accepted = 0
    for guess, (token_id, _) in zip(draft.token_ids, rows, strict=False):
        if guess != token_id:
            break
        num_accepted += 1
    emitted = rows[: num_accepted + 1]
    logprobs = tuple(logprob for _, logprob in emitted if logprob is not None)
    return Verdict(
        token_ids=tuple(token_id for token_id, _ in emitted),
        num_accepted=num_accepted,
        logprobs=logprobs if entry.sequence.params.logprobs is not None else None,
        prompt_logprobs=scores,
    )
