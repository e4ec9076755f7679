"""The noise obeys Gumbel's law, looks independent wherever the key differs, and is the same wherever it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from engine.sampling import noise
from engine.sampling.noise import gumbel_noise

CPU = torch.device("cpu")
SEEDS = (0, 1, 2**32, 2**63, 2**64 - 1, -1)


def draw(keys: list[tuple[int, int]], vocab_size: int) -> np.ndarray:
    return gumbel_noise(keys, vocab_size, CPU).double().numpy()


def test_the_same_key_gives_the_same_bits() -> None:
    keys = [(seed, t) for seed in SEEDS[:-1] for t in (0, 1, 1000, 2**31)]
    together = gumbel_noise(keys, 500, CPU)
    assert together.dtype == torch.float32
    assert together.shape == (len(keys), 500)
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(row, gumbel_noise([key], 500, CPU)[0])
        assert torch.equal(row[:77], gumbel_noise([key], 77, CPU)[0])


def test_a_seed_replays_the_same_answer_in_every_version() -> None:
    """Noise is part of what a client was promised with its seed. Changing it is a breaking change."""
    values = gumbel_noise([(0, 0), (42, 7), (2**64 - 1, 1000)], 3, CPU)
    known = [
        [0.3327074, 0.5986751, 0.4733232],
        [0.6312060, -0.5858176, -0.1293418],
        [1.1856756, 0.2504966, 1.6114862],
    ]
    torch.testing.assert_close(values, torch.tensor(known), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("key", [(seed, t) for seed in SEEDS[:-1] for t in (0, 1, 99)])
def test_one_row_obeys_the_law(key: tuple[int, int]) -> None:
    assert stats.kstest(draw([key], 50_000)[0], "gumbel_r").pvalue > 1e-4


def test_one_token_over_many_keys_obeys_the_law() -> None:
    over_seeds = draw([(seed, 5) for seed in range(20_000)], 8)
    over_indices = draw([(5, t) for t in range(20_000)], 8)
    for token in range(8):
        assert stats.kstest(over_seeds[:, token], "gumbel_r").pvalue > 1e-4
        assert stats.kstest(over_indices[:, token], "gumbel_r").pvalue > 1e-4


def test_the_tail_that_wins_is_fine_grained() -> None:
    """Among five million values those above the 1e-5 quantile follow the law too, and hardly two are equal."""
    values = draw([(9, t) for t in range(100)], 50_000).ravel()
    cut = -math.log(1e-5)
    tail = values[values > cut]
    assert 20 < len(tail) < 90
    # So far out the excess over the cut is exponential.
    assert stats.kstest(tail - cut, "expon").pvalue > 1e-4
    assert len(np.unique(tail)) == len(tail)


@pytest.mark.parametrize("keys", [[(seed, 0) for seed in range(12_800)], [(0, t) for t in range(12_800)]])
def test_the_winner_among_equals_is_uniform_and_forgets_the_last_one(keys: list[tuple[int, int]]) -> None:
    vocab_size = 16
    winners = draw(keys, vocab_size).argmax(1)
    assert stats.chisquare(np.bincount(winners, minlength=vocab_size)).pvalue > 1e-4
    pairs = np.bincount(winners[:-1] * vocab_size + winners[1:], minlength=vocab_size**2)
    assert stats.chisquare(pairs).pvalue > 1e-4


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a))


@pytest.mark.parametrize("seed", SEEDS[:-1])
def test_neighbours_are_not_correlated(seed: int) -> None:
    """Neighbouring output indices, seeds, bit flips of the seed, and tokens; in standard deviations."""
    size = 40_000
    here = draw([(seed, 10)], size)[0]
    others = [(seed, 11), (seed, 9), (seed + 1, 10), (seed + 1, 9), (seed ^ 2**32, 10), (seed ^ 2**63, 10)]
    for other in draw(others, size):
        assert abs(correlation(here, other)) < 4.5
        assert abs(correlation(here[1:], other[:-1])) < 4.5
        assert abs(correlation(here[:-1], other[1:])) < 4.5
    for distance in (1, 2, 3, 64, 4096):
        assert abs(correlation(here[distance:], here[:-distance])) < 4.5


@pytest.mark.parametrize("word", [0, 1, 0x7FFFFFFF, 0x7FFFFFFE, 0x7FFFFF80, -1, -(2**31)])
def test_noise_is_finite_for_every_word_that_may_come_up(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_mix32", lambda x: torch.full_like(x, word))
    value = float(gumbel_noise([(0, 0)], 1, CPU)[0, 0])
    assert math.isfinite(value)
    assert -3 < value < 23


def test_noise_is_finite_over_a_large_vocabulary() -> None:
    values = gumbel_noise([(seed, 0) for seed in range(16)], 262_144, CPU)
    assert bool(values.isfinite().all())
    # 4.2 million tokens of 31 bits: two may share their bits by chance, many may not.
    assert all(len(row.unique()) > 262_144 * 0.99 for row in values[:4])


def test_a_seed_of_more_than_64_bits_or_below_zero_wraps() -> None:
    assert torch.equal(gumbel_noise([(-1, 0)], 9, CPU), gumbel_noise([(2**64 - 1, 0)], 9, CPU))
