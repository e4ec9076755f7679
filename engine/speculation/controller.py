"""Decides how long a draft each sequence may have in the next step, and how much of it is verified."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

from engine.params import SpeculationMode
from engine.sequence import Sequence
from engine.step_stats import StepStats
from engine.types import Draft, DraftDecision, DraftLimit, DraftReason, Verdict

if TYPE_CHECKING:  # the scheduler asks for a plan
    from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence

# What a drafter that takes time gives where it was not asked because it would not pay.
PAUSED = Draft(source="paused")


class DraftLengthController(Protocol):
    """Bounds drafts before anything is drafted, and cuts them once it is."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[DraftLimit]:
        """The longest draft of each sequence; their sum is at most ``max_rows``."""

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[DraftDecision]:
        """What of each draft is to be verified: a beginning of it, possibly nothing."""

    def observe(
        self, batch: ScheduledBatch, decisions: Seq[DraftDecision], verdicts: Seq[Verdict], stats: StepStats
    ) -> None:
        """Learn from a step, and write what is known of it into ``stats``."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended. Unknown sequences are fine."""


class FixedDraftLength:
    """Every request gets the length it asked for, or the server's; the first come are served first."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[DraftLimit]:
        limits = []
        for sequence in sequences:
            useful = longest_useful_draft(sequence)
            length = min(useful, max_rows)
            max_rows -= length
            reason = DraftReason.BUDGET if length < useful else None if useful else DraftReason.OFF
            limits.append(DraftLimit(length, reason))
        return limits

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[DraftDecision]:
        return [keep_whole(entry, draft) for entry, draft in zip(batch, drafts, strict=True)]

    def observe(
        self, batch: ScheduledBatch, decisions: Seq[DraftDecision], verdicts: Seq[Verdict], stats: StepStats
    ) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass


def longest_useful_draft(sequence: Sequence) -> int:
    """A draft brings one token more than it has, so one as long as what remains would be cut."""
    if sequence.speculation.mode is SpeculationMode.OFF:
        return 0
    return max(min(sequence.longest_draft, sequence.num_remaining_tokens - 1), 0)


def keep_whole(entry: ScheduledSequence, draft: Draft, chances: tuple[float, ...] = ()) -> DraftDecision:
    """All of a proposal, and the reason why it is not longer."""
    length = len(draft.token_ids)
    if not entry.samples:
        return DraftDecision(draft)
    if length == entry.max_draft_length and entry.limited_by is not None:
        return DraftDecision(draft, length, entry.limited_by, chances)
    if length:
        return DraftDecision(draft, length, DraftReason.WHOLE, chances)
    return DraftDecision(draft, 0, DraftReason.PAUSED if draft is PAUSED else DraftReason.NO_GUESS)
