"""Drafts from what the client says the output will be, and from another drafter wherever that does not help."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.drafter import Drafter
from engine.types import Draft, Verdict

NAME = "prediction"


class PredictionDrafter:
    """Serves the sequences that are at a known place of their prediction.

    Args:
        other: drafts for all the rest.
    """

    def __init__(self, other: Drafter) -> None:
        self._other = other

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        others = ScheduledBatch([entry for entry in batch if not _is_predicted(entry)])
        drafts = iter(self._other.propose(others))
        return [_predict(entry) if _is_predicted(entry) else next(drafts) for entry in batch]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        self._other.observe(batch, drafts, verdicts)

    def release(self, sequence: Sequence) -> None:
        self._other.release(sequence)


def _is_predicted(entry: ScheduledSequence) -> bool:
    return entry.max_draft_length > 0 and entry.sequence.follows_prediction


def _predict(entry: ScheduledSequence) -> Draft:
    prediction = entry.sequence.prediction
    assert prediction is not None
    token_ids = prediction.following(entry.max_draft_length)
    agreement = (prediction.num_in_step + 1) / (prediction.num_in_step + 2)  # the rule of succession
    return Draft(token_ids, (agreement,) * len(token_ids), NAME)
