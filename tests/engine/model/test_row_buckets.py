"""Which row counts are captured, and that every usual step has its bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.model.flat_batch import FlatBatch
from engine.model.row_buckets import RowBucket, find_bucket, row_buckets


def buckets(max_num_seqs: int, longest_draft: int, budget: int = 512) -> list[RowBucket]:
    return row_buckets(
        max_num_seqs=max_num_seqs, longest_draft=longest_draft, max_num_batched_tokens=budget, table_width=3
    )


def step(row_counts: list[int], *, table_width: int = 1, num_logit_rows: int | None = None) -> FlatBatch:
    num_rows = sum(row_counts)
    rows = list(range(num_rows))
    logit_rows = rows if num_logit_rows is None else rows[:num_logit_rows]
    return FlatBatch(rows, rows, rows, logit_rows, row_counts, row_counts, [[1]] * len(row_counts), table_width)


@pytest.mark.parametrize(
    ("max_num_seqs", "longest_draft", "budget", "counts"),
    [
        (1, 0, 512, [1]),
        (1, 6, 512, [1, 2, 4, 7]),
        (4, 4, 512, [1, 2, 4, 8, 16, 20]),
        (4, 4, 10, [1, 2, 4, 8, 10]),
        (32, 6, 512, [1, 2, 4, *range(8, 225, 8)]),
        (256, 8, 4096, [1, 2, 4, *range(8, 257, 8)]),
    ],
)
def test_the_row_counts(max_num_seqs: int, longest_draft: int, budget: int, counts: list[int]) -> None:
    assert [bucket.num_rows for bucket in buckets(max_num_seqs, longest_draft, budget)] == counts


def test_bounds_of_a_bucket() -> None:
    *_, last = buckets(max_num_seqs=32, longest_draft=6)
    # A step of 217 rows has up to 32 sequences, and 7 rows of padding.
    assert last == RowBucket(num_rows=224, num_sequences=39, max_rows=MAX_SPECULATIVE_TOKENS + 1, table_width=3)
    assert last.shape == (224, 224, 39, 3)


@given(st.integers(1, 40), st.integers(0, MAX_SPECULATIVE_TOKENS), st.data())
def test_every_step_of_decoding_and_verifying_is_held_by_the_smallest_bucket_with_room(
    max_num_seqs: int, longest_draft: int, data: st.DataObject
) -> None:
    some = buckets(max_num_seqs, longest_draft, budget=2048)
    counts = data.draw(st.lists(st.integers(1, longest_draft + 1), min_size=1, max_size=max_num_seqs))
    flat = step(counts)
    bucket = find_bucket(some, flat)
    if flat.num_rows > some[-1].num_rows:
        assert bucket is None
        return
    assert bucket is not None
    assert bucket.num_rows == min(b.num_rows for b in some if b.num_rows >= flat.num_rows)
    padded = flat.pad(bucket.shape)
    assert padded.shape == bucket.shape
    assert sum(padded.row_counts) == padded.num_rows
    assert max(padded.row_counts) <= bucket.max_rows


@pytest.mark.parametrize(
    "flat",
    [
        step([34]),  # longer than any draft
        step([1, 2], table_width=4),  # a longer context than the model has
        step([1] * 41),  # more sequences than one step may have, with their padding
        step([1] * 300),  # more rows than are captured
    ],
    ids=["chunk", "context", "sequences", "rows"],
)
def test_steps_without_a_bucket(flat: FlatBatch) -> None:
    assert find_bucket(buckets(max_num_seqs=32, longest_draft=6), flat) is None


@pytest.mark.parametrize("bucket", buckets(max_num_seqs=5, longest_draft=7))
def test_a_null_step_fills_its_bucket_and_stays_in_the_null_block(bucket: RowBucket) -> None:
    flat = bucket.null_step()
    assert flat.shape == bucket.shape
    assert sum(flat.row_counts) == flat.num_rows
    assert 1 <= min(flat.row_counts) <= max(flat.row_counts) <= bucket.max_rows
    assert set(flat.slots) == {0}
    assert not any(flat.block_tables)
    ends = [position + 1 for position, after in zip(flat.positions, [*flat.positions[1:], 0], strict=True) if not after]
    assert ends == flat.context_lengths == flat.row_counts
