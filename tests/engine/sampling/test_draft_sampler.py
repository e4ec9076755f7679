"""A draft model's tokens: those that the target would draw from the same logits, and how far they were ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.native.functions import NativeLibrary
from engine.sampling.draft_sampler import DraftSampler
from engine.sampling.logits import SamplingRow, adjust, reads_draft, truncate
from engine.sampling.native_draw import NativeDraw
from engine.sampling.noise import gumbel_noise
from engine.sampling.sampler import Sampler
from tests.exactness.test_tiny_identity import REQUESTS
from tests.sequences import make_sequence

ENDS = frozenset({0})
VOCAB_SIZE = 300


@pytest.fixture(params=["torch", "native"])
def native(request: pytest.FixtureRequest) -> NativeDraw | None:
    if request.param == "torch":
        return None
    library: NativeLibrary = request.getfixturevalue("native_library")
    return NativeDraw(library)


def rows() -> list[SamplingRow]:
    """Each kind of request, at the beginning of a draft and inside of one."""
    return [
        SamplingRow(make_sequence(name, [8, 9, 10], **({"seed": seed} | params)), prefix)
        for seed, (name, params) in enumerate(REQUESTS.items())
        for prefix in ((), (9, 10), (11, 12, 11, 12, 13))
    ]


def logits_for(rows: list[SamplingRow]) -> torch.Tensor:
    return torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(3)) * 2


def test_the_tokens_are_those_of_the_target(native: NativeDraw | None) -> None:
    wanted = rows()
    logits = logits_for(wanted)
    tokens, _ = DraftSampler(ENDS, native).draw(logits, wanted)
    assert tokens.tolist() == Sampler(ENDS, native).sample(logits, wanted)[0]
    assert torch.equal(logits, logits_for(wanted))


def test_margins_are_the_distance_to_the_second_best(native: NativeDraw | None) -> None:
    wanted = rows()
    logits = logits_for(wanted)
    _, margins = DraftSampler(ENDS, native).draw(logits, wanted)
    for row, own, margin in zip(wanted, logits, margins.tolist(), strict=True):
        assert margin == pytest.approx(margin_by_hand(own.clone(), row), abs=2e-4)


def margin_by_hand(logits: torch.Tensor, row: SamplingRow) -> float:
    adjust(logits.unsqueeze(0), [row], ENDS)
    temperature = row.params.temperature
    if temperature > 0:
        noise = gumbel_noise([(row.params.seed, row.output_index)], VOCAB_SIZE, logits.device)[0]
        logits = truncate(logits, row.params) / temperature + noise
    best, second = logits.topk(2).values.tolist()
    return float(best - second)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_without_rivals_is_infinitely_far_ahead(native: NativeDraw | None, temperature: float) -> None:
    params: dict[str, Any] = {"temperature": temperature, "allowed_token_ids": frozenset({7})}
    tokens, margins = DraftSampler(ENDS, native).draw(
        torch.zeros(1, VOCAB_SIZE), [SamplingRow(make_sequence("a", [1], **params))]
    )
    assert (tokens.tolist(), margins.tolist()) == ([7], [float("inf")])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_some_token_is_drawn_without_confidence(
    native: NativeDraw | None, temperature: float
) -> None:
    """A draft model's vocabulary may lack all that a request allows."""
    row = SamplingRow(make_sequence("a", [1], temperature=temperature))
    tokens, margins = DraftSampler(ENDS, native).draw(torch.full((1, VOCAB_SIZE), -torch.inf), [row])
    assert 0 <= tokens.item() < VOCAB_SIZE
    assert margins.tolist() == [0.0]


def test_which_requests_read_the_draft() -> None:
    """Exactly those whose adjusted logits change with the tokens before the row, their number being the same."""
    for name, params in REQUESTS.items():
        sequence = make_sequence(name, [8, 9, 10], **params)
        made = []
        for prefix in ((13, 14, 9), (8, 13, 60), (13, 13, 13), (20, 20, 10)):
            logits = torch.ones(1, VOCAB_SIZE)
            adjust(logits, [SamplingRow(sequence, prefix)], ENDS)
            made.append(logits)
        changes = any(not torch.equal(other, made[0]) for other in made[1:])
        assert changes == reads_draft(sequence.params), name
