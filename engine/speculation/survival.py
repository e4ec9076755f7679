"""How likely a drafted token is to become output: the drafter's own estimate, corrected by what the target said before.

Two corrections. Of each drafter: how often the target has agreed where the drafter was as sure as it is now. Of each
request and drafter: whether it agrees more or less often than that, as some texts are far easier to guess than others.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

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
        self._count = prior
        self._memory = memory

    def add(self, expected: float, *, is_accepted: bool) -> None:
        if self._count >= self._memory:  # counted in verdicts, so that a drafter that is always wrong fades as fast
            fade = (self._memory - 1) / self._count
            self.accepted *= fade
            self.expected *= fade
            self._count *= fade
        self._count += 1
        self.expected += expected
        self.accepted += is_accepted

    @property
    def ratio(self) -> float:
        return self.accepted / self.expected


class Survival:
    """Learns from every verified token; forgets a request when it ends."""

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, int], _Rate] = {}
        # A drafter that guesses one text badly tells nothing of another's guesses.
        self._by_request: dict[str, dict[str, _Rate]] = {}

    def of(self, sequence: Sequence, draft: Draft) -> list[float]:
        """For each token of ``draft`` the chance that it and all before it are accepted; never increasing."""
        survival = 1.0
        chances = []
        for chance in self._chances(sequence, draft):
            survival *= chance
            chances.append(survival)
        return chances

    def observe(self, sequence: Sequence, draft: Draft, said: Seq[int]) -> None:
        """Compare a proposal with what the target said, whether or not it was verified.

        Tokens behind the first wrong one, and behind the last that the target said, are not judged.
        """
        rates = self._by_request.setdefault(sequence.request_id, {})
        request = rates.setdefault(draft.source, _Rate(_REQUEST_PRIOR, _REQUEST_MEMORY))
        for token_id, confidence, right in zip(draft.token_ids, draft.probabilities, said, strict=False):
            source = self._source(draft.source, confidence)
            request.add(confidence * source.ratio, is_accepted=token_id == right)
            source.add(confidence, is_accepted=token_id == right)
            if token_id != right:
                break

    def release(self, sequence: Sequence) -> None:
        self._by_request.pop(sequence.request_id, None)

    def _chances(self, sequence: Sequence, draft: Draft) -> Iterable[float]:
        request = self._by_request.get(sequence.request_id, {}).get(draft.source)
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
