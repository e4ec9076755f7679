"""Which forwards an engine on CUDA captures, and what memory it sets aside for them. Needs no device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.model import memory, pool_size
from engine.model.loading import LoadedModel
from engine.model.pool_size import ModelToRun, choose_num_blocks, graph_buckets, working_bytes
from tests import vocabularies
from tests.tiny import tiny_llama

CONFIG = EngineConfig(max_num_seqs=8, num_speculative_tokens=3)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """A model that says it is on a GPU."""
    return LoadedModel(
        model=tiny_llama(),
        tokenizer=vocabularies.byte_level(),
        name="tiny",
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        eos_token_ids=frozenset(),
        max_model_len=500,
    )


def target(loaded: LoadedModel, longest_draft: int = 3) -> ModelToRun:
    return ModelToRun(loaded, loaded.max_model_len, longest_draft)


def row_counts(config: EngineConfig, loaded: LoadedModel, longest_draft: int = 3) -> list[int]:
    return [bucket.num_rows for bucket in graph_buckets(config, target(loaded, longest_draft))]


def test_up_to_every_sequence_with_its_longest_draft(loaded: LoadedModel) -> None:
    assert row_counts(CONFIG, loaded) == [1, 2, 4, 8, 16, 24, 32]
    assert row_counts(CONFIG, loaded, longest_draft=0) == [1, 2, 4, 8]


def test_block_tables_hold_the_longest_sequence(loaded: LoadedModel) -> None:
    assert {bucket.table_width for bucket in graph_buckets(CONFIG, target(loaded))} == {2}  # blocks of 256


def test_none_on_the_cpu_or_if_told_so(loaded: LoadedModel) -> None:
    assert row_counts(replace(CONFIG, enforce_eager=True), loaded) == []
    assert row_counts(CONFIG, replace(loaded, device=torch.device("cpu"))) == []


def test_memory_is_set_aside_for_them(loaded: LoadedModel) -> None:
    models = [target(loaded)]
    without = working_bytes(replace(CONFIG, enforce_eager=True), models)
    extra = working_bytes(CONFIG, models) - without
    assert extra == 7 * pool_size._BYTES_PER_GRAPH + without * 32 // CONFIG.max_num_batched_tokens


def test_a_second_model_takes_its_own_graphs_and_no_step_of_its_own(loaded: LoadedModel) -> None:
    eager = replace(CONFIG, enforce_eager=True)
    pair = [target(loaded), target(loaded, longest_draft=1)]
    assert working_bytes(eager, pair) == working_bytes(eager, pair[:1])
    extra = working_bytes(CONFIG, pair) - working_bytes(CONFIG, pair[:1])
    assert extra == 5 * pool_size._BYTES_PER_GRAPH + working_bytes(eager, pair) * 16 // CONFIG.max_num_batched_tokens


def test_a_pool_for_each_model(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 8 << 30)
    config = replace(CONFIG, kv_cache_memory=64 << 20, enforce_eager=True)
    alone = choose_num_blocks(config, [target(loaded)])
    assert alone == (64 << 20) // (256 * 2 * 2 * 2 * 32 * 2)  # tokens, keys and values, layers, heads, numbers, bytes
    assert choose_num_blocks(config, [target(loaded), target(loaded, 1)]) == alone // 2
