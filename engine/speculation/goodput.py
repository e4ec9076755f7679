"""Draft lengths by price: the rows of a step go to the tokens most likely to be accepted, as long as that pays.

Source: the goodput rule of SmartSpec (arXiv 2406.14066), over all requests of a batch at once and best token first, as
in TETRIS (arXiv 2502.15197).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.calibration import Calibration
from engine.speculation.controller import FixedDraftLength, keep_whole, longest_useful_draft
from engine.speculation.live_speedup import LiveSpeedup
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.types import Draft, DraftDecision, DraftLimit, DraftReason, StepStats, Verdict

# Tokens; sums in another order differ by less.
_EQUAL = 1e-9


class _Choice(NamedTuple):
    """How long each draft is to be, why not longer, and how long the step should take."""

    lengths: list[int]
    reason: DraftReason
    seconds: float


class GoodputController:
    """Keeps of all drafts what brings the most tokens a second, and no step longer than its requests allow.

    Args:
        times: what a step of so many rows takes.
        survival: how likely drafted tokens are to be accepted; whoever drafts teaches it.
        itl_slo: seconds between two tokens of a request that does not say otherwise; None is no target.
    """

    def __init__(self, times: StepTimes, survival: Survival, *, itl_slo: float | None = None) -> None:
        self._times = times
        self._survival = survival
        self._itl_slo = itl_slo
        self._longest = FixedDraftLength()
        self._speedup = LiveSpeedup()
        self._calibration = Calibration()
        self._is_plain = False
        self._predicted_seconds = 0.0

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[DraftLimit]:
        self._is_plain = self._speedup.wants_plain(len(sequences)) and any(map(longest_useful_draft, sequences))
        if self._is_plain:
            return [DraftLimit(0, DraftReason.PLAIN)] * len(sequences)
        return self._longest.plan(sequences, max_rows=max_rows)

    def trim(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> list[DraftDecision]:
        self._predicted_seconds = self._times.predict(batch.num_rows)[0] if self._times.is_known else 0.0
        chances = [tuple(self._survival.of(entry.sequence, draft)) for entry, draft in zip(batch, drafts, strict=True)]
        if not self._times.is_known or not any(chances):
            return [keep_whole(*each) for each in zip(batch, drafts, chances, strict=True)]
        choice = self._choose(batch, chances)
        self._predicted_seconds = choice.seconds
        return [
            keep_whole(entry, draft, of_draft)
            if length == len(draft.token_ids)
            else DraftDecision(draft, length, choice.reason, of_draft)
            for entry, draft, of_draft, length in zip(batch, drafts, chances, choice.lengths, strict=True)
        ]

    def observe(
        self, batch: ScheduledBatch, decisions: Seq[DraftDecision], verdicts: Seq[Verdict], stats: StepStats
    ) -> None:
        self._times.observe(stats.num_rows, stats.seconds)
        for decision, verdict in zip(decisions, verdicts, strict=True):
            if decision.length:
                chances = decision.chances[: decision.length]
                self._calibration.observe(chances, verdict.num_accepted)
                stats.expected_accepted_tokens += sum(chances)
        self._observe_speedup(batch, stats)
        stats.predicted_seconds = self._predicted_seconds
        stats.speedup = self._speedup.speedup
        stats.calibration_error = self._calibration.error

    def release(self, sequence: Sequence) -> None:
        self._survival.release(sequence)

    def _choose(self, batch: ScheduledBatch, chances: Seq[Seq[float]]) -> _Choice:
        """The lengths that bring the most tokens for their time.

        A second is worth the tokens that these requests, by themselves, get out of it at best. Prompt rows in the same
        step make it longer whatever is drafted, so what a drafted row is worth is what it adds to the whole step.
        """
        # Chances never increase within a draft, so the best so many of all are a beginning of each.
        candidates = sorted(
            ((chance, place) for place, of_draft in enumerate(chances) for chance in of_draft), reverse=True
        )
        num_sampling = sum(entry.samples for entry in batch)
        gains = list(accumulate((chance for chance, _ in candidates), initial=float(num_sampling)))
        alone = self._times.predict(num_sampling, len(candidates))
        seconds = alone if batch.num_rows == num_sampling else self._times.predict(batch.num_rows, len(candidates))
        worth = max(gain / time for gain, time in zip(gains, alone, strict=True))
        values = [gain - worth * time for gain, time in zip(gains, seconds, strict=True)]
        best_of_all = _first_best(values)
        best = _first_best(values[: self._most_rows(batch, seconds) + 1])
        lengths = [0] * len(batch)
        for _, place in candidates[:best]:
            lengths[place] += 1
        reason = DraftReason.LATENCY if best < best_of_all else DraftReason.PRICE
        return _Choice(lengths, reason, seconds[best])

    def _most_rows(self, batch: ScheduledBatch, seconds: Seq[float]) -> int:
        """Drafted tokens with which even a late step keeps the inter-token targets of all who take part in it."""
        targets = [
            target
            for entry in batch
            if entry.samples and (target := entry.sequence.speculation.itl_slo or self._itl_slo) is not None
        ]
        if not targets:
            return len(seconds) - 1
        return sum(self._times.late(each) <= min(targets) for each in seconds[1:])

    def _observe_speedup(self, batch: ScheduledBatch, stats: StepStats) -> None:
        num_sequences = len(batch)
        if not all(entry.samples and entry.num_tokens == 1 for entry in batch):
            return  # prompts are computed in this step, as many tokens with drafts as without
        if not stats.num_draft_tokens:
            self._speedup.observe_plain(num_sequences, stats.seconds)
        if not self._is_plain:
            seconds = stats.seconds + stats.propose_seconds
            self._speedup.observe_drafted(num_sequences, stats.num_generated_tokens, seconds)


def _first_best(values: Seq[float]) -> int:
    """Of equal values the first, for fewer rows."""
    most = max(values)
    return next(place for place, value in enumerate(values) if value >= most - _EQUAL)
