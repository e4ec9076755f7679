"""Drafts from the request's own text: what followed the longest suffix that has occurred before.

Needs no model and no tensors. Each request has an index of its own prompt and output, so nothing leaks between them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.suffix_automaton import SuffixAutomaton
from engine.types import Draft, Verdict


class SuffixDrafter:
    """Frequency-guided continuation of the longest suffix match (SuffixDecoding, arXiv 2411.04975).

    Args:
        min_match_length: a shorter match drafts nothing.
        min_survival: drafting stops where the estimated chance that all tokens so far are accepted falls below this.
    """

    name = "suffix"

    def __init__(self, *, min_match_length: int = 2, min_survival: float = 0.2) -> None:
        self._min_match_length = min_match_length
        self._min_survival = min_survival
        self._indexes: dict[str, SuffixAutomaton] = {}

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [
            self._draft(entry.sequence, entry.max_draft_length) if entry.max_draft_length else NO_DRAFT
            for entry in batch
        ]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass  # the index catches up with the confirmed tokens when it is next asked

    def release(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.request_id, None)

    def _draft(self, sequence: Sequence, max_length: int) -> Draft:
        index = self._indexes.setdefault(sequence.request_id, SuffixAutomaton())
        index.extend(sequence.token_ids[index.num_tokens :])
        state = index.match_state
        token_ids: list[int] = []
        probabilities: list[float] = []
        survival = 1.0
        while len(token_ids) < max_length and index.length(state) >= self._min_match_length:
            following = index.most_frequent(state)
            if following is None:
                # The match has run into the end of the text; a shorter suffix of it may go on elsewhere.
                state = index.link(state)
                continue
            token, state, probability = following
            survival *= probability
            if survival < self._min_survival:
                break
            token_ids.append(token)
            probabilities.append(probability)
        return Draft(tuple(token_ids), tuple(probabilities), self.name)
