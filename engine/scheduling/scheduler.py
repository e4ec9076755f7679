"""Decides who runs in the next step, how many tokens each computes, and how long its draft may be.

There is no prefill phase and no decode phase: every sequence has ``num_computed_tokens``, which tries to catch up with
its length. The scheduler knows neither tensors nor what a drafter will propose.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import InvalidRequest
from engine.scheduling.block_manager import BlockManager
from engine.sequence import Sequence
from engine.speculation.controller import DraftLengthController
from engine.types import DraftReason


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's share of a step.

    Its rows are the ``num_tokens`` confirmed tokens from ``num_computed_tokens`` on, then its draft:

        token_ids   |--- computed ---|--- num_tokens ---|- the rest of the prompt -|
        rows                         |--- num_tokens ---|= draft =|      (a draft only if there is no rest)
    """

    sequence: Sequence
    num_tokens: int
    max_draft_length: int = 0
    limited_by: DraftReason | None = None

    @property
    def catches_up(self) -> bool:
        """Whether this step computes the last confirmed token, so that the next one can be drawn."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens

    @property
    def samples(self) -> bool:
        return self.catches_up and self.sequence.num_remaining_tokens > 0

    @property
    def scored_positions(self) -> range:
        """Positions whose logits score the prompt token behind them; empty unless the request asked for that."""
        sequence = self.sequence
        if not sequence.needs_prompt_logprobs:
            return range(0)
        first = max(sequence.num_computed_tokens, len(sequence.prompt_logprobs) - 1)
        return range(first, min(sequence.num_computed_tokens + self.num_tokens, sequence.num_prompt_tokens - 1))


@dataclass(slots=True)
class ScheduledBatch:
    """Who takes part in a step, and what making room for them cost."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    num_admitted_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of confirmed tokens; drafts come on top."""
        return sum(entry.num_tokens for entry in self.entries)

    def __iter__(self) -> Iterator[ScheduledSequence]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Scheduler:
    """First come, first served, over a token budget and a pool of blocks.

    Confirmed tokens come before drafts: every running sequence gets its rows, then waiting ones are admitted, and only
    what is left of budget and blocks goes to drafts. So nobody is ever preempted or kept waiting by a draft.
    """

    def __init__(self, block_manager: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "every running sequence needs a row"
        self.block_manager = block_manager
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def check_fits(self, num_tokens: int) -> None:
        """Refuse a sequence that could not finish even with the whole pool to itself.

        Args:
            num_tokens: prompt plus most output.

        Raises:
            InvalidRequest: it needs more blocks than there are.
        """
        manager = self.block_manager
        num_blocks = manager.num_blocks_for(num_tokens)
        if num_blocks > manager.num_usable_blocks:
            raise InvalidRequest(
                f"prompt and max_tokens need {num_tokens} tokens of key-value cache, "
                f"but it holds {manager.num_usable_blocks * manager.block_size}",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and free its blocks."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.block_manager.release(sequence)

    def schedule(self, controller: DraftLengthController) -> ScheduledBatch:
        """Choose the next step. Blocks for all its rows, drafts included, are allocated on return."""
        batch = ScheduledBatch()
        self._schedule_running(batch)
        if not batch.num_preemptions:
            self._admit_waiting(batch)
        self._allow_drafts(batch, controller)
        return batch

    def _schedule_running(self, batch: ScheduledBatch) -> None:
        budget = self._max_num_batched_tokens
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            # A long prompt leaves one row for each sequence behind it, so that nobody's stream stalls.
            num_behind = len(self.running) - index - 1
            num_tokens = min(sequence.num_uncomputed_tokens, budget - num_behind)
            if not self._make_room(sequence, num_tokens, batch):
                break
            batch.entries.append(ScheduledSequence(sequence, num_tokens))
            budget -= num_tokens
            index += 1

    def _make_room(self, sequence: Sequence, num_tokens: int, batch: ScheduledBatch) -> bool:
        """Allocate, preempting from the end of the line; False if the sequence itself had to go."""
        while not self.block_manager.grow(sequence, sequence.num_computed_tokens + num_tokens):
            victim = self.running.pop()
            self.block_manager.release(victim)
            victim.num_preemptions += 1
            self.waiting.appendleft(victim)
            batch.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, batch: ScheduledBatch) -> None:
        while self.waiting and len(self.running) < self._max_num_seqs:
            budget = self._max_num_batched_tokens - batch.num_rows
            sequence = self.waiting[0]
            prefix = self.block_manager.find_prefix(sequence)
            if budget <= 0 or not self._has_room_to_start(sequence, prefix):
                return
            self.waiting.popleft()
            self.running.append(sequence)
            self.block_manager.adopt_prefix(sequence, prefix)
            self._count_admission(sequence, batch)
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            has_grown = self.block_manager.grow(sequence, sequence.num_computed_tokens + num_tokens)
            assert has_grown, "admitted a sequence without room for it"
            batch.entries.append(ScheduledSequence(sequence, num_tokens))

    def _has_room_to_start(self, sequence: Sequence, prefix: list[int]) -> bool:
        """Whether all confirmed tokens and the next one fit, and each running sequence can still take a block."""
        manager = self.block_manager
        num_needed = manager.num_blocks_for(len(sequence.token_ids) + 1) - len(prefix)
        if self.running:
            return num_needed + len(self.running) <= manager.num_available_without(prefix)
        # Alone it always starts: check_fits has seen that it can finish, perhaps to the last token of the pool.
        return True

    @staticmethod
    def _count_admission(sequence: Sequence, batch: ScheduledBatch) -> None:
        # A preempted sequence that comes back finds its own blocks; that is no hit on the prompt.
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            sequence.scheduled_at = time.monotonic()
            batch.num_admitted_tokens += sequence.num_prompt_tokens
            batch.num_cached_tokens += sequence.num_computed_tokens

    def _allow_drafts(self, batch: ScheduledBatch, controller: DraftLengthController) -> None:
        sampling = [entry for entry in batch if entry.samples]
        budget = self._max_num_batched_tokens - batch.num_rows
        limits = controller.plan([entry.sequence for entry in sampling], max_rows=budget)
        for entry, (length, reason) in zip(sampling, limits, strict=True):
            # Blocks that the running sequences may need for their next tokens are not for drafts.
            room = self.block_manager.room_behind(entry.sequence, num_reserved=len(self.running))
            if length > room:
                length, reason = room, DraftReason.MEMORY
            has_grown = self.block_manager.grow(entry.sequence, len(entry.sequence.token_ids) + length)
            assert has_grown, "allowed a draft without room for it"
            entry.max_draft_length, entry.limited_by = length, reason
