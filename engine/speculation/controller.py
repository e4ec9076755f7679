"""Decides how long a draft each sequence may have in the next step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

from engine.params import SpeculationMode
from engine.sequence import Sequence
from engine.types import Draft, Verdict

if TYPE_CHECKING:  # the scheduler asks for a plan
    from engine.scheduling.scheduler import ScheduledBatch


class DraftLengthController(Protocol):
    """Bounds drafts before anything is drafted, and cuts them once it is."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[int]:
        """The longest draft of each sequence; their sum is at most ``max_rows``."""

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[Draft]:
        """What of each draft is to be verified: a beginning of it, possibly nothing."""

    def observe(
        self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict], *, num_rows: int, seconds: float
    ) -> None:
        """Learn from a step of ``num_rows`` rows that took so long. The drafts are those that were verified."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended. Unknown sequences are fine."""


class FixedDraftLength:
    """Every request gets the length it asked for, or the server's; the first come are served first."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[int]:
        lengths = []
        for sequence in sequences:
            length = min(longest_useful_draft(sequence), max_rows)
            max_rows -= length
            lengths.append(length)
        return lengths

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[Draft]:
        return list(drafts)

    def observe(
        self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict], *, num_rows: int, seconds: float
    ) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass


def longest_useful_draft(sequence: Sequence) -> int:
    """A draft brings one token more than it has, so one as long as what remains would be cut."""
    if sequence.speculation.mode is SpeculationMode.OFF:
        return 0
    return min(sequence.longest_draft, sequence.num_remaining_tokens - 1)
