"""Whether a drafter that takes time is asked at all: only where its drafts should be worth that time.

Knows what asking it has cost and brought; knows nothing of how it drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.latency import strictest_target
from engine.speculation.step_times import StepTimes
from engine.types import Draft

# Seconds between two trials of a drafter that is not worth asking: at first, and after trials in vain.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.6
# The latter in times that asking takes, so that trials cost little, and the most however long that is.
_LONGEST_WAIT_IN_DRAFTS, _LIMIT = 64, 4.0
# How much the newest draft counts in what a request's drafts are worth, and in what all requests' are.
_NEWEST, _NEWEST_OF_ALL = 0.25, 0.05
# How much the newest cost counts; drafts that also catch up with a prompt take longer than those that follow.
_FASTER, _SLOWER = 0.3, 0.05
# A request is not worth a draft that brings less than so many tokens.
_LEAST_GAIN = 0.05


class DraftGate:
    """Decides, for all sequences of a step together, by tokens a second with and without the drafter.

    Args:
        times: what a step of so many rows takes.
        itl_slo: seconds between two tokens of a request that does not say otherwise; None is no target.
        clock: seconds that never go back.
    """

    def __init__(
        self, times: StepTimes, *, itl_slo: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._times = times
        self._itl_slo = itl_slo
        self._clock = clock
        self._seconds_for: dict[int, float] = {}
        self._worth_of: dict[str, float] = {}
        self._worth: float | None = None
        self._wait = _FIRST_WAIT
        self._asked_all_at = clock()
        self._is_promising = False

    def choose(self, batch: ScheduledBatch, places: Seq[int], expected: Seq[float]) -> list[int]:
        """Which entries of the batch the drafter is to be asked for.

        Args:
            places: of the entries that it may draft for.
            expected: for each the tokens that should be accepted of what others propose.
        """
        if self._worth is None or not self._times.is_known:  # nothing is known yet
            return list(places)
        if not self._keeps_target(batch, len(places)):
            return []
        worth = [self._worth_of.get(batch.entries[place].sequence.request_id, self._worth) for place in places]
        chosen = [
            place for place, mine, others in zip(places, worth, expected, strict=True) if mine - others > _LEAST_GAIN
        ]
        gain = sum(max(mine - others, 0.0) for mine, others in zip(worth, expected, strict=True))
        if chosen and self._pays(batch, len(chosen), sum(expected), gain):
            self._wait = _FIRST_WAIT
            if self._clock() - self._asked_all_at < _LONGEST_WAIT:
                return chosen
        elif not self._is_promising:
            if self._clock() - self._asked_all_at < self._wait:
                return []
            self._wait = min(2 * self._wait, self._longest_wait(len(places)))
        self._asked_all_at = self._clock()
        return list(places)

    def observe(self, batch: ScheduledBatch, expected: Seq[float], seconds: float) -> None:
        """The drafter was asked for ``batch`` and took so long; so many tokens of each draft should be accepted."""
        known = self._seconds_for.get(len(batch), seconds)
        self._seconds_for[len(batch)] = known + (_FASTER if seconds < known else _SLOWER) * (seconds - known)
        for entry, tokens in zip(batch, expected, strict=True):
            name = entry.sequence.request_id
            overall = tokens if self._worth is None else self._worth
            before = self._worth_of.get(name, overall)
            self._worth_of[name] = before + _NEWEST * (tokens - before)
            self._worth = overall + _NEWEST_OF_ALL * (tokens - overall)

    def judge(self, batch: ScheduledBatch, drafts: Seq[Draft], num_right: int, expected: float) -> None:
        """The drafter has made these drafts in a step, and of so many the first token was right, verified or not.

        If later tokens are as good and that would pay, the drafter may have become better, and is tried again at once.
        Otherwise trials in vain stay rare.

        Args:
            expected: tokens that should have been accepted of what others proposed for the same sequences.
        """
        share = num_right / len(drafts)
        good = sum(share**place for draft in drafts for place in range(1, len(draft.token_ids) + 1))
        gain = max(good - expected, 0.0)
        self._is_promising = self._times.is_known and self._pays(batch, len(drafts), expected, gain)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended. Unknown sequences are fine."""
        self._worth_of.pop(sequence.request_id, None)

    def _keeps_target(self, batch: ScheduledBatch, num_asked: int) -> bool:
        """Whether a step that waits for so many drafts keeps the inter-token targets of all who take part in it."""
        target = strictest_target(batch, self._itl_slo)
        if target is None:
            return True
        return self._times.late(self._times.predict(batch.num_rows)[0] + self._drafting_seconds(num_asked)) <= target

    def _pays(self, batch: ScheduledBatch, num_asked: int, expected: float, gain: float) -> bool:
        """Whether tokens a second are more with ``gain`` more tokens, their rows, and the time to draft them."""
        num_tokens = sum(entry.samples for entry in batch) + expected
        num_rows = batch.num_rows + round(expected)
        seconds = self._times.predict(num_rows, max(round(gain), 1))
        drafting = self._drafting_seconds(num_asked)
        return (num_tokens + gain) / (seconds[-1] + drafting) > num_tokens / seconds[0]

    def _longest_wait(self, num_asked: int) -> float:
        return min(max(_LONGEST_WAIT, _LONGEST_WAIT_IN_DRAFTS * self._drafting_seconds(num_asked)), _LIMIT)

    def _drafting_seconds(self, num_asked: int) -> float:
        """What asking for so many took; of the nearest number of which that is known, in proportion if it is less."""
        nearest = min(self._seconds_for, key=lambda number: abs(number - num_asked))
        return self._seconds_for[nearest] * max(num_asked / nearest, 1.0)
