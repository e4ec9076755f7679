"""Drafts from a smaller model with the target's vocabulary, for all sequences of a step together.

Its keys and values lie in a pool of its own, in the blocks that the target's tables name. It draws with the noise that
the target will draw with, so a sampled draft agrees with a sampled output as often as such noise allows. It costs
nothing where no draft is allowed: what it has missed meanwhile it computes when it is next asked.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from engine.model.flat_batch import FlatBatch, Span, lay_out
from engine.model.upload import upload
from engine.sampling.draft_sampler import DraftSampler, Drawn
from engine.sampling.logits import reads_draft
from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.agreement import AgreementCurve
from engine.speculation.draft_cache import DraftCache
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.growing_draft import GrowingDraft
from engine.types import Draft, Verdict

NAME = "model"


class DraftRunner(Protocol):
    """Runs the draft model; see ``ModelRunner.forward_flat``."""

    def forward_flat(self, flat: FlatBatch, input_ids: torch.Tensor | None = None) -> torch.Tensor: ...


class DraftLimits(NamedTuple):
    """What bounds the draft model.

    Attributes:
        block_size: tokens in a block, as in the target's pool.
        max_num_rows: most rows of one forward.
        max_model_len: tokens of its context; behind them it drafts nothing.
        vocab_size: rows of its embedding, which may be padded otherwise than the target's.
        target_vocab_size: width of the target's logits.
    """

    block_size: int
    max_num_rows: int
    max_model_len: int
    vocab_size: int
    target_vocab_size: int


class _Request(NamedTuple):
    """Who is to be drafted, how long, and how many confirmed tokens the draft model lacks."""

    sequence: Sequence
    max_length: int
    num_missing: int


class DraftModelDrafter:
    """Proposes what the draft model would say.

    Args:
        min_survival: drafting stops where the estimated chance that all tokens so far are accepted falls below this.
        looks_at_each: whether each token is looked at before the next is drafted, so that drafting can stop early. That
            is right where nothing waits for a device. Otherwise drafts are cut afterwards, and all their tokens come to
            the host in one copy.
    """

    def __init__(
        self,
        runner: DraftRunner,
        sampler: DraftSampler,
        limits: DraftLimits,
        *,
        looks_at_each: bool,
        min_survival: float = 0.3,
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._limits = limits
        self._looks_at_each = looks_at_each
        self._min_survival = min_survival
        self._cache = DraftCache(limits.block_size)
        # Logits of greedy requests and noisy scores of sampled ones differ in what a margin means.
        self._greedy, self._sampled = AgreementCurve(), AgreementCurve()
        # Of the last step: tokens with their margins.
        self._drawn: dict[str, list[tuple[int, float]]] = {}

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        requests = self._requests(batch)
        if not requests:
            return [NO_DRAFT] * len(batch)
        drafts = {draft.sequence.request_id: draft for draft in self._grow(*self._catch_up(requests))}
        return [self._finish(drafts.get(entry.sequence.request_id)) for entry in batch]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        """Learn what margins are worth, also from tokens that were drawn and not proposed."""
        for entry, verdict in zip(batch, verdicts, strict=True):
            drawn = self._drawn.pop(entry.sequence.request_id, ())
            if not drawn:
                self._cache.settle(entry.sequence)
            curve = self._curve(entry.sequence)
            for (token_id, margin), right in zip(drawn, verdict.token_ids, strict=False):
                curve.learn(margin, agreed=token_id == right)
                if token_id != right:
                    break

    def release(self, sequence: Sequence) -> None:
        self._cache.release(sequence)
        self._drawn.pop(sequence.request_id, None)

    def _requests(self, batch: ScheduledBatch) -> list[_Request]:
        """A sequence without output waits for its first token only; it is not to wait for a second model's prefill."""
        requests = []
        for entry in batch:
            sequence = entry.sequence
            room = self._limits.max_model_len - len(sequence.token_ids) + 1  # the last token drafted is not computed
            max_length = min(entry.max_draft_length, room)
            if max_length > 0 and sequence.num_output_tokens:
                num_missing = len(sequence.token_ids) - self._cache.num_computed(sequence)
                requests.append(_Request(sequence, max_length, num_missing))
        return requests

    def _catch_up(self, requests: list[_Request]) -> tuple[list[GrowingDraft], torch.Tensor]:
        """Compute what is missing, in one forward; who lacks least comes first, and the others go on in the next step.

        Returns:
            Those that lack nothing any more, and for each the logits of its last confirmed token.
        """
        budget = self._limits.max_num_rows
        spans: list[Span] = []
        growing: list[GrowingDraft] = []
        for sequence, max_length, num_missing in sorted(requests, key=lambda request: request.num_missing):
            num_rows = min(num_missing, budget)
            if not num_rows:
                break
            start = len(sequence.token_ids) - num_missing
            tokens = self._known(sequence.token_ids[start : start + num_rows])
            spans.append(Span(tokens, start, sequence.block_table, [num_rows - 1]))
            self._cache.compute(sequence, num_rows)
            budget -= num_rows
            if num_rows == num_missing:
                growing.append(GrowingDraft(sequence, max_length))
        # Whoever did not catch up was served last.
        return growing, self._forward(spans)[: len(growing)]

    def _grow(self, drafts: list[GrowingDraft], logits: torch.Tensor) -> list[GrowingDraft]:
        """Draft a token of each, feed it to the model, and so on while any wants more."""
        growing = drafts
        unseen: list[tuple[list[GrowingDraft], Drawn]] = []
        while growing:
            drawn = self._sampler.draw(logits, [draft.next_row() for draft in growing])
            unseen.append((growing, drawn))
            if self._looks_at_each or any(reads_draft(draft.sequence.params) for draft in growing):
                self._look(unseen)
            going_on = [i for i, draft in enumerate(growing) if draft.wants_more]
            if not going_on:
                break
            is_same = len(going_on) == len(growing)
            fed = drawn.tokens if is_same else drawn.tokens[upload(going_on, logits.device)]
            growing = [growing[i] for i in going_on]
            logits = self._forward([draft.feed() for draft in growing], fed)
        self._look(unseen)
        for draft in drafts:
            self._cache.compute_draft(draft.sequence, draft.fed_tokens)
        return drafts

    def _look(self, unseen: list[tuple[list[GrowingDraft], Drawn]]) -> None:
        """Tell the drafts which tokens they have got. One device-to-host copy."""
        if not unseen:
            return
        columns = [column.double() for _, drawn in unseen for column in drawn]  # float64 holds every id exactly
        numbers = iter(torch.cat(columns).tolist())
        for growing, _ in unseen:
            tokens, margins = ([next(numbers) for _ in growing] for _ in range(2))
            for draft, token, margin in zip(growing, tokens, margins, strict=True):
                probability = self._curve(draft.sequence).probability(margin)
                draft.take(int(token), margin, probability, min_survival=self._min_survival)
        unseen.clear()

    def _forward(self, spans: list[Span], input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits as wide as the target's."""
        logits = self._runner.forward_flat(lay_out(spans, self._limits.block_size), input_ids)
        width = self._limits.target_vocab_size
        if logits.shape[1] < width:
            logits = functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)
        return logits[:, :width]

    def _known(self, token_ids: list[int]) -> list[int]:
        """Ids in the padding of the target's vocabulary mean nothing, and the draft model may have no row for them."""
        if self._limits.vocab_size >= self._limits.target_vocab_size:
            return token_ids
        return [token_id if token_id < self._limits.vocab_size else 0 for token_id in token_ids]

    def _finish(self, growing: GrowingDraft | None) -> Draft:
        if growing is None:
            return NO_DRAFT
        self._drawn[growing.sequence.request_id] = growing.drawn
        return Draft(tuple(growing.token_ids), tuple(growing.probabilities), NAME)

    def _curve(self, sequence: Sequence) -> AgreementCurve:
        return self._sampled if sequence.params.temperature > 0 else self._greedy
