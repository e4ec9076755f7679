"""Measures steps from beginning to end: a model, loaded or random, an engine around it, the memory's speed, a table."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from rich.table import Table

from engine.bench.bandwidth import measure_bandwidth
from engine.bench.random_model import RANDOM_MODELS, make_random_model
from engine.bench.steps import BlindDrafter, measure_steps
from engine.bench.steps_table import MemoryFloor, steps_table
from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.kv_pool import KVPool
from engine.model.loading import LoadedModel, load_model, num_bytes
from engine.model.runner import kv_shape


def run_steps(
    config: EngineConfig,
    progress: Callable[[str, float], None],
    *,
    row_counts: Seq[int],
    num_steps: int,
    temperature: float,
) -> Table:
    """
    Args:
        config: its ``model`` may also be one of ``RANDOM_MODELS``.
        progress: told the stage and the fraction done.

    Raises:
        ConfigError: as loading and building do, or numbers out of their bounds.
    """
    _check(row_counts, num_steps, temperature)
    most = max(row_counts)
    sizes = replace(
        config,
        max_num_seqs=max(config.max_num_seqs, most),
        max_num_batched_tokens=max(config.max_num_batched_tokens, most),
        draft_length="fixed",
    )
    is_random = config.model in RANDOM_MODELS
    progress(f"making {config.model}" if is_random else "loading", 0.0)
    loaded = make_random_model(config.model, sizes) if is_random else load_model(sizes, progress)
    core, info = build_engine(sizes, loaded, loaded.name, progress=progress, drafter=BlindDrafter())
    progress("measuring the memory", 0.0)
    bandwidth = measure_bandwidth(loaded.device)
    costs = []
    for cost in measure_steps(
        core, vocab_size=info.vocab_size, row_counts=row_counts, num_steps=num_steps, temperature=temperature
    ):
        costs.append(cost)
        progress(f"measured {cost.num_rows} rows", cost.num_rows / most)
    floor = MemoryFloor(
        weight_bytes=_num_bytes_read(loaded), bytes_per_token=_bytes_per_token(loaded), bandwidth=bandwidth
    )
    return steps_table(costs, info, floor)


def _num_bytes_read(loaded: LoadedModel) -> int:
    """Bytes of weights that every step reads: all but the input embeddings, unless they are the output layer too."""
    embeddings, head = (part() for part in (loaded.model.get_input_embeddings, loaded.model.get_output_embeddings))
    is_shared = getattr(head, "weight", None) is embeddings.weight
    return num_bytes(loaded.model) - (0 if is_shared else embeddings.weight.nbytes)


def _bytes_per_token(loaded: LoadedModel) -> int:
    """Bytes of keys and values that each token of a context adds to what a step reads."""
    num_layers, num_kv_heads, head_dim = kv_shape(loaded.model)
    return KVPool.bytes_per_token(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=loaded.dtype
    )


def _check(row_counts: Seq[int], num_steps: int, temperature: float) -> None:
    for number in row_counts:
        if number < 1:
            raise ConfigError(f"rows must be at least 1, not {number}")
    if num_steps < 1:
        raise ConfigError(f"steps must be at least 1, not {num_steps}")
    if not 0 <= temperature <= 2:
        raise ConfigError(f"temperature must lie between 0 and 2, not {temperature}")
