"""Tokens that may not be drawn: allowed_token_ids, bad_words and min_tokens, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.logits import SamplingRow, adjust, needs_adjusting
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence
from tests.sequences import make_sequence

VOCAB_SIZE = 9
END = frozenset({0})

token_ids = st.integers(0, VOCAB_SIZE - 1)
some_tokens = st.lists(token_ids, max_size=5)
words = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)


def with_output(prompt: list[int], output: list[int], **params: Any) -> Sequence:
    sequence = make_sequence("a", prompt, max_tokens=100, ignore_eos=True, **params)
    for token in output:
        sequence.append(token, frozenset())
    return sequence


def masked(rows: list[SamplingRow]) -> list[set[int]]:
    """The tokens of each row that cannot be drawn."""
    logits = torch.zeros(len(rows), VOCAB_SIZE)
    adjust(logits, rows, END)
    return [{token for token, value in enumerate(row) if value == -math.inf} for row in logits.tolist()]


@settings(deadline=None, max_examples=300)
@given(
    prompt=st.lists(token_ids, min_size=1, max_size=4),
    output=some_tokens,
    draft=some_tokens,
    allowed=st.none() | st.frozensets(token_ids, min_size=1),
    bad_words=words,
    stop_token_ids=st.frozensets(token_ids, max_size=2),
    min_tokens=st.integers(0, 8),
)
def test_each_row_sees_the_tokens_before_it(
    prompt: list[int],
    output: list[int],
    draft: list[int],
    allowed: frozenset[int] | None,
    bad_words: tuple[tuple[int, ...], ...],
    stop_token_ids: frozenset[int],
    min_tokens: int,
) -> None:
    """Invariant 6 for masks: confirmed tokens and exactly the draft before the row."""
    params: dict[str, Any] = {"allowed_token_ids": allowed, "bad_words": bad_words, "min_tokens": min_tokens}
    sequence = with_output(prompt, output, **params)
    stopping = make_sequence("a", prompt, max_tokens=100, stop_token_ids=stop_token_ids, **params)
    stopping.token_ids = list(sequence.token_ids)
    rows = [SamplingRow(stopping, tuple(draft[:i])) for i in range(len(draft) + 1)]
    for i, (row, found) in enumerate(zip(rows, masked(rows), strict=True)):
        text = prompt + output + draft[:i]
        expected = set() if allowed is None else set(range(VOCAB_SIZE)) - allowed
        expected |= {word[-1] for word in bad_words if (*text, word[-1])[-len(word) :] == word}
        if len(output) + i < min_tokens:
            expected |= END | stop_token_ids
        assert found == expected
        assert needs_adjusting(row) or not expected


def test_a_mask_wins_over_any_bias() -> None:
    rows = [SamplingRow(make_sequence("a", [1], logit_bias={4: 100.0}, **m)) for m in MASKS_OF_FOUR]
    assert all(4 in forbidden for forbidden in masked(rows))


MASKS_OF_FOUR: list[dict[str, Any]] = [
    {"allowed_token_ids": frozenset({3, 5})},
    {"bad_words": ((4,),)},
    {"stop_token_ids": frozenset({4}), "min_tokens": 2},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_drawn_is_allowed(temperature: float) -> None:
    logits = torch.zeros(200, VOCAB_SIZE)
    logits[:, 4] = 5.0
    params: dict[str, Any] = {"allowed_token_ids": frozenset({2, 6, 7}), "top_k": 5, "top_p": 0.99}
    rows = [SamplingRow(make_sequence("a", [1], seed=i, temperature=temperature, **params)) for i in range(200)]
    drawn = set(Sampler(END).sample(logits, rows)[0])  # type: ignore[arg-type]
    assert drawn == ({2} if temperature == 0 else {2, 6, 7})
