"""Ragged batches over a pool whose keys and values are known, to attend to in ways that must agree."""

from __future__ import annotations

import random

import torch

from engine.model.flat_batch import FlatBatch
from engine.model.forward_batch import ForwardBatch, send

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16

Rows = tuple[int, int, int]  # sequence, first position, end position


class PagedTexts:
    """Sequences with random queries, keys and values, scattered over the blocks of a pool."""

    def __init__(
        self, lengths: list[int], *, block_size: int, dtype: torch.dtype = torch.float32, head_dim: int = HEAD_DIM
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.block_size = block_size
        self._tables = self._scatter(lengths)
        num_slots = (1 + sum(len(table) for table in self._tables)) * block_size
        shape = (num_slots, NUM_KV_HEADS, head_dim)
        self.keys, self.values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        self.queries = [torch.randn(n, NUM_HEADS, head_dim, generator=generator).to(dtype) for n in lengths]

    def _scatter(self, lengths: list[int]) -> list[list[int]]:
        counts = [-(-length // self.block_size) for length in lengths]
        blocks = list(range(1, 1 + sum(counts)))
        random.Random(0).shuffle(blocks)
        return [[blocks.pop() for _ in range(count)] for count in counts]

    def slots(self, sequence: int, first: int, end: int) -> list[int]:
        table, size = self._tables[sequence], self.block_size
        return [table[p // size] * size + p % size for p in range(first, end)]

    def batch(self, parts: list[Rows]) -> ForwardBatch:
        """One forward over some rows of some sequences, each with just the blocks it needs."""
        tables = [self._tables[sequence][: -(-end // self.block_size)] for sequence, _, end in parts]
        positions = [p for _, first, end in parts for p in range(first, end)]
        flat = FlatBatch(
            input_ids=[0] * len(positions),
            positions=positions,
            slots=[slot for part in parts for slot in self.slots(*part)],
            logit_rows=[],
            row_counts=[end - first for _, first, end in parts],
            context_lengths=[end for _, _, end in parts],
            block_tables=tables,
            table_width=max(len(table) for table in tables),
        )
        return send(flat, self.keys.device)

    def query(self, parts: list[Rows]) -> torch.Tensor:
        return torch.cat([self.queries[sequence][first:end] for sequence, first, end in parts])
