"""Where output tokens came from: which were a drafter's guesses, and which the target gave by itself.

Knows the words for it and how a step's tokens share them; knows neither tokens nor requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class TokenOrigin(StrEnum):
    """What an output token is to the draft of its step."""

    ACCEPTED = "accepted"  # the draft had guessed it
    RECOVERED = "recovered"  # the target's, where the draft had guessed another
    BONUS = "bonus"  # the target's, behind a draft that was right to its end
    PLAIN = "plain"  # the target's, in a step without a draft


class TokenProvenance(NamedTuple):
    """Where one output token came from.

    Attributes:
        drafter: who made the draft of its step; None without one.
        draft_position: its place in the draft, from 0; for a bonus token that behind the last; None without a draft.
        draft_length: tokens of the draft; 0 without one.
    """

    origin: TokenOrigin
    drafter: str | None
    draft_position: int | None
    draft_length: int


class StepProvenance(NamedTuple):
    """Where the tokens came from that one step brought to one request.

    Attributes:
        num_tokens: that became output. A request may end within its draft.
        drafter: who made the draft, whatever its length.
        draft_length: tokens that were verified.
        num_accepted: leading ones of them that the target would have said.
    """

    num_tokens: int
    drafter: str
    draft_length: int
    num_accepted: int

    def tokens(self) -> Iterator[TokenProvenance]:
        """The same, token by token."""
        if not self.draft_length:
            yield from [TokenProvenance(TokenOrigin.PLAIN, None, None, 0)] * self.num_tokens
            return
        behind = TokenOrigin.BONUS if self.num_accepted == self.draft_length else TokenOrigin.RECOVERED
        for position in range(self.num_tokens):
            origin = TokenOrigin.ACCEPTED if position < self.num_accepted else behind
            yield TokenProvenance(origin, self.drafter, position, self.draft_length)
