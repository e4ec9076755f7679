"""Which forwards an engine on CUDA captures, and what memory it sets aside for them. Needs no device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine import build
from engine.config import EngineConfig
from engine.model.loading import LoadedModel
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


def row_counts(config: EngineConfig, loaded: LoadedModel) -> list[int]:
    return [bucket.num_rows for bucket in build._graph_buckets(config, loaded)]


def test_up_to_every_sequence_with_its_longest_draft(loaded: LoadedModel) -> None:
    assert row_counts(CONFIG, loaded) == [1, 2, 4, 8, 16, 24, 32]
    assert row_counts(replace(CONFIG, drafter="none"), loaded) == [1, 2, 4, 8]


def test_block_tables_hold_the_longest_sequence(loaded: LoadedModel) -> None:
    assert {bucket.table_width for bucket in build._graph_buckets(CONFIG, loaded)} == {2}  # blocks of 256


def test_none_on_the_cpu_or_if_told_so(loaded: LoadedModel) -> None:
    assert row_counts(replace(CONFIG, enforce_eager=True), loaded) == []
    assert row_counts(CONFIG, replace(loaded, device=torch.device("cpu"))) == []


def test_memory_is_set_aside_for_them(loaded: LoadedModel) -> None:
    without = build._working_bytes(replace(CONFIG, enforce_eager=True), loaded)
    extra = build._working_bytes(CONFIG, loaded) - without
    assert extra == 7 * build._BYTES_PER_GRAPH + without * 32 // CONFIG.max_num_batched_tokens
