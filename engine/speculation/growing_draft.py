"""One sequence's draft while a draft model makes it: what has been drawn, computed, and found worth keeping."""

from __future__ import annotations

from engine.model.flat_batch import Span
from engine.sampling.logits import SamplingRow
from engine.sequence import Sequence

# Stands for a token that is on a device and not known here.
_UNKNOWN = 0


class GrowingDraft:
    """Begins empty, the draft model having computed all confirmed tokens.

    Attributes:
        token_ids, probabilities: of the tokens that are kept.
        drawn: all tokens that have been seen, with their margins.
    """

    def __init__(self, sequence: Sequence, max_length: int) -> None:
        self.sequence = sequence
        self.token_ids: list[int] = []
        self.probabilities: list[float] = []
        self.drawn: list[tuple[int, float]] = []
        self._max_length = max_length
        self._survival = 1.0
        self._has_stopped = False
        self._num_drawn = 0
        self._num_fed = 0

    @property
    def wants_more(self) -> bool:
        return not self._has_stopped and self._num_drawn < self._max_length

    @property
    def fed_tokens(self) -> list[int]:
        """Tokens that the model has computed, once all that were drawn have been seen."""
        return [token_id for token_id, _ in self.drawn[: self._num_fed]]

    def next_row(self) -> SamplingRow:
        """What the next token is drawn for. Tokens not yet seen are no tokens in it, though they are counted."""
        num_unseen = self._num_drawn - len(self.drawn)
        self._num_drawn += 1
        return SamplingRow(self.sequence, (*(token_id for token_id, _ in self.drawn), *[_UNKNOWN] * num_unseen))

    def feed(self) -> Span:
        """The row of the token drawn last; its id is filled in on the device."""
        position = len(self.sequence.token_ids) + self._num_fed
        self._num_fed += 1
        return Span([_UNKNOWN], position, self.sequence.block_table, [0])

    def take(self, token_id: int, margin: float, probability: float, *, min_survival: float) -> None:
        """See the next of the tokens drawn, and keep it unless the draft has become too unlikely."""
        self.drawn.append((token_id, margin))
        self._survival *= probability
        self._has_stopped = self._has_stopped or self._survival < min_survival
        if not self._has_stopped:
            self.token_ids.append(token_id)
            self.probabilities.append(probability)
