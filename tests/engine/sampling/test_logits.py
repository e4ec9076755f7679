"""Each step from raw logits to the sampled distribution, against a slow reference in float64 and plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.sampling.logits import SamplingRow, adjust, needs_adjusting, truncate
from engine.sequence import Sequence
from tests.sequences import make_sequence

VOCAB_SIZE = 12
END = frozenset({0, 11})
MARGIN = 1e-4

tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8)
# Eighths: exact in float32, and equal often enough that ties are tried.
raw_logits = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE)
quarters = st.integers(-8, 8).map(lambda n: n / 4)


def with_output(output: list[int], prompt: list[int] | None = None, **params: Any) -> Sequence:
    sequence = make_sequence("a", prompt or [1], **({"max_tokens": 100, "ignore_eos": True} | params))
    for token in output:
        sequence.append(token, END)
    return sequence


def adjusted(logits: list[float], rows: list[SamplingRow]) -> list[list[float]]:
    tensor = torch.tensor([logits] * len(rows))
    adjust(tensor, rows, END)
    result: list[list[float]] = tensor.tolist()
    return result


def adjust_slowly(logits: list[float], prompt: list[int], output: list[int], **params: Any) -> list[float]:
    result = []
    for token, value in enumerate(logits):
        value += params.get("logit_bias", {}).get(token, 0.0)
        if token in prompt or token in output:
            penalty = params.get("repetition_penalty", 1.0)
            value = value / penalty if value > 0 else value * penalty
        value -= output.count(token) * params.get("frequency_penalty", 0.0)
        value -= (token in output) * params.get("presence_penalty", 0.0)
        if token in END and len(output) < params.get("min_tokens", 0):
            value = -math.inf
        result.append(value)
    return result


def truncate_slowly(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that are left. Draws that lie on an edge to within rounding are not judged."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = {token: math.exp((logits[token] - logits[order[0]]) / temperature) for token in order}
    kept = order[:top_k] if top_k else order
    if top_p < 1:
        nucleus: list[int] = []
        total, mass = math.fsum(weights[token] for token in kept), 0.0
        for token in kept:
            assume(abs(mass / total - top_p) > MARGIN or not nucleus)
            if mass / total < top_p:
                nucleus.append(token)
            mass += weights[token]
        kept = nucleus
    if min_p > 0:
        share = sum(weights[token] for token in kept)
        best = max(weights[token] / share for token in kept)
        assume(all(abs(weights[token] / share - min_p * best) > MARGIN * best for token in kept[1:]))
        kept = [token for token in kept if weights[token] / share >= min_p * best]
    return set(kept)


@settings(deadline=None, max_examples=300)
@given(
    logits=raw_logits,
    prompt=tokens,
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8),
    bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.integers(-100, 100).map(float), max_size=3),
    repetition=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    frequency=quarters,
    presence=quarters,
    min_tokens=st.integers(0, 8),
)
def test_bias_penalties_and_min_tokens(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    bias: dict[int, float],
    repetition: float,
    frequency: float,
    presence: float,
    min_tokens: int,
) -> None:
    params: dict[str, Any] = {
        "logit_bias": bias,
        "repetition_penalty": repetition,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "min_tokens": min_tokens,
    }
    row = SamplingRow(with_output(output, prompt, **params))
    slow = adjust_slowly(logits, prompt, output, **params)
    np.testing.assert_allclose(adjusted(logits, [row])[0], slow, rtol=1e-5, atol=1e-5)
    if not needs_adjusting(row):
        assert slow == logits


@settings(deadline=None, max_examples=200)
@given(
    logits=raw_logits,
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=5),
    draft=tokens,
    repetition=st.sampled_from([1.0, 1.3]),
    frequency=quarters,
    presence=quarters,
    min_tokens=st.integers(0, 8),
)
def test_a_row_behind_a_draft_sees_what_it_would_see_if_the_draft_were_confirmed(
    logits: list[float],
    output: list[int],
    draft: list[int],
    repetition: float,
    frequency: float,
    presence: float,
    min_tokens: int,
) -> None:
    """Invariant 6, bit for bit, and with all rows of a draft in one call."""
    params: dict[str, Any] = {
        "repetition_penalty": repetition,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "min_tokens": min_tokens,
        "logit_bias": {3: 1.5},
    }
    sequence = with_output(output, **params)
    rows = [SamplingRow(sequence, tuple(draft[:i])) for i in range(len(draft) + 1)]
    ahead = adjusted(logits, rows)
    assert [row.output_index for row in rows] == list(range(len(output), len(output) + len(draft) + 1))
    for i in range(len(draft) + 1):
        appended = SamplingRow(with_output(output + draft[:i], **params))
        assert appended.output_index == rows[i].output_index
        assert adjusted(logits, [appended])[0] == ahead[i]
    assert sequence.output_counts.total() == len(output)


def test_frequency_counts_the_output_only_and_repetition_the_prompt_too() -> None:
    logits = [1.0] * VOCAB_SIZE
    sequence = with_output([5, 5], [4], frequency_penalty=0.5, presence_penalty=0.25)
    assert adjusted(logits, [SamplingRow(sequence)])[0][3:6] == [1.0, 1.0, -0.25]
    sequence = with_output([5, 5], [4], repetition_penalty=2.0)
    assert adjusted(logits, [SamplingRow(sequence)])[0][3:6] == [1.0, 0.5, 0.5]
    assert adjusted([-1.0] * VOCAB_SIZE, [SamplingRow(sequence)])[0][3:6] == [-1.0, -2.0, -2.0]


@settings(deadline=None, max_examples=500)
@given(
    logits=raw_logits,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, VOCAB_SIZE + 3),
    top_p=st.sampled_from([0.03, 0.3, 0.6, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.23, 0.8]),
)
def test_truncation(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    sequence = with_output([], temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    result = truncate(torch.tensor(logits), sequence.params).tolist()
    kept = truncate_slowly(logits, temperature, top_k, top_p, min_p)
    assert {token for token, value in enumerate(result) if value > -math.inf} == kept
    assert all(result[token] == logits[token] for token in kept)


@pytest.mark.parametrize("logits", [[1.0, 3.0, 3.0, 3.0], [3.0] * 4, [3.0, 1.0, 3.0, 3.0]])
def test_ties_go_to_the_smaller_id(logits: list[float]) -> None:
    kept = truncate(torch.tensor(logits), with_output([], temperature=1.0, top_k=2).params)
    best_two = sorted(range(4), key=lambda token: (-logits[token], token))[:2]
    assert kept.isfinite().nonzero().flatten().tolist() == sorted(best_two)


def test_ties_go_to_the_smaller_id_in_a_large_vocabulary_too() -> None:
    """Where an unstable sort would no longer be stable by chance."""
    logits = torch.zeros(50_000)
    logits[::7] = 1.0
    kept = truncate(logits, with_output([], temperature=1.0, top_k=100).params)
    assert kept.isfinite().nonzero().flatten().tolist() == list(range(0, 700, 7))


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 5e-324])
@pytest.mark.parametrize("options", [{"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"top_p": 0.99, "min_p": 1.0}])
def test_a_tiny_temperature_gives_no_nan(temperature: float, options: dict[str, Any]) -> None:
    logits = torch.tensor([30.0, -2.0, 31.0, -math.inf, 29.5])
    kept = truncate(logits, with_output([], temperature=temperature, **options).params)
    assert not bool(kept.isnan().any())
    assert int(kept.argmax()) == 2
    if "top_k" not in options:
        assert kept.isfinite().nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize("options", [{"top_p": 1e-6}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_best_token_is_always_left(options: dict[str, Any]) -> None:
    kept = truncate(torch.linspace(-1, 1, 9), with_output([], temperature=2.0, **options).params)
    assert kept.isfinite().nonzero().flatten().tolist() == [8]


def test_without_truncation_nothing_is_touched() -> None:
    logits = torch.randn(9)
    assert truncate(logits, with_output([], temperature=1.0).params) is logits


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, False),
        ({"temperature": 1.0, "top_p": 0.5}, False),
        ({"logit_bias": {1: 0.5}}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": -0.5}, True),
        ({"presence_penalty": 0.5}, True),
        ({"min_tokens": 3}, True),
        ({"min_tokens": 2}, False),
    ],
)
def test_rows_that_need_no_adjusting_are_known(options: dict[str, Any], needs: bool) -> None:
    assert needs_adjusting(SamplingRow(with_output([5], **options), (6,))) is needs


def test_a_top_p_that_float32_takes_for_zero_keeps_the_best_token() -> None:
    kept = truncate(torch.tensor([0.0, 3.0, 1.0]), with_output([], temperature=1.0, top_p=1e-46).params)
    assert kept.tolist() == [-math.inf, 3.0, -math.inf]
