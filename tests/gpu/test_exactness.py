"""Promise 1 on a GPU, as far as its kernels carry it.

Attention, norms and sampling should give a row the same bits whatever is beside it. A matrix product does so only among
steps of one padded shape, for the library chooses a kernel by the number of rows. So two things are held to:

- in one bucket every step has one shape, and whole answers are equal to the last bit;
- in float32 tokens are equal whatever the shapes: sums in another order differ by less than what decides a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.core import EngineCore
from engine.model.cuda_attention import VarlenAttention
from engine.model.row_buckets import RowBucket
from engine.model.tiled_attention import TiledAttention
from tests.draft_pairs import truncated
from tests.exactness.test_tiny_identity import (
    DRAFTERS,
    LENGTHS,
    REQUESTS,
    Answer,
    answer_all,
    answer_of,
    check_teeth,
    make_drafter,
    request_for,
    total,
)
from tests.gpu.engines import cuda_core
from tests.sequences import run
from tests.tiny import tiny_llama

# With at most 128 rows a step, and prompts shorter than the longest draft, it holds every step there is.
ONLY_BUCKET = RowBucket(num_rows=128, num_sequences=128, max_rows=MAX_SPECULATIVE_TOKENS + 1, table_width=1)

MakeCore = Callable[..., EngineCore]


def alone(make_core: MakeCore) -> dict[str, Answer]:
    """Each request by itself, undrafted, in a cold engine."""
    return {name: answer_of(run(make_core(), [request_for(name)])[name]) for name in REQUESTS}


@pytest.fixture(scope="module")
def in_one_bucket(model: PreTrainedModel, varlen: VarlenAttention) -> MakeCore:
    def make(**options: Any) -> EngineCore:
        return cuda_core(model, varlen, buckets=[ONLY_BUCKET], **options)

    return make


@pytest.fixture(scope="module")
def answers_in_one_bucket(in_one_bucket: MakeCore) -> dict[str, Answer]:
    return alone(in_one_bucket)


@pytest.mark.parametrize(("kind", "length"), [("none", 0), *((kind, n) for kind in DRAFTERS for n in LENGTHS)])
def test_whole_answers_in_one_bucket_with_fifteen_neighbours(
    in_one_bucket: MakeCore, answers_in_one_bucket: dict[str, Answer], kind: str, length: int
) -> None:
    drafter = make_drafter(kind, answers_in_one_bucket)
    answers, _ = answer_all(in_one_bucket(drafter=drafter), length)
    assert answers == answers_in_one_bucket


def test_whole_answers_in_one_bucket_with_chunked_prefill(
    in_one_bucket: MakeCore, answers_in_one_bucket: dict[str, Answer]
) -> None:
    drafter = make_drafter("oracle", answers_in_one_bucket)
    answers, _ = answer_all(in_one_bucket(drafter=drafter, max_num_batched_tokens=20), 8)
    assert answers == answers_in_one_bucket


def test_whole_answers_in_one_bucket_with_a_draft_model(
    model: PreTrainedModel, in_one_bucket: MakeCore, answers_in_one_bucket: dict[str, Answer]
) -> None:
    draft = truncated(tiny_llama()).to(model.device, model.dtype)
    answers, sequences = answer_all(in_one_bucket(draft=draft, looks_at_each=False), 4)
    assert answers == answers_in_one_bucket
    assert total(sequences).num_accepted_tokens > 0


@pytest.fixture(scope="module")
def in_float32(device: torch.device) -> MakeCore:
    """The reference attention, without graphs."""
    model = tiny_llama().to(device)

    def make(**options: Any) -> EngineCore:
        return cuda_core(model, TiledAttention(), **options)

    return make


@pytest.fixture(scope="module")
def answers_in_float32(in_float32: MakeCore) -> dict[str, Answer]:
    return alone(in_float32)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_in_float32_with_fifteen_neighbours(
    in_float32: MakeCore, answers_in_float32: dict[str, Answer], kind: str, length: int
) -> None:
    drafter = make_drafter(kind, answers_in_float32)
    answers, sequences = answer_all(in_float32(drafter=drafter), length)
    tokens, expected = ({name: answer[0] for name, answer in of.items()} for of in (answers, answers_in_float32))
    assert tokens == expected
    check_teeth(kind, length, total(sequences))
