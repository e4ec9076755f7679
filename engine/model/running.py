"""From a model in memory to one that runs its steps here: exact layers, a pool, an attention, and what makes it fast.

Knows what suits which device. Refuses to know what the model is for: a target and a draft model are run alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.attention import AttentionBackend
from engine.model.cuda_attention import open_varlen_attention
from engine.model.cuda_graphs import CudaCapture
from engine.model.graph_runner import GraphRunner, capture_forwards
from engine.model.kv_pool import KVPool, copy_rows
from engine.model.loading import LoadedModel
from engine.model.memory import out_of_memory_explained
from engine.model.native_attention import open_native_attention
from engine.model.native_modules import nativise
from engine.model.native_scatter import NativeScatter
from engine.model.pool_size import ModelToRun, block_size_on, graph_buckets
from engine.model.recorded_layers import record_layers
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, attention_shape, kv_shape
from engine.model.tiled_attention import TiledAttention
from engine.native.functions import NativeLibrary
from engine.native.library import load_native
from engine.types import Progress


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A model with all that its steps need.

    Attributes:
        eager: runs any step.
        runner: runs steps, some of them faster; on CUDA behind captured forwards if there shall and can be any.
    """

    loaded: LoadedModel
    pool: KVPool
    attention: AttentionBackend
    eager: ModelRunner
    runner: ModelRunner | GraphRunner


def open_library(config: EngineConfig, device: torch.device) -> NativeLibrary | None:
    """Our C++, on a CPU and where it can be had."""
    library = load_native(config.cache_dir) if device.type == "cpu" else None
    if library is None and config.quantization != "none":
        raise ConfigError(f"quantization is {config.quantization}, which needs a C++ compiler (g++)")
    return library


def make_exact(config: EngineConfig, loaded: LoadedModel, library: NativeLibrary | None) -> None:
    """Give a CPU model layers whose rows do not depend on their number, of our C++ where there is some."""
    if loaded.device.type != "cpu":
        return
    if library is not None:
        nativise(loaded.model, library, None if config.quantization == "none" else config.quantization)
    stabilise(loaded.model)


def run_model(
    config: EngineConfig, model: ModelToRun, num_blocks: int, library: NativeLibrary | None, progress: Progress
) -> RunningModel:
    """
    Args:
        model: has been through ``make_exact``.
        library: what that was given.

    Raises:
        ConfigError: the model does not run here, or its pool does not fit.
    """
    loaded = model.loaded
    pool = _build_pool(config, loaded, num_blocks, library)
    attention = _build_attention(loaded, pool.block_size, library)
    eager = ModelRunner(loaded.model, pool, attention)
    if library is not None and not config.enforce_eager:
        record_layers(loaded.model, eager, library, max_model_len=loaded.max_model_len)
    buckets = graph_buckets(config, model)
    graphs = None
    if buckets and attention.is_capturable:
        graphs = capture_forwards(eager, buckets, CudaCapture(loaded.device), progress)
    return RunningModel(loaded, pool, attention, eager, graphs or eager)


def _build_pool(config: EngineConfig, loaded: LoadedModel, num_blocks: int, library: NativeLibrary | None) -> KVPool:
    num_layers, num_kv_heads, head_dim = kv_shape(loaded.model)
    with out_of_memory_explained(f"the {num_blocks} key-value blocks of {loaded.name}"):
        return KVPool(
            num_layers=num_layers,
            num_blocks=num_blocks,
            block_size=block_size_on(loaded.device, config),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=loaded.dtype,
            device=loaded.device,
            write_rows=NativeScatter(library) if library else copy_rows,
        )


def _build_attention(loaded: LoadedModel, block_size: int, library: NativeLibrary | None) -> AttentionBackend:
    """The fastest backend that serves this model here, or else the reference."""
    shape = attention_shape(loaded.model, block_size)
    fast: AttentionBackend | None = None
    if loaded.device.type == "cuda":
        fast = open_varlen_attention(shape, loaded.device)
    elif library is not None:
        fast = open_native_attention(shape, library)
    return fast or TiledAttention()
