"""Drafts from text: what followed the longest suffix of a request's own that has occurred before.

Needs no model and no tensors. Each request has an index of its own prompt and output; one over the finished outputs of
all requests with the same salt may stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.params import SpeculationMode
from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.guess import Guess, expected_accepted, take_likely
from engine.speculation.output_index import LONGEST_MATCH
from engine.speculation.shared_suffix import SharedSuffixIndex
from engine.speculation.suffix_automaton import SuffixAutomaton
from engine.types import Draft, FinishReason, Verdict

NAME = "suffix"
SHARED_NAME = "shared_suffix"

# A long prompt is indexed over several steps, so that nobody's stream stalls: a token takes about one microsecond.
_MOST_TOKENS_A_STEP = 4096


class SuffixDrafter:
    """Frequency-guided continuation of the longest suffix match (SuffixDecoding, arXiv 2411.04975).

    Args:
        min_match_length: a shorter match drafts nothing; at least 1.
        min_survival: drafting stops where the estimated chance that all tokens so far are accepted falls below this.
        shared: finished outputs. They draft where more of their guesses should be accepted than of the request's own.
    """

    def __init__(
        self, *, min_match_length: int = 2, min_survival: float = 0.2, shared: SharedSuffixIndex | None = None
    ) -> None:
        self._min_match_length = min_match_length
        self._min_survival = min_survival
        self._shared = shared
        self._indexes: dict[str, SuffixAutomaton] = {}

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [
            self._draft(entry.sequence, entry.max_draft_length) if entry.max_draft_length else NO_DRAFT
            for entry in batch
        ]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass  # the index catches up with the confirmed tokens when it is next asked

    def release(self, sequence: Sequence) -> None:
        """A finished output goes into the shared index, but for those of requests that are not to be drafted."""
        self._indexes.pop(sequence.request_id, None)
        if self._shared is None or sequence.speculation.mode is SpeculationMode.OFF:
            return
        if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._shared.add(sequence.cache_salt, sequence.token_ids[sequence.num_prompt_tokens :])

    def _draft(self, sequence: Sequence, max_length: int) -> Draft:
        own = self._own_guesses(sequence, max_length)
        shared = self._shared_guesses(sequence, max_length)
        if shared and expected_accepted(shared) > expected_accepted(own):
            return _as_draft(shared, SHARED_NAME)
        return _as_draft(own, NAME)

    def _own_guesses(self, sequence: Sequence, max_length: int) -> list[Guess]:
        index = self._indexes.setdefault(sequence.request_id, SuffixAutomaton())
        index.extend(sequence.token_ids[index.num_tokens : index.num_tokens + _MOST_TOKENS_A_STEP])
        if index.num_tokens < len(sequence.token_ids):
            return []
        guesses = index.continuation(self._min_match_length)
        return take_likely(guesses, max_length=max_length, min_survival=self._min_survival)

    def _shared_guesses(self, sequence: Sequence, max_length: int) -> list[Guess]:
        if self._shared is None:
            return []
        guesses = self._shared.continuation(sequence.cache_salt, sequence.token_ids[-LONGEST_MATCH:])
        return take_likely(guesses, max_length=max_length, min_survival=self._min_survival)


def _as_draft(guesses: Seq[Guess], source: str) -> Draft:
    return Draft(tuple(guess.token_id for guess in guesses), tuple(guess.probability for guess in guesses), source)
