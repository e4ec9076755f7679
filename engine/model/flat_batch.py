"""One step as plain numbers on the host: rows of all sequences, one after the other.

Knows which token, position and slot every row has, and how the numbers travel as one piece. Refuses to know tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
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


class Span(NamedTuple):
    """Rows of one sequence.

    Attributes:
        token_ids: at consecutive positions, ``start`` the first.
        logit_rows: those of them whose logits are wanted, ascending; 0 is the first.
    """

    token_ids: Seq[int]
    start: int
    block_table: list[int]
    logit_rows: Seq[int]


def flatten(batch: ScheduledBatch, drafts: Seq[Draft], block_size: int) -> FlatBatch:
    """The scheduled rows of each sequence and its draft behind them."""
    return lay_out([_span(entry, draft) for entry, draft in zip(batch, drafts, strict=True)], block_size)


def lay_out(spans: Seq[Span], block_size: int) -> FlatBatch:
    """Spans of different sequences, at least one, as one step."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for token_ids, start, table, wanted in spans:
        first_row = len(input_ids)
        input_ids += token_ids
        reach = range(start, start + len(token_ids))
        positions += reach
        slots += [table[p // block_size] * block_size + p % block_size for p in reach]
        logit_rows += [first_row + row for row in wanted]
    tables = [span.block_table for span in spans]
    return FlatBatch(
        input_ids=input_ids,
        positions=positions,
        slots=slots,
        logit_rows=logit_rows,
        row_counts=[len(span.token_ids) for span in spans],
        context_lengths=[span.start + len(span.token_ids) for span in spans],
        block_tables=tables,
        table_width=max(map(len, tables)),
    )


def _span(entry: ScheduledSequence, draft: Draft) -> Span:
    sequence = entry.sequence
    start = sequence.num_computed_tokens
    token_ids = [*sequence.token_ids[start : start + entry.num_tokens], *draft.token_ids]
    wanted = [position - start for position in entry.scored_positions]
    if entry.samples:
        wanted += range(entry.num_tokens - 1, len(token_ids))
    return Span(token_ids, start, sequence.block_table, wanted)


# One row into the null block, to try a model or an attention with.
NULL_BATCH = FlatBatch([0], [0], [0], [0], [1], [1], [[]], 1)
