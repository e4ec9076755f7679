"""Puts the engine together: the only place that knows every strategy by name."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.model.attention import AttentionBackend
from engine.model.cuda_attention import VarlenAttention, has_paged_varlen
from engine.model.kv_pool import KVPool
from engine.model.loading import LoadedModel, available_bytes
from engine.model.native_attention import open_native_attention
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, kv_shape
from engine.model.tiled_attention import TiledAttention
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from engine.speculation.controller import FixedDraftLength
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.suffix import SuffixDrafter
from engine.speculation.verifier import Verifier
from engine.types import ModelInfo

# On the CPU the pool shares memory with everything else; beyond this it would only hold idle prefixes.
_MOST_CPU_KV_BYTES = 2 << 30
_SHARE_OF_FREE_MEMORY = {"cpu": 0.5, "cuda": 0.85}
_DEFAULT_BLOCK_SIZE = {"cpu": 16, "cuda": 256}


def build_engine(config: EngineConfig, loaded: LoadedModel, name: str) -> tuple[EngineCore, ModelInfo]:
    """An engine ready to step, and what to tell of it.

    Args:
        name: what clients call the model.

    Raises:
        ConfigError: the model does not run here, or memory is too small for one request of full length.
    """
    num_threads = config.num_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    model, device = loaded.model, loaded.device
    if device.type == "cpu":
        stabilise(model)
    pool = _build_pool(config, loaded)
    runner = ModelRunner(model, pool, _build_attention(loaded, config.cache_dir))
    scheduler = Scheduler(
        BlockManager(pool.num_blocks, pool.block_size, enable_prefix_caching=config.enable_prefix_caching),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    core = EngineCore(
        scheduler=scheduler,
        controller=FixedDraftLength(),
        drafter=_build_drafter(config),
        runner=runner,
        verifier=Verifier(Sampler(loaded.eos_token_ids)),
        end_token_ids=loaded.eos_token_ids,
    )
    info = ModelInfo(
        name=name,
        device=str(device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        vocab_size=model.config.get_text_config().vocab_size,
        max_model_len=loaded.max_model_len,
        weights_bytes=loaded.weights_bytes,
        kv_cache_bytes=pool.num_bytes,
        num_kv_tokens=(pool.num_blocks - 1) * pool.block_size,
        drafter=config.drafter,
        num_speculative_tokens=config.num_speculative_tokens if config.drafter != "none" else 0,
        num_threads=num_threads,
    )
    return core, info


def _build_drafter(config: EngineConfig) -> Drafter:
    match config.drafter:
        case "none":
            return NullDrafter()
        case "suffix":
            return SuffixDrafter()


def _build_attention(loaded: LoadedModel, cache_dir: Path) -> AttentionBackend:
    if loaded.device.type == "cuda":
        return VarlenAttention() if has_paged_varlen() else TiledAttention()
    _, _, head_dim = kv_shape(loaded.model)
    return open_native_attention(cache_dir, head_dim=head_dim, dtype=loaded.dtype) or TiledAttention()


def _build_pool(config: EngineConfig, loaded: LoadedModel) -> KVPool:
    num_layers, num_kv_heads, head_dim = kv_shape(loaded.model)
    block_size = config.block_size or _DEFAULT_BLOCK_SIZE[loaded.device.type]
    token_bytes = KVPool.bytes_per_token(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=loaded.dtype
    )
    budget = config.kv_cache_memory or _default_kv_bytes(loaded.device)
    num_blocks = budget // (token_bytes * block_size)
    # One more than the tokens need: block 0 is the null block.
    num_needed = 1 + -(-loaded.max_model_len // block_size)
    if num_blocks < num_needed:
        raise ConfigError(
            f"not enough memory for the key-value cache: {budget / 2**20:.0f} MiB hold "
            f"{max(num_blocks - 1, 0) * block_size} tokens, but one request of {loaded.max_model_len} tokens needs "
            f"{num_needed * block_size * token_bytes / 2**20:.0f} MiB "
            "(raise kv_cache_memory or lower max_model_len)"
        )
    _check_available(budget, loaded.device)
    return KVPool(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=loaded.dtype,
        device=loaded.device,
    )


def _default_kv_bytes(device: torch.device) -> int:
    share = int(available_bytes(device) * _SHARE_OF_FREE_MEMORY[device.type])
    return min(share, _MOST_CPU_KV_BYTES) if device.type == "cpu" else share


def _check_available(budget: int, device: torch.device) -> None:
    available = available_bytes(device)
    if budget > available:
        raise ConfigError(
            f"kv_cache_memory is {budget / 2**20:.0f} MiB, "
            f"but only {available / 2**20:.0f} MiB are available on {device}"
        )
