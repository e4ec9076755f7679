"""Draft lengths by price: the rows of a step go to the tokens most likely to be accepted, as long as that pays.

Source: the goodput rule of SmartSpec (arXiv 2406.14066), over all requests of a batch at once and best token first, as
in TETRIS (arXiv 2502.15197).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.controller import FixedDraftLength
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.types import Draft, Verdict

# A request whose drafts were not worth their rows for so many steps gets one token verified, to see if they are now.
_STEPS_BETWEEN_PROBES = 16


class GoodputController:
    """Keeps of all drafts what brings the most tokens a second.

    Args:
        times: what a step of so many rows takes.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._survival = Survival()
        self._longest = FixedDraftLength()
        self._steps_without: dict[str, int] = {}

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[int]:
        return self._longest.plan(sequences, max_rows=max_rows)

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[Draft]:
        if not any(draft.token_ids for draft in drafts):
            return list(drafts)
        if not self._times.is_known:
            return list(drafts)
        chances = [self._survival.of(entry.sequence, draft) for entry, draft in zip(batch, drafts, strict=True)]
        lengths = self._best_lengths(batch, chances)
        for place, (entry, draft) in enumerate(zip(batch, drafts, strict=True)):
            if draft.token_ids:
                lengths[place] = self._probe(entry.sequence, lengths[place])
        return [_first(draft, length) for draft, length in zip(drafts, lengths, strict=True)]

    def observe(
        self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict], *, num_rows: int, seconds: float
    ) -> None:
        if num_rows:
            self._times.observe(num_rows, seconds)
        for entry, draft, verdict in zip(batch, drafts, verdicts, strict=True):
            if draft.token_ids:
                self._survival.observe(entry.sequence, draft, verdict.num_accepted)

    def release(self, sequence: Sequence) -> None:
        self._survival.release(sequence)
        self._steps_without.pop(sequence.request_id, None)

    def _best_lengths(self, batch: ScheduledBatch, chances: Seq[Seq[float]]) -> list[int]:
        """The lengths for which expected tokens, divided by the expected time, are most."""
        # Chances never increase within a draft, so the best so many of all are a beginning of each.
        candidates = sorted(
            ((chance, place) for place, of_draft in enumerate(chances) for chance in of_draft), reverse=True
        )
        seconds = self._times.predict(batch.num_rows, len(candidates))
        gain = float(sum(entry.samples for entry in batch))
        best, best_goodput = 0, gain / seconds[0]
        for number, (chance, _) in enumerate(candidates, start=1):
            gain += chance
            if gain / seconds[number] > best_goodput:
                best, best_goodput = number, gain / seconds[number]
        lengths = [0] * len(batch)
        for _, place in candidates[:best]:
            lengths[place] += 1
        return lengths

    def _probe(self, sequence: Sequence, length: int) -> int:
        """The length, or 1 if it has been 0 for long."""
        number = 0 if length else self._steps_without.get(sequence.request_id, 0) + 1
        is_due = number >= _STEPS_BETWEEN_PROBES
        self._steps_without[sequence.request_id] = 0 if is_due else number
        return 1 if is_due else length


def _first(draft: Draft, length: int) -> Draft:
    return Draft(draft.token_ids[:length], draft.probabilities[:length], draft.source)
