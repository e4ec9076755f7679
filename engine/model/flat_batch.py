"""One step as plain numbers on the host: rows of all sequences, one after the other.

Knows which token, position and slot every row has, and how the numbers travel as one piece. Refuses to know tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from engine.scheduling.scheduler import ScheduledBatch
from engine.types import Draft


class BatchShape(NamedTuple):
    """How many numbers of each kind a packed step has: all that is needed to take it apart again."""

    num_rows: int
    num_logit_rows: int
    num_sequences: int
    table_width: int


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """Rows of one sequence are consecutive positions.

    Attributes:
        input_ids, positions, slots: one entry a row.
        logit_rows: the rows whose logits are wanted, in the verifier's order.
        row_counts: rows of each sequence.
        context_lengths: of each sequence, its tokens up to and with its last row.
        block_tables: of each sequence; a short one goes on with the null block.
        table_width: entries of every block table once packed.
    """

    input_ids: list[int]
    positions: list[int]
    slots: list[int]
    logit_rows: list[int]
    row_counts: list[int]
    context_lengths: list[int]
    block_tables: list[list[int]]
    table_width: int

    @property
    def num_rows(self) -> int:
        return len(self.input_ids)

    @property
    def shape(self) -> BatchShape:
        return BatchShape(self.num_rows, len(self.logit_rows), len(self.row_counts), self.table_width)

    def pack(self) -> array[int]:
        """All numbers in one piece of int64, in the order in which ``unpack`` takes them apart."""
        packed = array("q")
        for numbers in (self.input_ids, self.positions, self.slots, self.logit_rows):
            packed.extend(numbers)
        packed.extend(accumulate(self.row_counts, initial=0))
        packed.extend(self.context_lengths)
        nulls = array("q", [0]) * self.table_width
        for table in self.block_tables:
            packed.extend(table)
            packed.extend(nulls[len(table) :])
        return packed

    def pad(self, shape: BatchShape) -> FlatBatch:
        """The same step in a larger shape.

        Every row that is added belongs to a sequence of its own, one token long, which lives in the null block; so it
        reads and writes what nobody else reads. Sequences beyond these have no row. Logits that are added are row 0's.
        """
        num_padding = shape.num_rows - self.num_rows
        num_added = shape.num_sequences - len(self.row_counts)
        assert 0 <= num_padding <= num_added
        assert self.table_width <= shape.table_width
        return FlatBatch(
            input_ids=self.input_ids + [0] * num_padding,
            positions=self.positions + [0] * num_padding,
            slots=self.slots + [0] * num_padding,
            logit_rows=self.logit_rows + [0] * (shape.num_logit_rows - len(self.logit_rows)),
            row_counts=self.row_counts + [1] * num_padding + [0] * (num_added - num_padding),
            context_lengths=self.context_lengths + [1] * num_added,
            block_tables=self.block_tables + [[]] * num_added,
            table_width=shape.table_width,
        )


def flatten(batch: ScheduledBatch, drafts: Seq[Draft], block_size: int) -> FlatBatch:
    """The scheduled rows of each sequence and its draft behind them."""
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
        table = sequence.block_table
        slots += [table[p // block_size] * block_size + p % block_size for p in span]
        logit_rows += [first_row + position - start for position in entry.scored_positions]
        if entry.samples:
            logit_rows += range(first_row + entry.num_tokens - 1, first_row + len(tokens))
        row_counts.append(len(tokens))
        context_lengths.append(start + len(tokens))
    tables = [entry.sequence.block_table for entry in batch]
    return FlatBatch(
        input_ids=input_ids,
        positions=positions,
        slots=slots,
        logit_rows=logit_rows,
        row_counts=row_counts,
        context_lengths=context_lengths,
        block_tables=tables,
        table_width=max(map(len, tables)),
    )


# One row into the null block, to try a model or an attention with.
NULL_BATCH = FlatBatch([0], [0], [0], [0], [1], [1], [[]], 1)
