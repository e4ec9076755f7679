"""Tokens drawn by our C++: the noise, the truncation and the winner of the reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from engine.native.functions import NativeLibrary
from engine.sampling.logits import SamplingRow, truncate
from engine.sampling.native_draw import NativeDraw
from engine.sampling.sampler import draw_slowly
from tests.sequences import make_sequence


@pytest.fixture
def native(native_library: NativeLibrary) -> NativeDraw:
    return NativeDraw(native_library)


def rows(number: int, **params: Any) -> list[SamplingRow]:
    return [SamplingRow(make_sequence(str(i), [1], seed=i, **params)) for i in range(number)]


def draw_logits(number: int, vocab_size: int, *, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(number, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 2.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.999},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 10**6},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 50, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1e-3, "top_p": 0.5},
    {"temperature": 1e-30, "top_p": 1e-30},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 17, 1000, 49152])
def test_the_tokens_of_the_reference(native: NativeDraw, options: dict[str, Any], vocab_size: int) -> None:
    number = 8 if vocab_size > 10_000 else 60
    logits = draw_logits(number, vocab_size)
    wanted = rows(number, **options)
    assert torch.equal(native.draw(logits, wanted), draw_slowly(logits, wanted))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    values=st.lists(st.sampled_from([-math.inf, -5.0, 0.0, 0.5, 1.0, 1.5, 20.0]), min_size=1, max_size=60),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7]),
)
def test_ties_and_forbidden_tokens(
    native: NativeDraw, values: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    """Every token that is ever drawn is one that the reference keeps, and the first of equals at the cut."""
    logits = torch.tensor([[1.25, *values]]).repeat(20, 1)
    wanted = rows(20, temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    kept = truncate(logits[0], wanted[0].params).isfinite()
    drawn = native.draw(logits, wanted)
    # At the very edge of top_p the last digit of a sum decides; no token beyond the edge may come.
    allowed = kept | (logits[0] >= logits[0][kept].min())
    assert all(bool(allowed[token]) for token in drawn)
    if top_p == 1:
        assert torch.equal(drawn, draw_slowly(logits, wanted))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("number", [1, 50, 300])
def test_logits_that_are_no_numbers(native: NativeDraw, options: dict[str, Any], special: float, number: int) -> None:
    """An overflow may give some; what then comes is a token, and of infinite ones the first."""
    logits = draw_logits(4, 300)
    places = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:number]
    logits[:, places] = special
    drawn = native.draw(logits, rows(4, **options))
    assert all(0 <= token < 300 for token in drawn)
    if special == math.inf:
        assert set(drawn.tolist()) == {int(places.min())}
    elif number < 300:
        assert not set(drawn.tolist()) & set(places.tolist())


def test_a_row_is_the_same_alone_and_among_others(native: NativeDraw) -> None:
    logits, wanted = draw_logits(9, 5000), rows(9, temperature=1.0, top_p=0.95)
    together = native.draw(logits, wanted)
    alone = torch.cat([native.draw(logits[i : i + 1], wanted[i : i + 1]) for i in range(9)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}], ids=str)
def test_draws_follow_the_truncated_softmax(native: NativeDraw, options: dict[str, Any]) -> None:
    logits = draw_logits(1, 12, spread=1.0)
    wanted = rows(4000, temperature=0.8, **options)
    expected = (truncate(logits[0].double(), wanted[0].params) / 0.8).softmax(0) * len(wanted)
    counts = native.draw(logits.repeat(len(wanted), 1), wanted).bincount(minlength=12)
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-4
