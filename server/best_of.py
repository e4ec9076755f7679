"""Several candidates for a prompt, and the likeliest of them first. Knows outputs; knows no wire format."""

from __future__ import annotations

from collections.abc import Sequence

from engine.types import RequestOutput


def likeliest(outputs: Sequence[RequestOutput], *, num_candidates: int, num_choices: int) -> list[RequestOutput]:
    """For each prompt its ``num_choices`` best candidates, best first; of equally likely ones the earlier.

    Args:
        outputs: whole ones with log-probabilities, ``num_candidates`` a prompt.
    """
    best: list[RequestOutput] = []
    for first in range(0, len(outputs), num_candidates):
        candidates = outputs[first : first + num_candidates]
        best += sorted(candidates, key=mean_logprob, reverse=True)[:num_choices]
    return best


def mean_logprob(output: RequestOutput) -> float:
    """Log-probability a token, the end token included; 0 without a token."""
    entries = output.logprobs or ()
    return sum(entry.logprob for entry in entries) / len(entries) if entries else 0.0
