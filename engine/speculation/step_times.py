"""How long a step takes, by its rows: what a draft is priced with. Knows numbers only; provokes no step.

A machine reads the same weights for one row as for eight, and computes eight times as much: somewhere in between the
one begins to cost more than the other, and where that is only a measurement tells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

# Row counts with a time of their own; steps of others count for the next larger one.
ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
# How much the newest step counts: times drift with contexts and with the machine, and single ones are noise.
_NEWEST = 0.05
# A step that took so many times the expected time was held up by something else, unless so many do in a row.
_OUTLIER = 4.0
_MOST_OUTLIERS = 5
# Mean relative deviations of a step's time from the expected one that a late step is behind it; of normally
# distributed times fewer than one in a hundred are later.
_LATE = 3.0


class StepTimes:
    """A table of seconds, filled by a profile and refined by every step.

    Args:
        profile: seconds by number of rows, as far as they were measured before; the more, the better the first drafts.
    """

    def __init__(self, profile: Mapping[int, float] | None = None) -> None:
        self._seconds: dict[int, float] = {}
        self._num_outliers: dict[int, int] = {}
        self._deviation = 0.0
        self._rising: list[tuple[int, float]] | None = None
        for num_rows, seconds in (profile or {}).items():
            self._seconds[_bucket(num_rows)] = seconds

    @property
    def is_known(self) -> bool:
        """Whether there is more than one time to compare."""
        return len(self._seconds) > 1

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of ``num_rows`` rows took so long."""
        bucket = _bucket(num_rows)
        known = self._seconds.get(bucket)
        self._rising = None
        if known is None:
            self._seconds[bucket] = seconds
        elif seconds >= _OUTLIER * known:
            self._num_outliers[bucket] = self._num_outliers.get(bucket, 0) + 1
            if self._num_outliers[bucket] >= _MOST_OUTLIERS:
                self._seconds[bucket] = seconds
        else:
            self._num_outliers[bucket] = 0
            self._deviation += _NEWEST * (abs(seconds / known - 1) - self._deviation)
            self._seconds[bucket] = known + _NEWEST * (seconds - known)

    def predict(self, num_rows: int, num_more: int = 0) -> list[float]:
        """Seconds of steps of ``num_rows``, ``num_rows + 1`` ... ``num_rows + num_more`` rows, never decreasing.

        Between the measured counts a straight line, beyond the last the proportion of its rows.
        """
        if self._rising is None:
            self._rising = _never_decreasing(self._seconds)
        return [_at(self._rising, count) for count in range(num_rows, num_rows + num_more + 1)]

    def late(self, seconds: float) -> float:
        """What at most about one in a hundred steps takes longer than, where ``seconds`` is expected."""
        return seconds * (1 + _LATE * self._deviation)


def _never_decreasing(seconds_of: Mapping[int, float]) -> list[tuple[int, float]]:
    longest = 0.0
    rising = []
    for count, seconds in sorted(seconds_of.items()):
        longest = max(longest, seconds)
        rising.append((count, longest))
    return rising


def _bucket(num_rows: int) -> int:
    place = bisect_left(ROW_COUNTS, num_rows)
    return ROW_COUNTS[min(place, len(ROW_COUNTS) - 1)]


def _at(rising: list[tuple[int, float]], num_rows: int) -> float:
    place = bisect_left(rising, (num_rows, 0.0))
    if place == 0:
        return rising[0][1]
    if place == len(rising):
        last_rows, last_seconds = rising[-1]
        return last_seconds * max(num_rows / last_rows, 1.0)
    (low, low_seconds), (high, high_seconds) = rising[place - 1], rising[place]
    return low_seconds + (high_seconds - low_seconds) * (num_rows - low) / (high - low)
