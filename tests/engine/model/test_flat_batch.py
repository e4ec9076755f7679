"""A step in one piece: what is packed is what is unpacked, and padding touches the null block only."""

from __future__ import annotations

from array import array

import pytest
import torch

from engine.model.flat_batch import NULL_BATCH, BatchShape, FlatBatch
from engine.model.forward_batch import unpack
from engine.model.upload import upload, upload_into

CPU = torch.device("cpu")
STEP = FlatBatch(
    input_ids=[6, 50, 51, 7],
    positions=[5, 6, 7, 0],
    slots=[21, 22, 23, 8],
    logit_rows=[0, 1, 2],
    row_counts=[3, 1],
    context_lengths=[8, 1],
    block_tables=[[3, 5, 9], [2]],
    table_width=3,
)


def test_pack_and_unpack() -> None:
    batch = unpack(upload(STEP.pack(), CPU), STEP, max_rows=7, max_context=99)
    assert batch.input_ids.tolist() == STEP.input_ids
    assert batch.positions.tolist() == STEP.positions
    assert batch.slots.tolist() == STEP.slots
    assert batch.logit_rows.tolist() == STEP.logit_rows
    assert batch.cumulative_rows.tolist() == [0, 3, 4]
    assert batch.context_lengths.tolist() == STEP.context_lengths
    assert batch.block_tables.tolist() == [[3, 5, 9], [2, 0, 0]]
    assert (batch.max_rows, batch.max_context) == (7, 99)
    wide = {batch.input_ids.dtype, batch.positions.dtype, batch.slots.dtype, batch.logit_rows.dtype}
    narrow = {batch.cumulative_rows.dtype, batch.context_lengths.dtype, batch.block_tables.dtype}
    assert (wide, narrow) == ({torch.int64}, {torch.int32})


def test_what_was_unpacked_follows_what_is_uploaded_into_the_same_place() -> None:
    packed = upload(STEP.pack(), CPU)
    input_ids = unpack(packed, STEP, max_rows=1, max_context=1).input_ids
    upload_into(packed, FlatBatch([1, 2, 3, 4], [0] * 4, [0] * 4, [0] * 3, [3, 1], [3, 1], [[1], [1]], 3).pack())
    assert input_ids.tolist() == [1, 2, 3, 4]


def test_padding_rows_are_sequences_in_the_null_block() -> None:
    padded = STEP.pad(BatchShape(num_rows=6, num_logit_rows=5, num_sequences=5, table_width=4))
    assert padded.input_ids == [6, 50, 51, 7, 0, 0]
    assert padded.positions == [5, 6, 7, 0, 0, 0]
    assert padded.slots == [21, 22, 23, 8, 0, 0]
    assert padded.logit_rows == [0, 1, 2, 0, 0]
    assert padded.row_counts == [3, 1, 1, 1, 0]
    assert padded.context_lengths == [8, 1, 1, 1, 1]
    packed = unpack(upload(padded.pack(), CPU), padded, max_rows=3, max_context=8)
    assert packed.block_tables.tolist() == [[3, 5, 9, 0], [2, 0, 0, 0], *[[0] * 4] * 3]
    assert packed.cumulative_rows.tolist() == [0, 3, 4, 5, 6, 6]


def test_padding_to_the_same_shape_changes_nothing() -> None:
    assert STEP.pad(STEP.shape) == STEP


@pytest.mark.parametrize("shape", [BatchShape(3, 3, 3, 3), BatchShape(6, 6, 3, 3), BatchShape(4, 4, 2, 2)])
def test_no_padding_into_a_shape_without_room(shape: BatchShape) -> None:
    with pytest.raises(AssertionError):
        STEP.pad(shape)


def test_the_null_batch_is_one_row_in_the_null_block() -> None:
    assert NULL_BATCH.shape == (1, 1, 1, 1)
    assert list(NULL_BATCH.pack()) == [0, 0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        (array("q", [1, -2]), torch.int64, [1, -2]),
        ([], torch.int64, []),
        ([[1, 2], [3, 4]], torch.int64, [[1, 2], [3, 4]]),
        ([0.5, 2.0], torch.float32, [0.5, 2.0]),
    ],
)
def test_upload(numbers: list[int], dtype: torch.dtype, expected: list[int]) -> None:
    sent = upload(numbers, CPU, dtype)
    assert sent.tolist() == expected
    assert sent.dtype == dtype
