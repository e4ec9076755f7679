"""The fast attention against the reference on the same device, and what its bits may not depend on."""

from __future__ import annotations

import pytest
import torch

from engine.model.attention import AttentionBackend, AttentionOptions
from engine.model.cuda_attention import VarlenAttention
from engine.model.flat_batch import BatchShape
from engine.model.forward_batch import ForwardBatch, send
from engine.model.tiled_attention import TiledAttention
from tests.engine.model.paged_cases import PagedTexts, Rows
from tests.gpu.engines import BLOCK_SIZE

LENGTHS = [300, 5, 700, 257]


@pytest.fixture(scope="module")
def texts(device: torch.device) -> PagedTexts:
    texts = PagedTexts(LENGTHS, block_size=BLOCK_SIZE, dtype=torch.bfloat16, head_dim=64)
    texts.keys, texts.values = texts.keys.to(device), texts.values.to(device)
    return texts


def attend(
    backend: AttentionBackend, texts: PagedTexts, batch: ForwardBatch, query: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    plan = backend.plan(batch, BLOCK_SIZE)
    return backend.attend(query.cuda(), texts.keys, texts.values, plan, AttentionOptions(0.125, window))


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize(
    "parts",
    [
        [(0, 299, 300), (1, 4, 5), (2, 699, 700), (3, 256, 257)],
        [(0, 295, 300), (1, 0, 5), (2, 690, 700), (3, 0, 257)],
    ],
    ids=["decoding", "mixed"],
)
def test_close_to_the_reference(
    texts: PagedTexts, varlen: VarlenAttention, parts: list[Rows], window: int | None
) -> None:
    batch, query = texts.batch(parts), texts.query(parts)
    fast, slow = (attend(backend, texts, batch, query, window) for backend in (varlen, TiledAttention()))
    torch.testing.assert_close(fast, slow, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sequence", range(len(LENGTHS)))
def test_a_row_has_the_same_bits_alone_in_a_draft_and_among_neighbours(
    texts: PagedTexts, varlen: VarlenAttention, sequence: int
) -> None:
    length = LENGTHS[sequence]
    alone: list[Rows] = [(sequence, length - 3, length - 2)]
    drafted: list[Rows] = [(sequence, length - 3, length)]
    crowd = [(other, LENGTHS[other] - 2, LENGTHS[other]) for other in range(len(LENGTHS)) if other != sequence]
    expected = attend(varlen, texts, texts.batch(alone), texts.query(alone))[0]
    assert torch.equal(attend(varlen, texts, texts.batch(drafted), texts.query(drafted))[0], expected)
    crowded = [*crowd, *drafted]
    assert torch.equal(attend(varlen, texts, texts.batch(crowded), texts.query(crowded))[2 * len(crowd)], expected)


def test_padding_and_bounds_change_no_bit(texts: PagedTexts, varlen: VarlenAttention, device: torch.device) -> None:
    parts: list[Rows] = [(0, 297, 300), (2, 699, 700)]
    batch, query = texts.batch(parts), texts.query(parts)
    expected = attend(varlen, texts, batch, query)
    padded = send(batch.flat.pad(BatchShape(8, 0, 9, 16)), device)
    queries = torch.cat([query, torch.ones_like(query)])
    output = attend(varlen, texts, padded, queries)
    assert torch.equal(output[:4], expected)
    assert output.isfinite().all()
