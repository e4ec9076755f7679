"""How far a draft model was ahead with a token, as the chance that the target says the same. Learnt from verdicts."""

from __future__ import annotations

import math
from bisect import bisect_right

# Margins, in nats, between which agreement changes; one class of margins lies below each, and one above all.
_BOUNDS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
# What is believed before anything has been seen weighs as much as so many tokens.
_PRIOR_WEIGHT = 16.0
# Older tokens count half as much each time that a class has seen so many: texts and temperatures change.
_MEMORY = 512.0


class AgreementCurve:
    """One chance for each class of margins."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip((0.0, *_BOUNDS), (*_BOUNDS, 2 * _BOUNDS[-1]), strict=True)]
        # Two equal candidates: the target takes either. Far ahead: it agrees.
        self._agreed = [_PRIOR_WEIGHT * (1 - math.exp(-middle) / 2) for middle in middles]
        self._seen = [_PRIOR_WEIGHT] * len(middles)

    def probability(self, margin: float) -> float:
        index = bisect_right(_BOUNDS, margin)
        return self._agreed[index] / self._seen[index]

    def learn(self, margin: float, *, agreed: bool) -> None:
        """One token that the target has judged, everything before it being right."""
        index = bisect_right(_BOUNDS, margin)
        if self._seen[index] >= _MEMORY:
            self._seen[index] /= 2
            self._agreed[index] /= 2
        self._seen[index] += 1
        self._agreed[index] += agreed
