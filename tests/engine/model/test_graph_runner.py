"""Captured forwards without a GPU: a stand-in replays them, and the answers must be those of plain forwards."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.model.attention import AttentionBackend
from engine.model.cuda_attention import VarlenAttention
from engine.model.flat_batch import BatchShape, FlatBatch
from engine.model.graph_runner import GraphRunner, capture_forwards
from engine.model.row_buckets import row_buckets
from engine.model.runner import ModelRunner, attention_shape
from engine.model.tiled_attention import TiledAttention
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.types import Draft
from tests.drafters import RandomDrafter
from tests.engine.model.graph_fakes import FakeCapture, captured, varlen_on_cpu
from tests.engine.model.test_runner import make_pool
from tests.sequences import make_sequence, run
from tests.tiny import VOCAB_SIZE, build_core, stable_llama

BLOCK_SIZE = 4
BUCKETS = row_buckets(max_num_seqs=6, longest_draft=4, max_num_batched_tokens=128, table_width=32)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return stable_llama()


@pytest.fixture
def varlen() -> Iterator[VarlenAttention]:
    with varlen_on_cpu() as backend:
        yield backend


def make_runner(model: PreTrainedModel, backend: AttentionBackend) -> ModelRunner:
    return ModelRunner(model, make_pool(model, block_size=BLOCK_SIZE), backend)


def decoding(name: str, length: int, first_block: int) -> Sequence:
    """A sequence whose tokens but for the last are computed, or so it says."""
    sequence = make_sequence(name, [(7 * i + length) % VOCAB_SIZE for i in range(length)])
    sequence.num_computed_tokens = length - 1
    sequence.block_table = [first_block + i for i in range(-(-(length + 8) // BLOCK_SIZE))]
    return sequence


def a_step() -> tuple[ScheduledBatch, list[Draft]]:
    """Two plain rows and a draft: six rows."""
    sequences = [decoding("a", 9, 1), decoding("b", 3, 10), decoding("c", 14, 20)]
    return ScheduledBatch([ScheduledSequence(s, 1) for s in sequences]), [Draft(), Draft((5, 6, 7)), Draft()]


class TestPadding:
    @pytest.mark.parametrize("shape", [BatchShape(6, 6, 3, 32), BatchShape(8, 8, 5, 6), BatchShape(16, 16, 16, 32)])
    @pytest.mark.parametrize("kind", ["tiled", "native", "varlen"])
    def test_the_rows_of_a_step_have_the_same_logits_in_any_shape(
        self, request: pytest.FixtureRequest, model: PreTrainedModel, kind: str, shape: BatchShape
    ) -> None:
        runner = make_runner(model, self._backend(request, model, kind))
        flat = runner.flatten(*a_step())
        assert (flat.num_rows, flat.table_width) == (6, 6)
        plain = runner.run(runner.send(flat))
        padded = runner.run(runner.send(flat.pad(shape)))
        assert len(padded) == shape.num_logit_rows
        assert torch.equal(padded[: len(plain)], plain)
        assert padded.isfinite().all()

    @staticmethod
    def _backend(request: pytest.FixtureRequest, model: PreTrainedModel, kind: str) -> AttentionBackend:
        if kind == "varlen":
            backend: VarlenAttention = request.getfixturevalue("varlen")
            return backend
        if kind == "native":
            from engine.model.native_attention import open_native_attention

            native = open_native_attention(
                attention_shape(model, BLOCK_SIZE), request.getfixturevalue("native_library")
            )
            assert native is not None
            return native
        return TiledAttention()


class TestReplay:
    def test_a_replayed_step_is_the_plain_one_with_float32_logits(
        self, model: PreTrainedModel, varlen: VarlenAttention
    ) -> None:
        runner = make_runner(model, varlen)
        capture = FakeCapture()
        graphs = captured(runner, BUCKETS, capture)
        assert torch.equal(graphs.forward(*a_step()), runner.forward(*a_step()))
        assert capture.num_replayed == 1

    def test_a_step_leaves_nothing_to_the_next(self, model: PreTrainedModel, varlen: VarlenAttention) -> None:
        runner = make_runner(model, varlen)
        graphs = captured(runner, BUCKETS, FakeCapture())
        batch, drafts = a_step()
        graphs.forward(batch, drafts)
        shorter = ScheduledBatch(batch.entries[1:])
        assert torch.equal(graphs.forward(shorter, drafts[1:]), runner.forward(shorter, drafts[1:]))

    def test_logits_of_all_buckets_share_their_memory(self, model: PreTrainedModel, varlen: VarlenAttention) -> None:
        graphs = captured(make_runner(model, varlen), BUCKETS, FakeCapture())
        batch, drafts = a_step()
        wide = graphs.forward(batch, drafts)
        narrow = graphs.forward(ScheduledBatch(batch.entries[:1]), drafts[:1])
        assert (len(wide), len(narrow)) == (6, 1)
        assert wide.data_ptr() == narrow.data_ptr()

    def test_whole_requests(self, model: PreTrainedModel, varlen: VarlenAttention) -> None:
        """Prompts that are too long for a bucket, drafts, neighbours that come and go, and every kind of sampling."""
        capture = FakeCapture()
        plain = self._answer(build_core(model, attention=varlen, max_num_seqs=6))
        graphs = build_core(
            model,
            attention=varlen,
            drafter=RandomDrafter(VOCAB_SIZE),
            wrap=lambda runner: captured(runner, BUCKETS, capture),
            max_num_seqs=6,
        )
        assert self._answer(graphs) == plain
        assert capture.num_replayed > 10

    @staticmethod
    def _answer(core: EngineCore) -> dict[str, list[tuple[object, ...]]]:
        kinds: list[dict[str, float]] = [
            {},
            {"temperature": 1.0},
            {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5},
            {"logprobs": 3, "prompt_logprobs": 2},
        ]
        sequences = [
            make_sequence(
                f"{i}",
                [(i + j) % VOCAB_SIZE for j in range(2 + 12 * i)],
                num_speculative_tokens=i % 5,
                seed=i,
                max_tokens=10,
                **kinds[i % len(kinds)],
            )
            for i in range(8)
        ]
        return {
            name: [
                token
                for output in outputs
                for token in zip(output.token_ids, output.logprobs or output.token_ids, strict=True)
            ]
            for name, outputs in run(core, sequences).items()
        }


class TestWhichSteps:
    def forwards(self, model: PreTrainedModel, backend: AttentionBackend) -> tuple[GraphRunner, FakeCapture]:
        capture = FakeCapture()
        return captured(make_runner(model, backend), BUCKETS, capture), capture

    def test_a_long_prompt_is_run_as_it_is(self, model: PreTrainedModel, varlen: VarlenAttention) -> None:
        graphs, capture = self.forwards(model, varlen)
        prompt = make_sequence("long", [1] * 40)
        prompt.block_table = list(range(1, 11))
        assert graphs.forward(ScheduledBatch([ScheduledSequence(prompt, 40)]), [Draft()]).shape == (1, VOCAB_SIZE)
        assert capture.num_replayed == 0

    def test_a_short_piece_of_a_prompt_that_draws_nothing_is_replayed(
        self, model: PreTrainedModel, varlen: VarlenAttention
    ) -> None:
        graphs, capture = self.forwards(model, varlen)
        prompt = make_sequence("piece", [1] * 40)
        prompt.block_table = list(range(1, 11))
        assert graphs.forward(ScheduledBatch([ScheduledSequence(prompt, 20)]), [Draft()]).shape == (0, VOCAB_SIZE)
        assert capture.num_replayed == 1


class TestCapturing:
    def test_the_largest_is_captured_first_and_progress_is_told(
        self, model: PreTrainedModel, varlen: VarlenAttention, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner = make_runner(model, varlen)
        num_rows: list[int] = []
        told: list[tuple[str, float]] = []
        plain_run = runner.run
        monkeypatch.setattr(runner, "run", lambda batch: num_rows.append(len(batch.input_ids)) or plain_run(batch))
        capture_forwards(runner, BUCKETS, FakeCapture(), lambda stage, fraction: told.append((stage, fraction)))
        assert num_rows[1:] == [30, 24, 16, 8, 4, 2, 1]  # behind the one that asks for the size of the vocabulary
        assert [stage for stage, _ in told] == ["capturing CUDA graphs"] * len(BUCKETS)
        fractions = [fraction for _, fraction in told]
        assert fractions == sorted(fractions)
        assert fractions[0] == 0 <= fractions[-1] < 1

    @pytest.mark.parametrize("fails_at", [0, 3])
    @pytest.mark.parametrize(
        "error",
        [RuntimeError("operation not permitted when stream is capturing\nmore"), torch.OutOfMemoryError("full")],
    )
    def test_without_graphs_if_one_fails_and_the_log_says_why(
        self,
        model: PreTrainedModel,
        varlen: VarlenAttention,
        caplog: pytest.LogCaptureFixture,
        error: Exception,
        fails_at: int,
    ) -> None:
        runner = make_runner(model, varlen)
        with caplog.at_level(logging.WARNING):
            graphs = capture_forwards(runner, BUCKETS, FakeCapture(error, fails_at), lambda stage, fraction: None)
        assert graphs is None
        (record,) = caplog.records
        assert record.getMessage().endswith("as capturing failed: " + str(error).split("\n")[0])
        assert runner.forward(*a_step()).shape == (6, VOCAB_SIZE)


def test_a_row_of_no_sequence_is_noticed(model: PreTrainedModel, varlen: VarlenAttention) -> None:
    """The stand-in has teeth: padding that forgot to own its rows would fail these tests."""
    runner = make_runner(model, varlen)
    flat = runner.flatten(*a_step())
    forgotten = FlatBatch(
        [*flat.input_ids, 0],
        [*flat.positions, 0],
        [*flat.slots, 0],
        flat.logit_rows,
        flat.row_counts,
        flat.context_lengths,
        flat.block_tables,
        flat.table_width,
    )
    with pytest.raises(AssertionError, match="rows of no sequence"):
        runner.run(runner.send(forgotten))
