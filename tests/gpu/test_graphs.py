"""Captured forwards on the device: the bits of launched ones, one pool, and a fall-back that leaves all in order."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.model.cuda_attention import VarlenAttention
from engine.model.cuda_graphs import CudaCapture
from engine.model.forward_batch import ForwardBatch
from engine.model.graph_runner import GraphRunner, capture_forwards
from engine.model.row_buckets import find_bucket
from engine.model.runner import ModelRunner
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.types import Draft
from tests.engine.model.test_runner import make_pool
from tests.gpu.engines import BLOCK_SIZE, USUAL_BUCKETS, captured
from tests.sequences import make_sequence

Step = tuple[ScheduledBatch, list[Draft]]


@pytest.fixture(scope="module")
def runner(model: PreTrainedModel, varlen: VarlenAttention) -> ModelRunner:
    return ModelRunner(model, make_pool(model, num_blocks=64, block_size=BLOCK_SIZE), varlen)


@pytest.fixture(scope="module")
def sequences(runner: ModelRunner) -> list[Sequence]:
    """Sixteen with one token to compute; the others are in the pool."""
    made = []
    for i in range(16):
        sequence = make_sequence(str(i), [(i + 3 * j) % 96 for j in range(2 + 17 * i)])
        sequence.block_table = [1 + 2 * i, 2 + 2 * i]
        runner.forward(ScheduledBatch([ScheduledSequence(sequence, len(sequence.token_ids) - 1)]), [Draft()])
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        made.append(sequence)
    return made


@pytest.fixture(scope="module")
def graphs(runner: ModelRunner) -> GraphRunner:
    return captured(runner)


def a_step(sequences: list[Sequence], num_sequences: int, draft_length: int) -> Step:
    """Every other sequence has a draft."""
    chosen = sequences[-num_sequences:]
    drafts = [Draft(tuple(range(7, 7 + draft_length)) if i % 2 == 0 else ()) for i in range(num_sequences)]
    return ScheduledBatch([ScheduledSequence(sequence, 1) for sequence in chosen]), drafts


STEPS = [(1, 0), (1, 4), (2, 0), (3, 1), (5, 8), (16, 0), (16, 7)]


def launched(runner: ModelRunner, step: Step) -> torch.Tensor:
    """The logits of the same padded step, kernel by kernel."""
    flat = runner.flatten(*step)
    bucket = find_bucket(USUAL_BUCKETS, flat)
    assert bucket is not None
    return runner.run(runner.send(flat.pad(bucket.shape)))[: len(flat.logit_rows)].float()


@pytest.mark.parametrize(("num_sequences", "draft_length"), STEPS)
def test_a_replayed_step_has_the_bits_of_the_launched_one(
    runner: ModelRunner, graphs: GraphRunner, sequences: list[Sequence], num_sequences: int, draft_length: int
) -> None:
    step = a_step(sequences, num_sequences, draft_length)
    expected = launched(runner, step)
    assert torch.equal(graphs.forward(*step), expected)
    unpadded = runner.forward(*step).float()
    torch.testing.assert_close(expected, unpadded, rtol=5e-2, atol=5e-2)


def test_buckets_in_turn_do_not_disturb_each_other(
    runner: ModelRunner, graphs: GraphRunner, sequences: list[Sequence]
) -> None:
    expected = [launched(runner, a_step(sequences, *size)) for size in STEPS]
    for order in (range(len(STEPS)), reversed(range(len(STEPS)))):
        for i in order:
            assert torch.equal(graphs.forward(*a_step(sequences, *STEPS[i])), expected[i])


def test_all_share_one_pool_and_the_largest_is_first(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []
    num_rows: list[int] = []
    real_graph, real_run = torch.cuda.graph, runner.run

    def graph(*args: Any, pool: Any, **options: Any) -> Any:
        pools.append(pool)
        return real_graph(*args, pool=pool, **options)

    def run(batch: ForwardBatch) -> torch.Tensor:
        num_rows.append(len(batch.input_ids))
        return real_run(batch)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(runner, "run", run)
    captured(runner)
    assert len(pools) == len(USUAL_BUCKETS)
    assert len(set(pools)) == 1
    assert num_rows[1:] == sorted(num_rows[1:], reverse=True)


def test_a_forward_that_waits_for_the_device_is_not_captured(
    runner: ModelRunner,
    sequences: list[Sequence],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device: torch.device,
) -> None:
    step = a_step(sequences, 3, 2)
    expected = runner.forward(*step)
    stream = torch.cuda.current_stream()
    real_run = runner.run

    def run(batch: ForwardBatch) -> torch.Tensor:
        logits = real_run(batch)
        logits.sum().item()
        return logits

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(runner, "run", run)
        assert capture_forwards(runner, USUAL_BUCKETS, CudaCapture(device), lambda stage, fraction: None) is None
    (record,) = caplog.records
    assert "capturing failed" in record.getMessage()
    assert torch.cuda.current_stream() == stream
    assert torch.equal(runner.forward(*step), expected)
    assert torch.equal(captured(runner).forward(*step), launched(runner, step))
