"""What every drafter can do, and the one that never drafts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.types import Draft, Verdict

NO_DRAFT = Draft()


class Drafter(Protocol):
    """Proposes tokens; never decides them."""

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        """One draft an entry of ``batch``, at most ``max_draft_length`` long, empty where nothing is worth a row."""

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        """Learn what the target said. Called once a step, before the verdicts are committed."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended. Unknown sequences are fine."""


class NullDrafter:
    """Plain decoding: the draft of length 0. The reference that every equality test compares with."""

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [NO_DRAFT] * len(batch)

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass
