"""Native modules in the place of a model's own: the same numbers, and only where that is so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from engine.model.native_linear import NativeLinear
from engine.model.native_modules import nativise
from engine.model.native_norm import NativeNorm
from engine.model.quantisation import QuantisedType
from engine.native.functions import NativeLibrary
from tests.tiny import ARCHITECTURES, VOCAB_SIZE, tiny_gemma2, tiny_gpt2, tiny_llama, tiny_qwen3


def kinds(model: nn.Module) -> Counter[str]:
    wanted = (NativeLinear, NativeNorm, nn.Linear)
    return Counter(type(module).__name__ for module in model.modules() if isinstance(module, wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make_model", ARCHITECTURES)
def test_a_model_says_what_it_said(
    native_library: NativeLibrary, make_model: Callable[[], PreTrainedModel], dtype: torch.dtype
) -> None:
    model = make_model().to(dtype)
    tokens = torch.randint(VOCAB_SIZE, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(input_ids=tokens).logits
        nativise(model, native_library)
        given = model(input_ids=tokens).logits
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("make_model", "num_linears", "num_norms"),
    [
        (tiny_llama, 2 * 4 + 1, 5),  # in each of two layers: joint, output, gated, down; then the head
        (tiny_qwen3, 2 * 4 + 1, 9),
        (tiny_gemma2, 2 * 5 + 1, 9),  # its gate is no silu, so its three products stay apart
        (tiny_gpt2, 1, 0),
    ],
)
def test_what_is_replaced(
    native_library: NativeLibrary, make_model: Callable[[], PreTrainedModel], num_linears: int, num_norms: int
) -> None:
    model = make_model()
    nativise(model, native_library)
    assert kinds(model) == Counter(NativeLinear=num_linears) + Counter(NativeNorm=num_norms)


def test_the_weights_are_not_kept_twice(native_library: NativeLibrary) -> None:
    def num_bytes(module: nn.Module) -> int:
        return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))

    model = tiny_llama()
    before = num_bytes(model)
    nativise(model, native_library)
    assert num_bytes(model) <= before


def test_weights_in_other_types_stay(native_library: NativeLibrary) -> None:
    model = nn.Sequential(nn.Linear(8, 8).half(), nn.Linear(7, 8))
    nativise(model, native_library)
    assert kinds(model) == Counter(Linear=2)


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("make_model", ARCHITECTURES)
def test_a_quantised_model_says_about_what_it_said(
    native_library: NativeLibrary, make_model: Callable[[], PreTrainedModel], to: QuantisedType
) -> None:
    model = make_model()
    tokens = torch.randint(VOCAB_SIZE, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(input_ids=tokens).logits
        nativise(model, native_library, to)
        given = model(input_ids=tokens).logits.float()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    likeness = torch.nn.functional.cosine_similarity(given, expected, dim=-1)
    assert float(likeness.mean()) > (0.99 if to == "int8" else 0.9)


def test_the_head_keeps_8_bits_and_odd_widths_are_not_quantised(native_library: NativeLibrary) -> None:
    model = tiny_llama()
    nativise(model, native_library, "int4")
    assert isinstance(model.lm_head, NativeLinear)
    assert model.lm_head._panels.nbytes == VOCAB_SIZE * 64 // 32 * 34
    odd = nn.Sequential(nn.Linear(48, 32, bias=False))
    nativise(odd, native_library, "int4")
    assert odd[0]._panels.nbytes == 48 * 32 * 2


class DoubledRMSNorm(nn.Module):
    """Called like the others, and not like them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32))
        self.variance_epsilon = 1e-6

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * rows * self.weight


class CrossedGate(nn.Module):
    """Gates the other product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.down_proj(self.gate_proj(rows) * nn.functional.silu(self.up_proj(rows)))
        return product


def test_an_outlier_does_not_hide_a_distance_from_one(native_library: NativeLibrary) -> None:
    """Where one weight is large, an error of 1 in the others is small beside the largest number, and still wrong."""
    norm = tiny_gemma2().model.norm.to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.fill_(0.25)
        norm.weight[3] = 200.0
    model, rows = nn.Sequential(norm), torch.randn(5, 64).bfloat16()
    with torch.inference_mode():
        expected = model(rows)
        nativise(model, native_library)
        assert isinstance(model[0], NativeNorm)
        torch.testing.assert_close(model(rows), expected, rtol=2e-2, atol=1e-3)


def test_rows_of_another_type_are_refused(native_library: NativeLibrary) -> None:
    linear = NativeLinear(native_library, [torch.randn(8, 32).bfloat16()])
    norm = NativeNorm(native_library, torch.ones(32), 1e-6, torch.bfloat16)
    for module in (linear, norm):
        with pytest.raises(TypeError, match=r"bfloat16 was given rows of torch\.float32"):
            module(torch.randn(2, 32))


@pytest.mark.parametrize("module", [DoubledRMSNorm(), CrossedGate()])
def test_a_name_proves_nothing(native_library: NativeLibrary, module: nn.Module) -> None:
    model = nn.Sequential(module)
    rows = torch.randn(3, 32)
    with torch.inference_mode():
        expected = model(rows)
        nativise(model, native_library)
        assert type(model[0]) is type(module)
        torch.testing.assert_close(model(rows), expected, rtol=1e-5, atol=1e-5)


class Projections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(16, 32), nn.Linear(16, 8), nn.Linear(16, 8)


def test_joint_projections_may_be_called_in_any_order_and_with_other_rows(native_library: NativeLibrary) -> None:
    plain, first, second = Projections(), torch.randn(3, 16), torch.randn(2, 16)
    joint = Projections()
    joint.load_state_dict(plain.state_dict())
    nativise(nn.Sequential(joint), native_library)
    calls = [("q_proj", first), ("k_proj", first), ("v_proj", first), ("v_proj", second), ("q_proj", first)]
    with torch.inference_mode():
        for name, rows in [*calls, ("k_proj", second), ("v_proj", first)]:
            expected = plain.get_submodule(name)(rows)
            torch.testing.assert_close(joint.get_submodule(name)(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_normalised_row_is_right_and_the_same_in_every_place(
    native_library: NativeLibrary, dtype: torch.dtype
) -> None:
    weight, rows = torch.rand(48), torch.randn(2, 5, 48).to(dtype)
    norm = NativeNorm(native_library, weight, 1e-5, dtype)
    wide = rows.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    given = norm(rows)
    torch.testing.assert_close(given.double(), expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)
    assert torch.equal(norm(rows[1:, 3:]), given[1:, 3:])
    assert torch.equal(norm(rows.transpose(0, 1)), given.transpose(0, 1))
