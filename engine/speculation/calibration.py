"""Whether drafted tokens are accepted as often as they were expected to be. Plain numbers."""

from __future__ import annotations

from collections.abc import Sequence as Seq

_NUM_BINS = 10
# Each verified token leaves so much of the weight of the earlier ones.
_FADE = 0.998


class Calibration:
    """Chances beside what came of them, the older ones fading."""

    def __init__(self) -> None:
        self._weight = [0.0] * _NUM_BINS
        self._expected = [0.0] * _NUM_BINS
        self._accepted = [0.0] * _NUM_BINS

    def observe(self, chances: Seq[float], num_accepted: int) -> None:
        """Of a draft that was verified, with the chance of each token that it and all before it are accepted."""
        for place, chance in enumerate(chances):
            for sums in (self._weight, self._expected, self._accepted):
                sums[:] = [each * _FADE for each in sums]
            index = min(int(chance * _NUM_BINS), _NUM_BINS - 1)
            self._weight[index] += 1
            self._expected[index] += chance
            self._accepted[index] += place < num_accepted

    @property
    def error(self) -> float | None:
        """Mean distance between the chance and the share accepted (expected calibration error); None without tokens.

        Source: arXiv 1706.04599, equation 3.
        """
        total = sum(self._weight)
        if not total:
            return None
        return sum(abs(e - a) for e, a in zip(self._expected, self._accepted, strict=True)) / total
