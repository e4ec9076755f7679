"""How likely a drafted token is to become output: the drafter's own estimate, corrected by what the target said before.

Two corrections. Of each drafter: how often the target has agreed where the drafter was as sure as it is now. Of each
request: whether it agrees more or less often than that, as some texts are far easier to guess than others.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.sequence import Sequence
from engine.types import Draft

_NUM_BINS = 10
# Verdicts that the drafter's own estimate is worth before there are any.
_PRIOR = 8.0
# The same for a request that has shown nothing yet.
_REQUEST_PRIOR = 4.0
# Older verdicts fade once there are so many.
_MEMORY = 400.0
_REQUEST_MEMORY = 40.0
_LEAST, _MOST = 0.01, 0.99


class _Rate:
    """Accepted tokens beside those that were expected to be, the older ones fading."""

    def __init__(self, prior: float, memory: float) -> None:
        self.accepted = self.expected = prior
        self._memory = memory

    def add(self, expected: float, *, is_accepted: bool) -> None:
        if self.expected > self._memory:
            fade = self._memory / self.expected
            self.accepted *= fade
            self.expected *= fade
        self.expected += expected
        self.accepted += is_accepted

    @property
    def ratio(self) -> float:
        return self.accepted / self.expected


class Survival:
    """Learns from every verified token; forgets a request when it ends."""

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, int], _Rate] = {}
        self._by_request: dict[str, _Rate] = {}

    def of(self, sequence: Sequence, draft: Draft) -> list[float]:
        """For each token of ``draft`` the chance that it and all before it are accepted; never increasing."""
        survival = 1.0
        chances = []
        for chance in self._chances(sequence, draft):
            survival *= chance
            chances.append(survival)
        return chances

    def observe(self, sequence: Sequence, draft: Draft, num_accepted: int) -> None:
        """The target accepted so many tokens of ``draft``; it said nothing of those behind the first rejected one."""
        request = self._by_request.setdefault(sequence.request_id, _Rate(_REQUEST_PRIOR, _REQUEST_MEMORY))
        for place, confidence in enumerate(draft.probabilities[: num_accepted + 1]):
            is_accepted = place < num_accepted
            source = self._source(draft.source, confidence)
            request.add(confidence * source.ratio, is_accepted=is_accepted)
            source.add(confidence, is_accepted=is_accepted)

    def release(self, sequence: Sequence) -> None:
        self._by_request.pop(sequence.request_id, None)

    def _chances(self, sequence: Sequence, draft: Draft) -> Iterable[float]:
        request = self._by_request.get(sequence.request_id)
        factor = 1.0 if request is None else request.ratio
        for confidence in draft.probabilities:
            chance = confidence * self._source(draft.source, confidence).ratio * factor
            yield min(max(chance, _LEAST), _MOST)

    def _source(self, name: str, confidence: float) -> _Rate:
        key = name, min(int(confidence * _NUM_BINS), _NUM_BINS - 1)
        rate = self._by_source.get(key)
        if rate is None:
            rate = self._by_source[key] = _Rate(_PRIOR * max(confidence, _LEAST), _MEMORY)
        return rate
