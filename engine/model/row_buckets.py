"""The few shapes that forwards are captured in, and which of them a step is padded to.

Knows counts only. Refuses to know devices and what a capture is.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.model.flat_batch import BatchShape, FlatBatch

# Small steps are the common ones, and there a row more is felt most.
_ROW_COUNTS = (1, 2, 4, *range(8, 256, 8))
# Beyond this a forward should keep a GPU busy for longer than its launches take; each shape costs memory and time.
_MOST_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBucket:
    """Bounds of the steps that one captured forward serves.

    Attributes:
        num_rows: rows of the forward, padding included.
        num_sequences: sequences of the forward, padding included; enough for every step that belongs here.
        max_rows: most rows of one sequence.
        table_width: most blocks of one sequence.
    """

    num_rows: int
    num_sequences: int
    max_rows: int
    table_width: int

    @property
    def shape(self) -> BatchShape:
        return BatchShape(self.num_rows, self.num_rows, self.num_sequences, self.table_width)

    def null_step(self) -> FlatBatch:
        """A full step that reads and writes the null block alone."""
        even, rest = divmod(self.num_rows, self.num_sequences)
        row_counts = [even + 1] * rest + [even] * (self.num_sequences - rest)
        return FlatBatch(
            input_ids=[0] * self.num_rows,
            positions=[position for count in row_counts for position in range(count)],
            slots=[0] * self.num_rows,
            logit_rows=list(range(self.num_rows)),
            row_counts=row_counts,
            context_lengths=row_counts,
            block_tables=[[]] * self.num_sequences,
            table_width=self.table_width,
        )

    def holds(self, flat: FlatBatch) -> bool:
        num_padding = self.num_rows - flat.num_rows
        return (
            num_padding >= 0
            and len(flat.row_counts) + num_padding <= self.num_sequences
            and len(flat.logit_rows) <= self.num_rows
            and max(flat.row_counts) <= self.max_rows
            and flat.table_width <= self.table_width
        )


def row_buckets(
    *, max_num_seqs: int, longest_draft: int, max_num_batched_tokens: int, table_width: int
) -> list[RowBucket]:
    """Buckets for decoding and verifying, smallest first: 1, 2, 4, 8, 16, 24 and so on up to the largest usual step.

    A bucket also takes the end of a prompt if that is no longer than a draft may be. Longer chunks have none.

    Args:
        longest_draft: of a request that does not ask for a longer one; with ``max_num_seqs`` it bounds a usual step.
        table_width: blocks that the longest sequence takes.
    """
    most = min(max_num_seqs * (longest_draft + 1), max_num_batched_tokens, _MOST_ROWS)
    counts = [*(count for count in _ROW_COUNTS if count < most), most]
    return [
        RowBucket(
            num_rows=count,
            # Each row of padding is a sequence, and a step that needed more of it belongs to the bucket before.
            num_sequences=min(count, max_num_seqs + count - before - 1),
            max_rows=min(count, MAX_SPECULATIVE_TOKENS + 1),
            table_width=table_width,
        )
        for before, count in zip([0, *counts], counts, strict=False)
    ]


def find_bucket(buckets: Seq[RowBucket], flat: FlatBatch) -> RowBucket | None:
    """The smallest of ``buckets``, which are sorted, that holds a step."""
    return next((bucket for bucket in buckets if bucket.holds(flat)), None)
