"""How many key-value blocks there are room for, all models of an engine and what their steps take being counted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.model.kv_pool import KVPool
from engine.model.loading import LoadedModel
from engine.model.memory import choose_kv_bytes
from engine.model.row_buckets import RowBucket, row_buckets
from engine.model.runner import kv_shape

_DEFAULT_BLOCK_SIZE = {"cpu": 16, "cuda": 256}
# An allowance for what a driver keeps of one captured graph, besides the memory in which it computes.
_BYTES_PER_GRAPH = 16 << 20
# A logit in the model's type, in float32, as log-probability, and three times as the key by which the best are found.
_BYTES_PER_LOGIT = 2 + 4 + 4 + 4 + 8 + 8


class ModelToRun(NamedTuple):
    """A model and what an engine will ask of it.

    Attributes:
        context: tokens of the longest sequence that its block tables name.
        longest_draft: rows that a sequence usually has in a step, beside the first.
    """

    loaded: LoadedModel
    context: int
    longest_draft: int


def block_size_on(device: torch.device, config: EngineConfig) -> int:
    return config.block_size or _DEFAULT_BLOCK_SIZE[device.type]


def choose_num_blocks(config: EngineConfig, models: Seq[ModelToRun]) -> int:
    """Blocks of a pool for each of ``models``, the first being the target; the null block is among them.

    Raises:
        ConfigError: there is too little memory for one request of full length.
    """
    target = models[0].loaded
    block_size = block_size_on(target.device, config)
    block_bytes = block_size * sum(_kv_bytes_per_token(model.loaded) for model in models)
    # One more than the tokens need: block 0 is the null block.
    num_needed = 1 + -(-target.max_model_len // block_size)
    budget = choose_kv_bytes(
        config.kv_cache_memory,
        needed=num_needed * block_bytes,
        working=working_bytes(config, models),
        max_model_len=target.max_model_len,
        device=target.device,
    )
    return budget // block_bytes


def working_bytes(config: EngineConfig, models: Seq[ModelToRun]) -> int:
    """About what steps take besides the pools.

    The largest, for a while: a layer's activations, and logits scored at every row; of one model, for they run one
    after the other. Captured forwards, for good: what the largest of them takes, for those of a model share it, and an
    allowance for each.
    """
    largest_step = max(config.max_num_batched_tokens * _bytes_per_row(model.loaded) for model in models)
    return largest_step + sum(_captured_bytes(config, model) for model in models)


def graph_buckets(config: EngineConfig, model: ModelToRun) -> list[RowBucket]:
    """The forwards to capture; none on the CPU, or where none are wanted."""
    device = model.loaded.device
    if device.type != "cuda" or config.enforce_eager:
        return []
    return row_buckets(
        max_num_seqs=config.max_num_seqs,
        longest_draft=model.longest_draft,
        max_num_batched_tokens=config.max_num_batched_tokens,
        table_width=-(-model.context // block_size_on(device, config)),
    )


def _captured_bytes(config: EngineConfig, model: ModelToRun) -> int:
    buckets = graph_buckets(config, model)
    num_rows = max((bucket.num_rows for bucket in buckets), default=0)
    return num_rows * _bytes_per_row(model.loaded) + len(buckets) * _BYTES_PER_GRAPH


def _bytes_per_row(loaded: LoadedModel) -> int:
    config = loaded.model.config.get_text_config()
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    activations = (8 * config.hidden_size + 3 * inner) * loaded.dtype.itemsize
    return int(activations + _BYTES_PER_LOGIT * config.vocab_size)


def _kv_bytes_per_token(loaded: LoadedModel) -> int:
    num_layers, num_kv_heads, head_dim = kv_shape(loaded.model)
    return KVPool.bytes_per_token(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=loaded.dtype
    )
