"""What an index of texts guesses of the next tokens, and what a run of guesses is worth. Plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple


class Guess(NamedTuple):
    """One token behind a context that has occurred before.

    Attributes:
        probability: the token's share of all that followed that context.
        context_length: tokens of the context, those guessed before this one among them.
    """

    token_id: int
    probability: float
    context_length: int


def take_likely(guesses: Iterable[Guess], *, max_length: int, min_survival: float) -> list[Guess]:
    """The guesses up to where all of them together are right with a chance below ``min_survival``."""
    taken: list[Guess] = []
    survival = 1.0
    for guess in islice(guesses, max_length):
        survival *= guess.probability
        if survival < min_survival:
            break
        taken.append(guess)
    return taken


def expected_accepted(guesses: Iterable[Guess]) -> float:
    """Tokens that the target should accept: what makes a run of guesses from one index comparable with another's.

    Shares alone would not do, as whatever has followed a context once has a share of 1. A context that has agreed for
    ``n`` tokens is taken to agree in the next one too with a chance of ``(n + 1) / (n + 2)`` (the rule of succession).
    """
    expected, survival = 0.0, 1.0
    for guess in guesses:
        survival *= guess.probability * (guess.context_length + 1) / (guess.context_length + 2)
        expected += survival
    return expected
