"""The tensors behind the block tables. Which block holds what is the block manager's business."""

from __future__ import annotations

from collections.abc import Callable

import torch

RowWriter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def copy_rows(slots: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> None:
    """``slots[positions] = rows``, for positions int64 ``[num_rows]``."""
    slots.index_copy_(0, positions, rows)


class KVPool:
    """Keys and values of every layer in slots; slot ``block * block_size + offset`` is one token's.

    Args:
        num_blocks: blocks, the null block 0 among them.
        write_rows: puts rows into slots, as ``copy_rows``.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        write_rows: RowWriter = copy_rows,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Zeros and not garbage: masked keys are multiplied by a weight of 0, and 0 times NaN is NaN.
        self._data = torch.zeros(
            (num_layers, 2, num_blocks * block_size, num_kv_heads, head_dim), dtype=dtype, device=device
        )
        self._write_rows = write_rows
        self._layers = [(keys, values) for keys, values in self._data]

    @staticmethod
    def bytes_per_token(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each ``[num_slots, num_kv_heads, head_dim]``."""
        return self._layers[index]

    def write(self, index: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the rows of one forward.

        Args:
            slots: int64 ``[num_rows]``.
            key, value: ``[num_rows, num_kv_heads, head_dim]``.
        """
        keys, values = self.layer(index)
        self._write_rows(keys, slots, key)
        self._write_rows(values, slots, value)
