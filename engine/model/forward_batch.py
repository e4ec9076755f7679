"""One step as flat tensors: what the unchanged model code is called with. Lives for one forward."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from engine.model.kv_pool import KVPool
from engine.scheduling.scheduler import ScheduledBatch
from engine.types import Draft


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Rows of all sequences, one after the other; those of one sequence are consecutive positions.

    Attributes:
        input_ids, positions, slots: int64 ``[num_rows]``.
        logit_rows: int64 ``[num_logit_rows]``, the rows whose logits are wanted, in the verifier's order.
        row_counts: rows of each sequence.
        context_lengths: of each sequence, its tokens up to and with its last row.
        block_tables: int32 ``[num_sequences, longest table]``, padded with the null block.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    row_counts: list[int]
    context_lengths: list[int]
    block_tables: torch.Tensor

    @property
    def num_rows(self) -> int:
        return sum(self.row_counts)


def build_forward_batch(batch: ScheduledBatch, drafts: Seq[Draft], pool: KVPool, device: torch.device) -> ForwardBatch:
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    row_counts: list[int] = []
    context_lengths: list[int] = []
    for entry, draft in zip(batch, drafts, strict=True):
        sequence = entry.sequence
        first_row, start = len(input_ids), sequence.num_computed_tokens
        tokens = sequence.token_ids[start : start + entry.num_tokens]
        tokens += draft.token_ids
        input_ids += tokens
        span = range(start, start + len(tokens))
        positions += span
        table, size = sequence.block_table, pool.block_size
        slots += [table[p // size] * size + p % size for p in span]
        logit_rows += [first_row + position - start for position in entry.scored_positions]
        if entry.samples:
            logit_rows += range(first_row + entry.num_tokens - 1, first_row + len(tokens))
        row_counts.append(len(tokens))
        context_lengths.append(start + len(tokens))
    return ForwardBatch(
        input_ids=torch.tensor(input_ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        row_counts=row_counts,
        context_lengths=context_lengths,
        block_tables=_block_tables([entry.sequence.block_table for entry in batch], device),
    )


def null_batch(device: torch.device) -> ForwardBatch:
    """One row into the null block, to try a model or an attention with."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return ForwardBatch(
        input_ids=zero,
        positions=zero,
        slots=zero,
        logit_rows=zero,
        row_counts=[1],
        context_lengths=[1],
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
    )


def _block_tables(tables: list[list[int]], device: torch.device) -> torch.Tensor:
    width = max(len(table) for table in tables)
    padded = [table + [0] * (width - len(table)) for table in tables]
    return torch.tensor(padded, dtype=torch.int32, device=device)
