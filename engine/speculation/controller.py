"""Decides how long a draft each sequence may have in the next step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from engine.params import SpeculationMode
from engine.sequence import Sequence


class DraftLengthController(Protocol):
    """Prices drafts before anything is drafted."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[int]:
        """The longest draft of each sequence; their sum is at most ``max_rows``."""


class FixedDraftLength:
    """Every request gets the length it asked for, or the server's; the first come are served first."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[int]:
        lengths = []
        for sequence in sequences:
            length = min(longest_useful_draft(sequence), max_rows)
            max_rows -= length
            lengths.append(length)
        return lengths


def longest_useful_draft(sequence: Sequence) -> int:
    """A draft brings one token more than it has, so one as long as what remains would be cut."""
    if sequence.speculation.mode is SpeculationMode.OFF:
        return 0
    return min(sequence.longest_draft, sequence.num_remaining_tokens - 1)
