"""Attention on the CPU, in torch and in C++: right against a naive loop in float64, the same bits in every batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.model.attention import AttentionBackend, AttentionOptions, AttentionShape
from engine.model.native_attention import open_native_attention
from engine.model.tiled_attention import TiledAttention
from engine.native.functions import NativeLibrary
from tests.engine.model.paged_cases import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, PagedTexts, Rows

SHAPE = AttentionShape(
    num_heads=NUM_HEADS,
    num_kv_heads=NUM_KV_HEADS,
    head_dim=HEAD_DIM,
    block_size=16,
    dtype=torch.float32,
    softcap=None,
)
PLAIN = AttentionOptions(HEAD_DIM**-0.5)
OPTIONS = [
    PLAIN,
    AttentionOptions(0.5, window=7),
    AttentionOptions(0.5, window=130),
    AttentionOptions(0.5, softcap=2.0),
    AttentionOptions(0.3, window=64, softcap=1.0),
]


class Attention:
    """A backend, called with what ``PagedTexts`` has."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def __call__(self, texts: PagedTexts, parts: list[Rows], options: AttentionOptions = PLAIN) -> torch.Tensor:
        plan = self._backend.plan(texts.batch(parts), texts.block_size)
        return self._backend.attend(texts.query(parts), texts.keys, texts.values, plan, options)


@pytest.fixture(scope="module", params=["tiled", "native"])
def attend(request: pytest.FixtureRequest, native_library: NativeLibrary) -> Attention:
    if request.param == "tiled":
        return Attention(TiledAttention())
    native = open_native_attention(SHAPE, native_library)
    assert native is not None
    return Attention(native)


def attend_slowly(texts: PagedTexts, parts: list[Rows], options: AttentionOptions) -> torch.Tensor:
    rows = []
    for sequence, first, end in parts:
        slots = texts.slots(sequence, 0, end)
        keys, values = texts.keys[slots].double(), texts.values[slots].double()
        for position in range(first, end):
            start = 0 if options.window is None else max(0, position - options.window + 1)
            heads = []
            for head in range(NUM_HEADS):
                kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
                query = texts.queries[sequence][position, head].double()
                scores = keys[start : position + 1, kv_head] @ query * options.scale
                if options.softcap is not None:
                    scores = options.softcap * (scores / options.softcap).tanh()
                heads.append(scores.softmax(0) @ values[start : position + 1, kv_head])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


MIXED: list[Rows] = [(0, 0, 40), (1, 299, 300), (2, 120, 137), (3, 127, 129), (4, 0, 1), (5, 250, 259)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("block_size", [1, 4, 16, 48])
def test_it_computes_attention(attend: Attention, block_size: int, options: AttentionOptions) -> None:
    """Prefill, decode, chunk, verify and single rows, grouped heads, across block and tile boundaries."""
    texts = PagedTexts([40, 300, 150, 129, 1, 259], block_size=block_size)
    exact = attend_slowly(texts, MIXED, options)
    torch.testing.assert_close(attend(texts, MIXED, options).double(), exact, rtol=1e-5, atol=1e-5)


def test_small_types_are_rounded_once_at_the_end(attend: Attention) -> None:
    dtype = torch.bfloat16
    texts = PagedTexts([40, 300, 150, 129, 1, 259], block_size=16, dtype=dtype)
    result = attend(texts, MIXED)
    assert result.dtype == dtype
    exact = attend_slowly(texts, MIXED, PLAIN)
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_garbage_behind_the_last_row_is_not_read(attend: Attention) -> None:
    texts = PagedTexts([100, 300], block_size=16)
    parts: list[Rows] = [(0, 30, 40), (1, 200, 201)]
    before = attend(texts, parts)
    for sequence, length, end in ((0, 100, 40), (1, 300, 201)):
        beyond = texts.slots(sequence, end, length)
        texts.keys[beyond] = 1e30
        texts.values[beyond] = 1e30
    assert torch.equal(attend(texts, parts), before)


LENGTHS = [3, 17, 40, 64, 100, 127, 128, 129, 140, 200, 256, 257, 280, 300, 310, 320]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16])
def texts(request: pytest.FixtureRequest) -> PagedTexts:
    return PagedTexts(LENGTHS, block_size=16, dtype=request.param)


def rows_alone(attend: Attention, texts: PagedTexts, sequence: int, options: AttentionOptions) -> torch.Tensor:
    """Every row of a sequence in a forward of its own: plain decoding."""
    return torch.cat([attend(texts, [(sequence, p, p + 1)], options) for p in range(LENGTHS[sequence])])


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[4]])
def test_the_same_bits_however_the_rows_are_cut(
    attend: Attention, texts: PagedTexts, options: AttentionOptions
) -> None:
    alone = rows_alone(attend, texts, 13, options)
    for size in (2, 5, 9, 16, 17, 100, 300):
        chunks = [(13, first, min(first + size, 300)) for first in range(0, 300, size)]
        cut = torch.cat([attend(texts, [chunk], options) for chunk in chunks])
        assert torch.equal(cut, alone), f"chunks of {size}"


def test_the_same_bits_with_two_threads(attend: Attention, texts: PagedTexts) -> None:
    parts = [(i, max(0, length - 40), length) for i, length in enumerate(LENGTHS)]
    alone = attend(texts, parts)
    torch.set_num_threads(2)
    assert torch.equal(attend(texts, parts), alone)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[4]])
@pytest.mark.parametrize("num_rows", [1, 9, 17])
def test_the_same_bits_among_fifteen_neighbours(
    attend: Attention, texts: PagedTexts, options: AttentionOptions, num_rows: int
) -> None:
    """Everybody's last rows in one forward: each is what it is alone, one row at a time, and in any order."""
    parts = [(i, max(0, length - num_rows), length) for i, length in enumerate(LENGTHS)]
    together = attend(texts, parts, options).split([end - first for _, first, end in parts])
    backward = attend(texts, parts[::-1], options).split([end - first for _, first, end in parts[::-1]])[::-1]
    for (sequence, first, end), here, there in zip(parts, together, backward, strict=True):
        single = torch.cat([attend(texts, [(sequence, p, p + 1)], options) for p in range(first, end)])
        assert torch.equal(here, single)
        assert torch.equal(there, single)


def test_the_same_bits_beside_a_long_prefill(attend: Attention, texts: PagedTexts) -> None:
    alone = attend(texts, [(3, 60, 64)])
    crowded = attend(texts, [(15, 0, 320), (3, 60, 64), (11, 3, 250)])[320:324]
    assert torch.equal(crowded, alone)


def test_the_same_bits_wherever_the_blocks_are(attend: Attention) -> None:
    """Another block size puts everything elsewhere; the numbers in the slots are the same."""
    small, large = PagedTexts([300, 200], block_size=4), PagedTexts([300, 200], block_size=64)
    for sequence, length in ((0, 300), (1, 200)):
        here, there = small.slots(sequence, 0, length), large.slots(sequence, 0, length)
        large.keys[there], large.values[there] = small.keys[here], small.values[here]
        large.queries[sequence] = small.queries[sequence]
    parts: list[Rows] = [(0, 290, 300), (1, 0, 200)]
    assert torch.equal(attend(small, parts), attend(large, parts))


def test_very_large_scores_stay_finite(attend: Attention) -> None:
    texts = PagedTexts([300], block_size=16)
    options = AttentionOptions(1000.0)
    result = attend(texts, [(0, 0, 300)], options)
    assert bool(result.isfinite().all())
    exact = attend_slowly(texts, [(0, 0, 300)], options)
    assert math.isclose(float((result.double() - exact).abs().median()), 0.0, abs_tol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_native_for_every_head_dimension_and_type(
    native_library: NativeLibrary, head_dim: int, dtype: torch.dtype, num_threads: int
) -> None:
    """Against the tiled reference, and row by row against itself, over contexts of several parts."""
    native = open_native_attention(replace(SHAPE, head_dim=head_dim, dtype=dtype), native_library)
    assert native is not None
    texts = PagedTexts([300, 40, 170], block_size=16, dtype=dtype, head_dim=head_dim)
    options = AttentionOptions(head_dim**-0.5, window=200)
    together: list[Rows] = [(0, 250, 300), (1, 39, 40), (2, 0, 170)]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        whole = Attention(native)(texts, together, options)
        expected = Attention(TiledAttention())(texts, together, options)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(whole, expected, rtol=tolerance, atol=tolerance)
        # One row at a time: then threads share out the parts of its context.
        single: list[Rows] = [(s, p, p + 1) for s, first, end in together for p in range(first, end, 7)]
        places = [i for _, i in _rows_of(together, 7)]
        for (sequence, first, end), place in zip(single, places, strict=True):
            assert torch.equal(Attention(native)(texts, [(sequence, first, end)], options)[0], whole[place])
    finally:
        torch.set_num_threads(before)


def _rows_of(parts: list[Rows], step: int) -> list[tuple[int, int]]:
    """Every ``step``-th row of each part, as position and place in the batch."""
    places, offset = [], 0
    for _, first, end in parts:
        places += [(p, offset + p - first) for p in range(first, end, step)]
        offset += end - first
    return places
