"""Puts the engine together: the only place that knows every strategy by name."""

from __future__ import annotations

import os

import torch

from engine.config import EngineConfig
from engine.core import EngineCore, Runner
from engine.errors import ConfigError
from engine.model.attention import AttentionBackend
from engine.model.cuda_attention import open_varlen_attention
from engine.model.cuda_graphs import CudaCapture
from engine.model.graph_runner import capture_forwards
from engine.model.kv_pool import KVPool, RowWriter, copy_rows
from engine.model.loading import LoadedModel, num_bytes
from engine.model.memory import choose_kv_bytes, out_of_memory_explained
from engine.model.native_attention import open_native_attention
from engine.model.native_modules import nativise
from engine.model.native_scatter import NativeScatter
from engine.model.recorded_layers import record_layers
from engine.model.row_buckets import RowBucket, row_buckets
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, attention_shape, kv_shape
from engine.model.step_profile import profile_steps
from engine.model.thread_count import choose_num_threads
from engine.model.tiled_attention import TiledAttention
from engine.native.functions import NativeLibrary
from engine.native.library import load_native
from engine.sampling.native_draw import NativeDraw
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from engine.speculation.controller import DraftLengthController, FixedDraftLength
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.goodput import GoodputController
from engine.speculation.prediction import PredictionDrafter
from engine.speculation.step_times import StepTimes
from engine.speculation.suffix import SuffixDrafter
from engine.speculation.verifier import Verifier
from engine.types import ModelInfo, Progress

_DEFAULT_BLOCK_SIZE = {"cpu": 16, "cuda": 256}
# An allowance for what a driver keeps of one captured graph, besides the memory in which it computes.
_BYTES_PER_GRAPH = 16 << 20
# A logit in the model's type, in float32, as log-probability, and three times as the key by which the best are found.
_BYTES_PER_LOGIT = 2 + 4 + 4 + 4 + 8 + 8


def build_engine(
    config: EngineConfig,
    loaded: LoadedModel,
    name: str,
    *,
    progress: Progress,
    drafter: Drafter | None = None,
) -> tuple[EngineCore, ModelInfo]:
    """An engine ready to step, and what to tell of it.

    Args:
        name: what clients call the model.
        progress: told the stage and the fraction done, 0..1.
        drafter: in the place of the configured one.

    Raises:
        ConfigError: the model does not run here, or memory is too small for one request of full length.
    """
    progress("preparing the engine", 0.0)
    torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    library = _make_exact(config, loaded)
    pool = _build_pool(config, loaded, NativeScatter(library) if library else copy_rows)
    attention = _build_attention(loaded, pool.block_size, library)
    runner = ModelRunner(loaded.model, pool, attention)
    if library is not None:
        _make_fast(config, loaded, runner, library)
    core = EngineCore(
        scheduler=Scheduler(
            BlockManager(pool.num_blocks, pool.block_size, enable_prefix_caching=config.enable_prefix_caching),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        ),
        controller=_build_controller(config, loaded, runner),
        drafter=PredictionDrafter(drafter or _build_drafter(config)),
        runner=_with_graphs(config, loaded, runner, attention, progress),
        verifier=Verifier(Sampler(loaded.eos_token_ids, NativeDraw(library) if library else None)),
        end_token_ids=loaded.eos_token_ids,
    )
    return core, _describe(config, loaded, name, pool, attention)


def _make_exact(config: EngineConfig, loaded: LoadedModel) -> NativeLibrary | None:
    """Give a CPU model layers whose rows do not depend on their number; our C++, where it can be had."""
    if loaded.device.type != "cpu":
        return None
    library = load_native(config.cache_dir)
    if library is not None:
        nativise(loaded.model, library, None if config.quantization == "none" else config.quantization)
    elif config.quantization != "none":
        raise ConfigError(f"quantization is {config.quantization}, which needs a C++ compiler (g++)")
    stabilise(loaded.model)
    return library


def _make_fast(config: EngineConfig, loaded: LoadedModel, runner: ModelRunner, library: NativeLibrary) -> None:
    """What makes a step on the CPU shorter and none of its numbers another."""
    if not config.enforce_eager:
        record_layers(loaded.model, runner, library, max_model_len=loaded.max_model_len)
    if config.num_threads is None:
        choose_num_threads(runner.forward_nothing, torch.get_num_threads())


def _describe(
    config: EngineConfig, loaded: LoadedModel, name: str, pool: KVPool, attention: AttentionBackend
) -> ModelInfo:
    return ModelInfo(
        name=name,
        source=loaded.name,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantization=config.quantization,
        attention=attention.name,
        vocab_size=loaded.model.config.get_text_config().vocab_size,
        max_model_len=loaded.max_model_len,
        weights_bytes=num_bytes(loaded.model),
        kv_cache_bytes=pool.num_bytes,
        num_kv_tokens=(pool.num_blocks - 1) * pool.block_size,
        drafter=config.drafter,
        num_speculative_tokens=config.num_speculative_tokens if config.drafter != "none" else 0,
        num_threads=torch.get_num_threads(),
    )


def _build_controller(config: EngineConfig, loaded: LoadedModel, runner: ModelRunner) -> DraftLengthController:
    if config.draft_length == "fixed" or config.drafter == "none":
        return FixedDraftLength()
    # On CUDA a captured step takes another time than this one, so the times are learnt as steps run.
    return GoodputController(StepTimes(profile_steps(runner) if loaded.device.type == "cpu" else None))


def _build_drafter(config: EngineConfig) -> Drafter:
    match config.drafter:
        case "none":
            return NullDrafter()
        case "suffix":
            return SuffixDrafter()


def _build_attention(loaded: LoadedModel, block_size: int, library: NativeLibrary | None) -> AttentionBackend:
    """The fastest backend that serves this model here, or else the reference."""
    shape = attention_shape(loaded.model, block_size)
    fast: AttentionBackend | None = None
    if loaded.device.type == "cuda":
        fast = open_varlen_attention(shape, loaded.device)
    elif library is not None:
        fast = open_native_attention(shape, library)
    return fast or TiledAttention()


def _with_graphs(
    config: EngineConfig, loaded: LoadedModel, runner: ModelRunner, attention: AttentionBackend, progress: Progress
) -> Runner:
    """The runner, on CUDA behind captured forwards if there shall and can be any."""
    buckets = _graph_buckets(config, loaded)
    if not buckets or not attention.is_capturable:
        return runner
    return capture_forwards(runner, buckets, CudaCapture(loaded.device), progress) or runner


def _graph_buckets(config: EngineConfig, loaded: LoadedModel) -> list[RowBucket]:
    if loaded.device.type != "cuda" or config.enforce_eager:
        return []
    return row_buckets(
        max_num_seqs=config.max_num_seqs,
        longest_draft=config.num_speculative_tokens if config.drafter != "none" else 0,
        max_num_batched_tokens=config.max_num_batched_tokens,
        table_width=-(-loaded.max_model_len // _block_size(config, loaded)),
    )


def _block_size(config: EngineConfig, loaded: LoadedModel) -> int:
    return config.block_size or _DEFAULT_BLOCK_SIZE[loaded.device.type]


def _build_pool(config: EngineConfig, loaded: LoadedModel, write_rows: RowWriter) -> KVPool:
    num_layers, num_kv_heads, head_dim = kv_shape(loaded.model)
    block_size = _block_size(config, loaded)
    block_bytes = block_size * KVPool.bytes_per_token(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=loaded.dtype
    )
    # One more than the tokens need: block 0 is the null block.
    num_needed = 1 + -(-loaded.max_model_len // block_size)
    budget = choose_kv_bytes(
        config.kv_cache_memory,
        needed=num_needed * block_bytes,
        working=_working_bytes(config, loaded),
        max_model_len=loaded.max_model_len,
        device=loaded.device,
    )
    with out_of_memory_explained(f"the key-value cache of {budget / 2**20:.0f} MiB"):
        return KVPool(
            num_layers=num_layers,
            num_blocks=budget // block_bytes,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=loaded.dtype,
            device=loaded.device,
            write_rows=write_rows,
        )


def _working_bytes(config: EngineConfig, loaded: LoadedModel) -> int:
    """About what steps take besides the pool.

    The largest, for a while: a layer's activations, and logits scored at every row. Captured forwards, for good: what
    the largest of them takes, for they share it, and an allowance for each.
    """
    model_config = loaded.model.config.get_text_config()
    inner = getattr(model_config, "intermediate_size", None) or 4 * model_config.hidden_size
    activations = (8 * model_config.hidden_size + 3 * inner) * loaded.dtype.itemsize
    row = activations + _BYTES_PER_LOGIT * model_config.vocab_size
    buckets = _graph_buckets(config, loaded)
    num_captured_rows = max((bucket.num_rows for bucket in buckets), default=0)
    return int((config.max_num_batched_tokens + num_captured_rows) * row + len(buckets) * _BYTES_PER_GRAPH)
