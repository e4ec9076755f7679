"""A model whose layers are replayed says bit for bit what it says layer by layer; where it would not, they stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from engine.model.flat_batch import FlatBatch
from engine.model.kv_pool import KVPool
from engine.model.native_attention import open_native_attention
from engine.model.native_linear import NativeLinear
from engine.model.native_modules import nativise
from engine.model.native_scatter import NativeScatter
from engine.model.quantisation import QuantisedType
from engine.model.recorded_layers import RecordedLayers, record_layers
from engine.model.recording import NotRecordable, Recording
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, attention_shape, kv_shape
from engine.native.functions import NativeLibrary
from tests.tiny import VOCAB_SIZE, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen3

BLOCK_SIZE = 4
MAX_ROWS = 8
# float32 and bfloat16 as they are; the others from float32.
FORMATS: list[tuple[torch.dtype, QuantisedType | None]] = [
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float32, "int8"),
    (torch.float32, "int4"),
]


def make_runner(
    make_model: Callable[[], PreTrainedModel],
    library: NativeLibrary,
    dtype: torch.dtype = torch.float32,
    to: QuantisedType | None = None,
) -> tuple[PreTrainedModel, ModelRunner]:
    model = make_model().to(dtype)
    nativise(model, library, to)
    stabilise(model)
    attention = open_native_attention(attention_shape(model, BLOCK_SIZE), library)
    assert attention is not None
    return model, ModelRunner(model, make_pool(model, library), attention)


def make_pool(model: PreTrainedModel, library: NativeLibrary) -> KVPool:
    num_layers, num_kv_heads, head_dim = kv_shape(model)
    return KVPool(
        num_layers=num_layers,
        num_blocks=16,
        block_size=BLOCK_SIZE,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
        write_rows=NativeScatter(library),
    )


def record(model: PreTrainedModel, runner: ModelRunner, library: NativeLibrary) -> bool:
    return record_layers(model, runner, library, max_model_len=64, max_rows=MAX_ROWS)


def step(num_rows: int, *, start: int = 0) -> FlatBatch:
    """Two sequences, the second of one row, so that a step has rows of several kinds."""
    first = num_rows - 1
    return FlatBatch(
        input_ids=[(7 * row + start) % VOCAB_SIZE for row in range(num_rows)],
        positions=[*range(start, start + first), start],
        slots=[*range(BLOCK_SIZE + start, BLOCK_SIZE + start + first), 13 * BLOCK_SIZE + start],
        logit_rows=list(range(num_rows)),
        row_counts=[first, 1] if first else [1],
        context_lengths=[start + first, start + 1] if first else [start + 1],
        block_tables=[[1, 2, 3, 4], [13, 14]] if first else [[13, 14]],
        table_width=4 if first else 2,
    )


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("make_model", [tiny_llama, tiny_qwen3])
def test_no_bit_differs(
    make_model: Callable[[], PreTrainedModel],
    form: tuple[torch.dtype, QuantisedType | None],
    native_library: NativeLibrary,
) -> None:
    _, plain = make_runner(make_model, native_library, *form)
    model, recorded = make_runner(make_model, native_library, *form)
    assert record(model, recorded, native_library)
    assert any(isinstance(module, RecordedLayers) for module in model.modules())
    # Each step reads what those before it wrote; more rows than recorded for run layer by layer, between replays.
    for num_rows, start in ((3, 0), (1, 0), (MAX_ROWS, 2), (MAX_ROWS + 1, 1), (2, 4), (12, 0), (5, 5)):
        flat = step(num_rows, start=start)
        assert torch.equal(recorded.run(recorded.send(flat)), plain.run(plain.send(flat)))


def test_engines_over_one_model_do_not_meet(native_library: NativeLibrary) -> None:
    model, first = make_runner(tiny_llama, native_library)
    assert record(model, first, native_library)
    logits = first.run(first.send(step(6)))
    attention = open_native_attention(attention_shape(model, BLOCK_SIZE), native_library)
    assert attention is not None
    second = ModelRunner(model, make_pool(model, native_library), attention)
    assert torch.equal(second.run(second.send(step(6))), logits)
    assert record(model, second, native_library)
    second.run(second.send(step(6)))  # the trial wrote where these rows belong
    assert torch.equal(second.run(second.send(step(2, start=5))), first.run(first.send(step(2, start=5))))


def test_what_a_step_gave_is_not_changed_by_the_next(native_library: NativeLibrary) -> None:
    model, runner = make_runner(tiny_llama, native_library)
    assert record(model, runner, native_library)
    logits = runner.run(runner.send(step(4)))
    kept = logits.clone()
    runner.run(runner.send(step(6, start=3)))
    assert torch.equal(logits, kept)


@pytest.mark.parametrize(("make_model", "reason"), [(tiny_gemma2, "aten"), (tiny_gpt2, "more than one input")])
def test_layers_that_compute_by_other_means_stay(
    make_model: Callable[[], PreTrainedModel],
    reason: str,
    native_library: NativeLibrary,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, runner = make_runner(make_model, native_library)
    before = runner.run(runner.send(step(5)))
    with caplog.at_level("INFO"):
        assert not record(model, runner, native_library)
    assert reason in caplog.text
    assert not any(isinstance(module, RecordedLayers) for module in model.modules())
    assert torch.equal(runner.run(runner.send(step(5))), before)


def test_a_recording_that_says_something_else_is_dropped(
    native_library: NativeLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, runner = make_runner(tiny_llama, native_library)
    before = runner.run(runner.send(step(5)))
    replay = Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda self, num_rows: replay(self, max(num_rows - 1, 1)))
    with caplog.at_level("INFO"):
        assert not record(model, runner, native_library)
    assert "other numbers" in caplog.text
    assert torch.equal(runner.run(runner.send(step(5))), before)


class _Odd(nn.Module):
    """A layer around another that does one thing more."""

    def __init__(self, layer: nn.Module, more: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self._layer = layer
        self._more = more

    def forward(self, rows: torch.Tensor, **keywords: object) -> object:
        return self._more(self._layer(rows, **keywords))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (lambda rows: rows * 1.0, "mul"),
        (lambda rows: rows.mul_(1.0), "mul_"),
        (lambda rows: rows + 0.0, "add"),
        (lambda rows: torch.add(rows, rows, alpha=0), "add"),
        (lambda rows: rows[..., ::2].repeat_interleave(2, dim=-1), "aten"),
        (lambda rows: rows.clone(), "clone"),
    ],
)
def test_what_cannot_be_replayed_is_named(
    more: Callable[[torch.Tensor], object],
    reason: str,
    native_library: NativeLibrary,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, runner = make_runner(tiny_llama, native_library)
    layers = model.get_submodule("model.layers")
    assert isinstance(layers, nn.ModuleList)
    layers[1] = _Odd(layers[1], more)
    with caplog.at_level("INFO"):
        assert not record(model, runner, native_library)
    assert reason in caplog.text


@pytest.mark.parametrize("result", [lambda rows: rows[:, :1], lambda rows: (rows,)])
def test_a_step_gives_what_the_next_one_takes(
    result: Callable[[torch.Tensor], torch.Tensor], native_library: NativeLibrary
) -> None:
    recording = Recording(native_library, max_rows=4)
    with pytest.raises(NotRecordable, match="no tensor of shape"):
        recording.record(result, torch.zeros(1, 3, 16))


def test_calls_for_another_number_of_rows_are_refused(native_library: NativeLibrary) -> None:
    linear = NativeLinear(native_library, [torch.randn(16, 16)])
    recording = Recording(native_library, max_rows=4)
    with pytest.raises(NotRecordable, match="a call for 2 rows in a step of 3"):
        recording.record(lambda rows: linear(rows[:, :2]), torch.zeros(1, 3, 16))
