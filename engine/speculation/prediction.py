"""Drafts from what the client says the output will be."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.drafter import NO_DRAFT
from engine.types import Draft, Verdict

NAME = "prediction"


class PredictionDrafter:
    """Serves the sequences that are at a known place of their prediction."""

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [_predict(entry) for entry in batch]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass  # a sequence follows its own prediction

    def release(self, sequence: Sequence) -> None:
        pass


def _predict(entry: ScheduledSequence) -> Draft:
    prediction = entry.sequence.prediction
    if prediction is None or not entry.max_draft_length or not entry.sequence.follows_prediction:
        return NO_DRAFT
    token_ids = prediction.following(entry.max_draft_length)
    agreement = (prediction.num_in_step + 1) / (prediction.num_in_step + 2)  # the rule of succession
    return Draft(token_ids, (agreement,) * len(token_ids), NAME)
