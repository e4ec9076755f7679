"""Draft lengths by price: the rows of a step go to the tokens most likely to be accepted, as long as that pays.

Source: the goodput rule of SmartSpec (arXiv 2406.14066), over all requests of a batch at once and best token first, as
in TETRIS (arXiv 2502.15197).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.calibration import Calibration
from engine.speculation.controller import FixedDraftLength, keep_whole, longest_useful_draft
from engine.speculation.latency import strictest_target
from engine.speculation.live_speedup import LiveSpeedup
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.step_stats import StepStats
from engine.types import Draft, DraftDecision, DraftLimit, DraftReason, Verdict

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
        clock: seconds that never go back.
    """

    def __init__(
        self,
        times: StepTimes,
        survival: Survival,
        *,
        itl_slo: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._times = times
        self._survival = survival
        self._itl_slo = itl_slo
        self._longest = FixedDraftLength()
        self._speedup = LiveSpeedup()
        self._calibration = Calibration()
        self._clock = clock
        self._planned_at = clock()
        self._is_plain = False
        self._predicted_seconds = 0.0

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[DraftLimit]:
        self._is_plain = self._speedup.wants_plain(len(sequences)) and any(map(longest_useful_draft, sequences))
        limits = self._longest.plan(sequences, max_rows=max_rows)
        if self._is_plain:
            limits = [
                limit if limit.reason is DraftReason.OFF else DraftLimit(0, DraftReason.PLAIN) for limit in limits
            ]
        self._planned_at = self._clock()
        return limits

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
        pass  # what is known of a request is its drafters'

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
        target = strictest_target(batch, self._itl_slo)
        if target is None:
            return len(seconds) - 1
        left = target - (self._clock() - self._planned_at)  # drafting has taken the rest
        return sum(self._times.late(each) <= left for each in seconds[1:])

    def _observe_speedup(self, batch: ScheduledBatch, stats: StepStats) -> None:
        num_sequences = len(batch)
        if not all(entry.samples and entry.num_tokens == 1 for entry in batch):
            # Prompts are computed in this step, so it cannot be compared; nor is the next one plain in its place.
            if self._is_plain:
                self._speedup.forgo_plain(sum(entry.samples for entry in batch))
            return
        if not stats.num_draft_tokens:
            self._speedup.observe_plain(num_sequences, stats.seconds)
        if any(map(_may_be_drafted, batch)):
            seconds = stats.seconds + stats.propose_seconds
            self._speedup.observe_drafted(num_sequences, stats.num_generated_tokens, seconds)


def _may_be_drafted(entry: ScheduledSequence) -> bool:
    """Whether drafts were looked for, or would have been with more room."""
    return entry.max_draft_length > 0 or entry.limited_by in (DraftReason.MEMORY, DraftReason.BUDGET)


def _first_best(values: Seq[float]) -> int:
    """Of equal values the first, for fewer rows."""
    most = max(values)
    return next(place for place, value in enumerate(values) if value >= most - _EQUAL)
