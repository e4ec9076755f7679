"""One step as tensors: what the unchanged model code is called with. Lives for one forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.flat_batch import FlatBatch
from engine.model.upload import upload


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A ``FlatBatch`` on the model's device.

    Attributes:
        input_ids, positions, slots: int64 ``[num_rows]``.
        logit_rows: int64 ``[num_logit_rows]``, the rows whose logits are wanted, in the verifier's order.
        cumulative_rows: int32 ``[num_sequences + 1]``, rows of the sequences before each.
        context_lengths: int32 ``[num_sequences]``.
        block_tables: int32 ``[num_sequences, table_width]``, padded with the null block.
        max_rows, max_context: no sequence has more rows, or a longer context.
        flat: the same numbers on the host; in a captured forward those of the capture, which nothing may rely on.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logit_rows: torch.Tensor
    cumulative_rows: torch.Tensor
    context_lengths: torch.Tensor
    block_tables: torch.Tensor
    max_rows: int
    max_context: int
    flat: FlatBatch


def send(flat: FlatBatch, device: torch.device) -> ForwardBatch:
    """The step on a device, by one copy that nobody waits for."""
    packed = upload(flat.pack(), device)
    return unpack(packed, flat, max_rows=max(flat.row_counts), max_context=max(flat.context_lengths))


def unpack(packed: torch.Tensor, flat: FlatBatch, *, max_rows: int, max_context: int) -> ForwardBatch:
    """Views of ``packed`` where int64 is wanted, and one conversion of the rest.

    Args:
        packed: int64, as ``flat.pack`` orders it.
    """
    num_rows, num_logit_rows, num_sequences, table_width = flat.shape
    wide = [num_rows, num_rows, num_rows, num_logit_rows]
    narrow = [num_sequences + 1, num_sequences, num_sequences * table_width]
    input_ids, positions, slots, logit_rows = packed[: sum(wide)].split(wide)
    cumulative_rows, context_lengths, block_tables = packed[sum(wide) :].to(torch.int32).split(narrow)
    return ForwardBatch(
        input_ids=input_ids,
        positions=positions,
        slots=slots,
        logit_rows=logit_rows,
        cumulative_rows=cumulative_rows,
        context_lengths=context_lengths,
        block_tables=block_tables.view(num_sequences, table_width),
        max_rows=max_rows,
        max_context=max_context,
        flat=flat,
    )
