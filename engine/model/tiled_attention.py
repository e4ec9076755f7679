"""Attention in plain torch; on the CPU bit for bit the same whatever else is in the batch.

Floating-point sums depend on their order, and library kernels choose it by shape. So every product of one tile has one
shape: 16 query rows by 128 keys; only the number of tiles in a batched product changes. Key tiles are taken in order of
position with a running softmax in float32; a tile with nothing to see changes no bit. Runs on any device and is the
reference for the faster backends.

Source: online softmax, Milakov and Gimelshein (arXiv 1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.model.attention import AttentionOptions
from engine.model.flat_batch import FlatBatch
from engine.model.forward_batch import ForwardBatch
from engine.model.upload import upload

QUERY_TILE = 16
KEY_TILE = 128


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Query tiles of a step, those with the most keys first.

    Attributes:
        rows: int64 ``[num_tiles, QUERY_TILE]``, row of each query; padding repeats the tile's first row.
        positions: int64 ``[num_tiles, QUERY_TILE]``, position of each query.
        slots: int64 ``[num_tiles, num_key_tiles * KEY_TILE]``, slot of each key; the null block where there is none.
        num_active: for each key tile the number of query tiles that see any of it.
        flat: int64 ``[num_rows]``, where each row is in the flattened tiles.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    num_active: list[int]
    flat: torch.Tensor


class TiledAttention:
    """See the module."""

    name = "tiled"
    is_capturable = False

    def plan(self, batch: ForwardBatch, block_size: int) -> TilePlan:
        tiles = sorted(_cut(batch.flat), key=lambda tile: -tile.num_keys)
        device = batch.positions.device
        rows = upload([tile.padded_rows() for tile in tiles], device)
        num_key_tiles = [-(-tile.num_keys // KEY_TILE) for tile in tiles]
        owners = upload([tile.sequence for tile in tiles], device)
        flat = [0] * batch.flat.num_rows
        for index, tile in enumerate(tiles):
            first = index * QUERY_TILE
            flat[tile.first_row : tile.first_row + tile.num_rows] = range(first, first + tile.num_rows)
        return TilePlan(
            rows=rows,
            positions=batch.positions[rows],
            slots=_key_slots(batch.block_tables, block_size, num_key_tiles[0])[owners],
            num_active=[sum(n > t for n in num_key_tiles) for t in range(num_key_tiles[0])],
            flat=upload(flat, device),
        )

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: TilePlan,
        options: AttentionOptions,
    ) -> torch.Tensor:
        num_tiles, num_kv_heads = len(plan.rows), keys.shape[1]
        group, head_dim = query.shape[1] // num_kv_heads, query.shape[2]
        # [tiles, kv_heads, QUERY_TILE * group, head_dim]: the heads that share a key head are rows of one product.
        tiles = query.float()[plan.rows].view(num_tiles, QUERY_TILE, num_kv_heads, group, head_dim)
        tiles = (tiles.transpose(1, 2) * options.scale).reshape(num_tiles, num_kv_heads, QUERY_TILE * group, head_dim)
        best = torch.full((*tiles.shape[:3], 1), -math.inf, device=query.device)
        total = torch.zeros_like(best)
        output = torch.zeros_like(tiles)
        for t, active in enumerate(plan.num_active):
            slots = plan.slots[:active, t * KEY_TILE : (t + 1) * KEY_TILE]
            visible = _visible(plan.positions[:active], t * KEY_TILE, options.window)
            hidden = ~visible.repeat_interleave(group, dim=1).unsqueeze(1)
            key, value = (pool[slots].float().transpose(1, 2) for pool in (keys, values))
            scores = _multiply(tiles[:active], key.transpose(2, 3))
            if options.softcap is not None:
                scores = torch.tanh(scores / options.softcap) * options.softcap
            scores = scores.masked_fill_(hidden, -math.inf)
            peak = torch.maximum(best[:active], scores.amax(dim=-1, keepdim=True))
            # A row may have seen nothing yet (a window that starts later): its peak is -inf, and inf - inf is NaN.
            anchor = peak.masked_fill(peak == -math.inf, 0.0)
            weights = (scores - anchor).exp_()
            decay = (best[:active] - anchor).exp_()
            total[:active] = total[:active] * decay + weights.sum(dim=-1, keepdim=True)
            output[:active] = output[:active] * decay + _multiply(weights, value)
            best[:active] = peak
        output = (output / total).view(num_tiles, num_kv_heads, QUERY_TILE, group, head_dim).transpose(1, 2)
        return output.reshape(num_tiles * QUERY_TILE, num_kv_heads * group, head_dim)[plan.flat].to(query.dtype)


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Batched product over the first two dimensions."""
    product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1).contiguous())
    output: torch.Tensor = product.reshape(*left.shape[:-1], right.shape[-1])
    return output


def _visible(positions: torch.Tensor, first_key: int, window: int | None) -> torch.Tensor:
    """bool ``[tiles, QUERY_TILE, KEY_TILE]``."""
    keys = torch.arange(first_key, first_key + KEY_TILE, device=positions.device)
    distance = positions.unsqueeze(-1) - keys
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def _key_slots(block_tables: torch.Tensor, block_size: int, num_key_tiles: int) -> torch.Tensor:
    """int64 ``[num_sequences, num_key_tiles * KEY_TILE]``."""
    position = torch.arange(num_key_tiles * KEY_TILE, device=block_tables.device)
    block = position // block_size
    is_beyond = block >= block_tables.shape[1]
    tables = block_tables.long()[:, block.masked_fill(is_beyond, 0)].masked_fill(is_beyond, 0)
    return tables * block_size + position % block_size


@dataclass(frozen=True, slots=True)
class _Tile:
    sequence: int
    first_row: int
    num_rows: int
    num_keys: int

    def padded_rows(self) -> list[int]:
        rows = list(range(self.first_row, self.first_row + self.num_rows))
        return rows + [self.first_row] * (QUERY_TILE - self.num_rows)


def _cut(batch: FlatBatch) -> list[_Tile]:
    tiles = []
    first_row = 0
    for sequence, (num_rows, length) in enumerate(zip(batch.row_counts, batch.context_lengths, strict=True)):
        start = length - num_rows
        for offset in range(0, num_rows, QUERY_TILE):
            count = min(QUERY_TILE, num_rows - offset)
            tiles.append(_Tile(sequence, first_row + offset, count, start + offset + count))
        first_row += num_rows
    return tiles
