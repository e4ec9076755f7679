"""The account of a step, in plain numbers. Knows what each number means; knows nothing of how it comes about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.types import DraftReason


@dataclass(slots=True)
class DraftCounts:
    """Drafts, the tokens proposed in them, and those of the tokens that became output."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Speedup(NamedTuple):
    """Tokens a second with drafts over those without, as measured, and its standard error."""

    ratio: float
    error: float


@dataclass(slots=True)
class StepStats:
    """The account of one step, in plain numbers.

    Attributes:
        num_running, num_waiting: sequences after the step.
        kv_cache_usage: share of the KV blocks in use after the step, 0..1.
        num_rows: rows of the target forward; 0 if nothing ran and only the load above has changed.
        num_prompt_tokens: prompt tokens of the sequences that this step admitted for the first time.
        num_cached_tokens: of those, the ones found in the prefix cache.
        num_generated_tokens: tokens that became output.
        num_drafts, num_draft_tokens, num_accepted_tokens: as in ``SpeculationStats``, summed over the step.
        num_recovered_tokens: the target's tokens where a draft missed.
        num_bonus_tokens: the target's tokens behind drafts of which every token was right.
        by_drafter: the same drafts by the name of who made them.
        drafted_per_position, accepted_per_position: entry ``j`` counts the tokens at draft position ``j``.
        num_preemptions: sequences put back for want of blocks.
        decisions: how many drafts got their length for each reason.
        draft_lengths: entry ``j`` counts the sequences whose draft had ``j`` tokens to be verified.
        expected_accepted_tokens: of the verified ones, by the chances they were given; 0 without chances.
        predicted_seconds: how long the step was expected to take, proposing aside; 0 if nothing was.
        speedup: of drafts, over the last steps; None until it is known.
        calibration_error: mean distance between the chances given to tokens and the share accepted; None as above.
        schedule_seconds, propose_seconds, forward_seconds, verify_seconds, commit_seconds: where the time went.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_rows: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_recovered_tokens: int = 0
    num_bonus_tokens: int = 0
    by_drafter: dict[str, DraftCounts] = field(default_factory=dict)
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    decisions: dict[DraftReason, int] = field(default_factory=dict)
    draft_lengths: list[int] = field(default_factory=list)
    expected_accepted_tokens: float = 0.0
    predicted_seconds: float = 0.0
    speedup: Speedup | None = None
    calibration_error: float | None = None
    schedule_seconds: float = 0.0
    propose_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the whole step, proposing aside: what its rows cost, whoever drafted them."""
        return self.schedule_seconds + self.forward_seconds + self.verify_seconds + self.commit_seconds
