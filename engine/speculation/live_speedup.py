"""What drafts bring, measured while serving: now and then a step runs without them. Knows numbers only.

Steps are compared with steps of as many sequences. A step in which nobody had a guess takes what a plain step takes, so
most often nothing need be given up for the comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict

from engine.step_stats import Speedup

# A load that has seen no step without drafts for so many steps gets one.
_STEPS_BETWEEN_PLAIN = 64
# Each step leaves so much of the weight of the earlier ones of its kind.
_FADE = 0.997
# Steps of either kind that there must have been before their ratio means anything.
_LEAST_STEPS = 8


class _Rate:
    """Tokens a second over steps, with what is needed to say how exact that is."""

    def __init__(self) -> None:
        self.weight = self._tokens = self._seconds = 0.0
        self._tokens2 = self._seconds2 = self._product = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.weight = self.weight * _FADE + 1
        self._tokens = self._tokens * _FADE + tokens
        self._seconds = self._seconds * _FADE + seconds
        self._tokens2 = self._tokens2 * _FADE + tokens * tokens
        self._seconds2 = self._seconds2 * _FADE + seconds * seconds
        self._product = self._product * _FADE + tokens * seconds

    @property
    def value(self) -> float:
        return self._tokens / self._seconds

    @property
    def relative_variance(self) -> float:
        """Of ``value``: that of a ratio of two sums, by the delta method."""
        rate = self.value
        residuals = self._tokens2 - 2 * rate * self._product + rate * rate * self._seconds2
        return max(residuals, 0.0) / self._tokens**2


class _Load:
    """Steps of about as many sequences."""

    def __init__(self) -> None:
        self.drafted, self.plain = _Rate(), _Rate()
        self.steps_since_plain = 0
        self.share = 0.0  # of the last steps of all loads, up to a factor

    @property
    def is_known(self) -> bool:
        return min(self.drafted.weight, self.plain.weight) >= _LEAST_STEPS


class LiveSpeedup:
    """The ratio of drafted to plain tokens a second, by load and over all loads."""

    def __init__(self) -> None:
        self._loads: defaultdict[int, _Load] = defaultdict(_Load)

    def wants_plain(self, num_sequences: int) -> bool:
        """Whether the next step of so many sequences should run without drafts."""
        return self._loads[_band(num_sequences)].steps_since_plain >= _STEPS_BETWEEN_PLAIN

    def observe_plain(self, num_sequences: int, seconds: float) -> None:
        """A step in which nothing was verified, each sequence getting its token: what a plain step takes."""
        load = self._loads[_band(num_sequences)]
        load.steps_since_plain = 0
        load.plain.add(num_sequences, seconds)

    def forgo_plain(self, num_sequences: int) -> None:
        """A plain step was taken and cannot be compared; another one is due only after as many steps again."""
        self._loads[_band(num_sequences)].steps_since_plain = 0

    def observe_drafted(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """A step in which drafts were allowed, whether or not there were any."""
        load = self._loads[_band(num_sequences)]
        load.steps_since_plain += 1
        for each in self._loads.values():
            each.share *= _FADE
        load.share += 1
        load.drafted.add(num_tokens, seconds)

    @property
    def speedup(self) -> Speedup | None:
        """The mean over the loads, each by how many of the last steps were its; None before it can be told."""
        known = [load for load in self._loads.values() if load.is_known]
        total = sum(load.share for load in known)
        if not total:
            return None
        ratio = variance = 0.0
        for load in known:
            share = load.share / total
            of_load = load.drafted.value / load.plain.value
            relative = load.drafted.relative_variance + load.plain.relative_variance
            ratio += share * of_load
            variance += (share * of_load) ** 2 * relative
        return Speedup(ratio, math.sqrt(variance))


def _band(num_sequences: int) -> int:
    """Loads of 1, 2-3, 4-7, 8-15 ... sequences are kept apart."""
    return num_sequences.bit_length()
