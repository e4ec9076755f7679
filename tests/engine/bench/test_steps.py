"""What a step costs: the steps that are timed have the rows that they are said to have."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from engine.bench import steps_run
from engine.bench.random_model import _SHAPES, make_random_model
from engine.bench.steps import BlindDrafter, StepCost, measure_steps
from engine.bench.steps_run import run_steps
from engine.bench.steps_table import MemoryFloor, steps_table
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.fakes import fake_info
from tests.small_folders import write_hugging_face_folder
from tests.tiny import VOCAB_SIZE, build_core, one_thread, tiny_llama


def measure(row_counts: list[int], *, max_num_seqs: int = 16) -> list[StepCost]:
    core = build_core(tiny_llama(), drafter=BlindDrafter(), max_num_seqs=max_num_seqs, num_blocks=900)
    with one_thread():
        costs = list(measure_steps(core, vocab_size=VOCAB_SIZE, row_counts=row_counts, num_steps=3, temperature=1.0))
    assert not core.has_unfinished
    return costs


def test_streams_and_drafts_of_each_number_of_rows() -> None:
    costs = measure([1, 8, 4])
    kinds = [(cost.num_rows, cost.is_verifying) for cost in costs]
    assert kinds == [(1, False), (8, False), (8, True), (4, False), (4, True)]
    assert all(0 < cost.forward_seconds < cost.seconds for cost in costs)


def test_contexts_are_counted() -> None:
    """Of streams the prompt of 64 and what they have said; of a draft those of the one stream."""
    one, many, draft = measure([1, 8])
    assert 64 < one.num_context_tokens < 80
    assert 8 * 64 < many.num_context_tokens < 8 * 80
    assert 64 < draft.num_context_tokens < 64 + 7 * 8


def test_the_floor_is_the_time_of_reading_weights_and_contexts() -> None:
    floor = MemoryFloor(weight_bytes=6000, bytes_per_token=10, bandwidth=2000.0)
    cost = StepCost(num_rows=2, is_verifying=False, num_context_tokens=200, seconds=8.0, forward_seconds=6.0)
    assert floor.seconds(cost) == 4.0
    for device, share in (("cpu", "25"), ("cuda", "-")):
        table = steps_table([cost], fake_info(device=device), floor)
        assert [next(iter(column.cells)) for column in table.columns] == (
            ["2", "streams", "8000.00", "4000.00", "1.00", "2.00", share]
        )


def test_no_draft_is_as_long_as_that() -> None:
    assert [cost.is_verifying for cost in measure([40], max_num_seqs=40)] == [False]


def test_more_rows_than_a_step_may_have() -> None:
    with pytest.raises(ConfigError, match="no step had 20 rows"):
        measure([20])


def test_a_table_of_a_loaded_model(tmp_path: Path) -> None:
    folder = write_hugging_face_folder(tmp_path / "small")
    config = EngineConfig(model=str(folder), device="cpu", num_threads=1)
    stages: list[str] = []
    table = run_steps(
        config, lambda stage, fraction: stages.append(stage), row_counts=[1, 40], num_steps=2, temperature=0.0
    )
    assert "measured 40 rows" in stages
    console = Console(width=100, record=True, file=StringIO())
    console.print(table)
    shown = console.export_text()
    for part in ("small, cpu", "rows", "against floor", "streams", "Floor:", "GB/s"):
        assert part in shown


def test_random_weights_in_the_shape_of_a_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_SHAPES, "random-llama-1b", (256, 2, 512, 8))
    loaded = make_random_model("random-llama-1b", EngineConfig(device="cpu", dtype="bfloat16"))
    assert str(loaded.model.dtype) == "torch.bfloat16"
    assert loaded.model.config.vocab_size == 128_256
    assert loaded.max_model_len == 4096
    costs = steps_run.run_steps(
        EngineConfig(model="random-llama-1b", device="cpu", max_model_len=512, num_threads=1),
        lambda stage, fraction: None,
        row_counts=[1],
        num_steps=1,
        temperature=0.0,
    )
    assert costs.row_count == 1
