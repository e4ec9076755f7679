"""The law of the output at temperature 1: exactly the model's, whoever drafts. Chi-square over pairs of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import PreTrainedModel

from engine.params import SamplingParams
from engine.sampling.noise import gumbel_noise
from engine.sampling.sampler import Sampler
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.verifier import Verifier
from engine.types import Draft
from tests.drafters import Guesser, RandomDrafter, ReplayDrafter
from tests.sequences import make_sequence, run
from tests.tiny import build_core, one_thread, stable_llama

VOCAB_SIZE = 24
PROMPT = [3, 4, 5, 6]
NUM_DRAWS = 4000
NUM_MANY = 20_000  # what it takes to see a bias of two per cent
SIGNIFICANCE = 1e-4


class LikeliestDrafter(Guesser):
    """Proposes the token that the target likes best, given the one before."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self._first, self._second = first, second

    def guess(self, sequence: Sequence, draft: list[int]) -> int:
        said = sequence.token_ids[sequence.num_prompt_tokens :] + draft
        return int((self._second[said[0]] if said else self._first).argmax())


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(steady: None) -> PreTrainedModel:
    return stable_llama(3, vocab_size=VOCAB_SIZE, sharpness=0.03)


@pytest.fixture(scope="module")
def law(model: PreTrainedModel) -> tuple[np.ndarray, np.ndarray]:
    """The model's own probabilities of the first token, and of the second given the first."""
    texts = [[*PROMPT, token] for token in range(VOCAB_SIZE)]
    reference = stable_llama(3, vocab_size=VOCAB_SIZE, sharpness=0.03)
    with torch.inference_mode():
        p = reference(input_ids=torch.tensor(texts)).logits[:, -2:].double().softmax(-1).numpy()
    return p[0, 0], p[:, 1]


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square of counts; cells expected less than five times go together with the smallest of the others."""
    order = probabilities.ravel().argsort()[::-1]
    counts, expected = counts.ravel()[order], probabilities.ravel()[order] * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    starts = np.arange((expected >= 5).sum())
    return float(stats.chisquare(np.add.reduceat(counts, starts), np.add.reduceat(expected, starts)).pvalue)


def draw_pairs(
    model: PreTrainedModel, drafter: Drafter, length: int, **params: float
) -> tuple[np.ndarray, list[Sequence]]:
    """Two tokens from each of many seeds."""
    core = build_core(model, drafter=drafter, num_blocks=1200, max_num_seqs=250, max_num_batched_tokens=1300)
    options = {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True} | params
    sequences = [
        make_sequence(str(seed), PROMPT, seed=seed, num_speculative_tokens=length, **options)
        for seed in range(NUM_DRAWS)
    ]
    run(core, sequences)
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE), dtype=np.int64)
    for sequence in sequences:
        counts[tuple(sequence.token_ids[-2:])] += 1
    return counts, sequences


def test_the_law_is_wide_enough_to_be_missed(law: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = law
    pairs = first[:, None] * second
    assert (pairs * NUM_DRAWS >= 5).sum() > 100
    assert 0.05 < first.max() < 0.6


@pytest.mark.parametrize("kind", ["none", "likeliest", "random"])
def test_pairs_follow_the_model(model: PreTrainedModel, law: tuple[np.ndarray, np.ndarray], kind: str) -> None:
    first, second = law
    drafters: dict[str, Drafter] = {
        "none": NullDrafter(),
        "likeliest": LikeliestDrafter(*law),
        "random": RandomDrafter(VOCAB_SIZE),
    }
    counts, sequences = draw_pairs(model, drafters[kind], 0 if kind == "none" else 1)
    assert p_value(counts, first[:, None] * second) > SIGNIFICANCE
    assert p_value(counts.sum(1), first) > SIGNIFICANCE
    common = int(counts.sum(1).argmax())
    assert p_value(counts[common], second[common]) > SIGNIFICANCE
    check_drafts(kind, sequences, first)


def check_drafts(kind: str, sequences: list[Sequence], first: np.ndarray) -> None:
    drafted = sum(s.stats.num_draft_tokens for s in sequences)
    accepted = sum(s.stats.num_accepted_tokens for s in sequences)
    if kind == "none":
        assert drafted == 0
    else:
        # A fixed guess is right with the probability that the target gives it: no rule that is lossless does better.
        chance = float(first.max()) if kind == "likeliest" else 1 / VOCAB_SIZE
        assert drafted == NUM_DRAWS
        assert stats.binomtest(accepted, drafted, chance).pvalue > SIGNIFICANCE


def test_an_oracle_is_believed_and_changes_nothing(model: PreTrainedModel) -> None:
    plain, sequences = draw_pairs(model, NullDrafter(), 0)
    answers = {s.request_id: s.token_ids[-2:] for s in sequences}
    drafted, believers = draw_pairs(model, ReplayDrafter(answers), 1)
    assert np.array_equal(plain, drafted)
    assert all(s.stats.acceptance_rate == 1 for s in believers)


def test_truncated_pairs_follow_the_truncated_model(model: PreTrainedModel, law: tuple[np.ndarray, np.ndarray]) -> None:
    params = {"temperature": 0.7, "top_k": 6}
    first, second = (sharpen(p, SamplingParams(seed=0, temperature=0.7, top_k=6)) for p in law)
    counts, _ = draw_pairs(model, LikeliestDrafter(*law), 1, **params)
    assert p_value(counts, first[:, None] * second) > SIGNIFICANCE
    assert p_value(counts, law[0][:, None] * law[1]) < SIGNIFICANCE


def sharpen(p: np.ndarray, params: SamplingParams) -> np.ndarray:
    q = p ** (1 / params.temperature)
    q = np.where(q >= np.sort(q, axis=-1)[..., -params.top_k, None], q, 0)
    return np.asarray(q / q.sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def shared_noise() -> np.ndarray:
    """The noise of many seeds at output index 0, which target and drafter may share only under sample and match."""
    keys = [(seed, 0) for seed in range(NUM_MANY)]
    return gumbel_noise(keys, VOCAB_SIZE, torch.device("cpu")).double().numpy()


@pytest.fixture(scope="module")
def p_and_q() -> tuple[np.ndarray, np.ndarray]:
    p, q = np.random.default_rng(0).dirichlet(np.ones(VOCAB_SIZE), size=2)
    return p, q


def test_a_drafter_with_the_same_noise_does_not_pull_the_output(
    shared_noise: np.ndarray, p_and_q: tuple[np.ndarray, np.ndarray]
) -> None:
    p, q = p_and_q
    drafts = [Draft((int(token),)) for token in (np.log(q) + shared_noise).argmax(1)]
    entries = [
        ScheduledSequence(make_sequence(str(seed), [1], seed=seed, temperature=1.0), 1) for seed in range(NUM_MANY)
    ]
    logits = torch.tensor(np.log(p), dtype=torch.float32).expand(2 * NUM_MANY, -1)
    verdicts = Verifier(Sampler(frozenset())).verify(ScheduledBatch(entries), drafts, logits)
    firsts = np.bincount([verdict.token_ids[0] for verdict in verdicts], minlength=VOCAB_SIZE)
    assert p_value(firsts, p) > SIGNIFICANCE
    # Far more is accepted than drafts without the noise could hope for.
    assert sum(verdict.num_accepted for verdict in verdicts) / NUM_MANY > 1.5 * float(p @ q)


def test_a_biased_rule_would_be_caught(shared_noise: np.ndarray, p_and_q: tuple[np.ndarray, np.ndarray]) -> None:
    """Negative control: a ratio test whose residual is drawn with the draft's noise, and one with noise of its own."""
    p, q = p_and_q
    fresh = gumbel_noise([(seed, 1) for seed in range(NUM_MANY)], VOCAB_SIZE, torch.device("cpu")).double().numpy()
    draft = (np.log(q) + shared_noise).argmax(1)
    is_accepted = np.random.default_rng(1).random(NUM_MANY) < p[draft] / q[draft]
    with np.errstate(divide="ignore"):
        residual = np.log(np.maximum(p - q, 0))
    for noise, is_caught in ((shared_noise, True), (fresh, False)):
        tokens = np.where(is_accepted, draft, (residual + noise).argmax(1))
        value = p_value(np.bincount(tokens, minlength=VOCAB_SIZE), p)
        assert (value < SIGNIFICANCE) == is_caught
