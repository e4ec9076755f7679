"""Which token a row gives, and what log-probabilities come with it: the raw model's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats

from engine.sampling.logits import SamplingRow
from engine.sampling.logprobs import ScoreRow
from engine.sampling.noise import gumbel_noise
from engine.sampling.sampler import Sampler
from tests.sequences import make_sequence

VOCAB_SIZE = 200
END = frozenset({0})


def row_for(prefix: tuple[int, ...] = (), **params: Any) -> SamplingRow:
    return SamplingRow(make_sequence("a", [1, 2], **params), prefix)


def some_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


MIXTURE: list[dict[str, Any]] = [
    {},
    {"logprobs": 3},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.5, "seed": 2, "top_k": 5, "logprobs": 0},
    {"temperature": 1.0, "seed": 3, "top_p": 0.7, "logprobs": 20},
    {"temperature": 2.0, "seed": 4, "min_p": 0.2},
    {"frequency_penalty": 1.0, "logprobs": 1},
    {"logit_bias": {7: 100.0}},
    {"min_tokens": 4, "temperature": 1.0, "seed": 5},
    {"repetition_penalty": 1.5, "temperature": 0.3, "seed": 6},
]


def test_greedy_takes_the_best_and_of_equals_the_smaller_id() -> None:
    logits = torch.zeros(4, 5000)
    logits[0, 4321] = 1.0
    logits[1, [77, 78, 4000]] = 2.0
    logits[2, 4999] = logits[2, 64] = 2.0
    tokens, logprobs = Sampler(END).sample(logits, [row_for()] * 4)
    assert tokens == [4321, 77, 64, 0]
    assert logprobs == [None] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    rows = [row_for((9, 9), **options) for options in MIXTURE]
    logits = some_logits(len(rows)).to(dtype)
    before = logits.clone()
    together = Sampler(END).sample(logits, rows)
    assert torch.equal(logits, before)
    for i, row in enumerate(rows):
        tokens, logprobs = Sampler(END).sample(logits[i : i + 1], [row])
        assert (tokens[0], logprobs[0]) == (together[0][i], together[1][i])


def test_sampling_is_the_argmax_of_scaled_logits_plus_noise() -> None:
    logits = some_logits(20)
    rows = [row_for((1,) * i, temperature=0.8, seed=11) for i in range(20)]
    tokens, _ = Sampler(END).sample(logits, rows)
    noise = gumbel_noise([(11, i) for i in range(20)], VOCAB_SIZE, torch.device("cpu"))
    assert tokens == (logits / 0.8 + noise).argmax(1).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 0.5])
    rows = [row_for(seed=seed, temperature=temperature) for seed in range(6000)]
    tokens, _ = Sampler(END).sample(logits.expand(6000, -1), rows)
    expected = (logits.double() / temperature).softmax(0).numpy() * 6000
    assert stats.chisquare(torch.bincount(torch.tensor(tokens), minlength=6).numpy(), expected).pvalue > 1e-4


@pytest.mark.parametrize("options", [{"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.3}])
def test_truncated_samples_follow_what_is_left_renormalised(options: dict[str, Any]) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.6, 0.5])
    kept = [1, 2, 4, 5] if "min_p" not in options else [1, 2]
    rows = [row_for(seed=seed, temperature=1.0, **options) for seed in range(4000)]
    tokens, _ = Sampler(END).sample(logits.expand(4000, -1), rows)
    assert set(tokens) == set(kept)
    counts = torch.bincount(torch.tensor(tokens), minlength=6)[kept].numpy()
    assert stats.chisquare(counts, logits.double()[kept].softmax(0).numpy() * 4000).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [1e-6, 1e-30])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = some_logits(6)
    rows = [row_for(temperature=temperature, top_p=0.9, seed=seed) for seed in range(6)]
    assert Sampler(END).sample(logits, rows)[0] == logits.argmax(1).tolist()


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 0], logits[:, 5] = 9.0, 8.0
    rows = [row_for((6,) * i, min_tokens=2) for i in range(3)]
    assert Sampler(END).sample(logits, rows)[0] == [5, 5, 0]


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    logits = some_logits(3)
    options: dict[str, Any] = {"logprobs": 5, "temperature": 0.5, "seed": 4}
    rows = [row_for(**options, **more) for more in ({}, {"top_k": 2}, {"logit_bias": {9: 100.0}})]
    tokens, entries = Sampler(END).sample(logits, rows)
    raw = logits.double().log_softmax(1)
    assert tokens[2] == 9
    for i, entry in enumerate(entries):
        assert entry is not None
        assert entry.token_id == tokens[i]
        assert entry.logprob == pytest.approx(float(raw[i, tokens[i]]), abs=1e-5)
        assert [token for token, _ in entry.top] == raw[i].argsort(descending=True)[:5].tolist()
        assert [value for _, value in entry.top] == pytest.approx(sorted(raw[i].tolist())[:-6:-1], abs=1e-5)


def test_each_row_gets_as_many_alternatives_as_it_asked_for() -> None:
    rows: list[SamplingRow | ScoreRow] = [row_for(logprobs=n) for n in (0, 7, 2)]
    rows += [ScoreRow(3, 4), row_for(), ScoreRow(5, 0)]
    _, entries = Sampler(END).sample(some_logits(6), rows)
    assert [None if entry is None else len(entry.top) for entry in entries] == [0, 7, 2, 4, None, 0]


def test_alternatives_that_were_asked_for_by_name_come_in_their_order() -> None:
    logits = some_logits(3)
    named = row_for(logprobs=2, logprob_token_ids=(150, 3, 77))
    _, entries = Sampler(END).sample(logits, [row_for(logprobs=5), named, ScoreRow(9, 1)])
    raw = logits.double().log_softmax(1)
    assert entries[1] is not None
    assert [token for token, _ in entries[1].top] == [150, 3, 77]
    assert [value for _, value in entries[1].top] == pytest.approx(raw[1, [150, 3, 77]].tolist(), abs=1e-5)
    alone = Sampler(END).sample(logits, [row_for(logprobs=5), row_for(), ScoreRow(9, 1)])[1]
    assert [entries[0], entries[2]] == [alone[0], alone[2]]


def test_ranks_count_from_the_likeliest_and_of_equals_the_smaller_id_is_better() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [20, 40]] = 2.0
    ranks = {}
    for token in (20, 40, 0, 1, 19, 21, VOCAB_SIZE - 1):
        _, (entry,) = Sampler(END).sample(logits, [ScoreRow(token, 0)])
        assert entry is not None
        ranks[token] = entry.rank
    assert ranks == {20: 1, 40: 2, 0: 3, 1: 4, 19: 22, 21: 23, VOCAB_SIZE - 1: VOCAB_SIZE}


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    _, (entry,) = Sampler(END).sample(some_logits(1), [row_for(logprobs=VOCAB_SIZE + 5)])
    assert entry is not None
    assert sorted(token for token, _ in entry.top) == list(range(VOCAB_SIZE))


def test_of_equally_likely_alternatives_the_smaller_ids_come() -> None:
    """Equal logits are common in 16-bit types; which of them is shown must depend on nothing else."""
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [20, 40, 60, 80, 100]] = 2.0
    for num_top in range(1, 9):
        _, (entry,) = Sampler(END).sample(logits, [row_for(logprobs=num_top)])
        assert entry is not None
        assert [token for token, _ in entry.top] == [20, 40, 60, 80, 100, 0, 1, 2][:num_top]


def test_alternatives_do_not_depend_on_how_many_a_neighbour_wants() -> None:
    logits = some_logits(2).mul(4).round().div(4)  # many ties
    alone = [Sampler(END).sample(logits[:1], [row_for(logprobs=n)])[1][0] for n in range(1, 20)]
    beside = [Sampler(END).sample(logits, [row_for(logprobs=n), row_for(logprobs=20)])[1][0] for n in range(1, 20)]
    assert alone == beside


def test_a_scored_row_gives_its_own_token_whatever_the_target_would_say() -> None:
    logits = some_logits(2)
    tokens, entries = Sampler(END).sample(logits, [ScoreRow(17, 1), ScoreRow(0, 2)])
    assert tokens == [17, 0]
    for entry, token, row in zip(entries, tokens, logits, strict=True):
        assert entry is not None
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row.log_softmax(0)[token]), abs=1e-6)
        assert entry.top[0][0] == int(row.argmax())


def test_a_forbidden_token_has_a_log_probability_of_minus_infinity() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 7] = -math.inf
    _, (entry,) = Sampler(END).sample(logits, [ScoreRow(7, 1)])
    assert entry is not None
    assert entry.logprob == -math.inf
