"""Our products of rows with weights: right against float64, and the same bits for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.model.native_linear import PANEL, NativeLinear, pack
from engine.native.functions import NativeLibrary

# Wide and narrow, fewer outputs than a panel, outputs that fill no panel.
SHAPES = [(576, 96), (64, 200), (50, 33), (2, 1), (1536, 31)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


def draw(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_close(given: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES[given.dtype]
    torch.testing.assert_close(given.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product(native_library: NativeLibrary, dtype: torch.dtype, shape: tuple[int, int], has_bias: bool) -> None:
    num_inputs, num_outputs = shape
    weight = draw(num_outputs, num_inputs, dtype=dtype, seed=1)
    bias = draw(num_outputs, dtype=dtype, seed=2) if has_bias else None
    rows = draw(29, num_inputs, dtype=dtype, seed=3)
    expected = functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    given = NativeLinear(native_library, [weight], bias)(rows)
    assert (given.dtype, given.shape) == (dtype, (29, num_outputs))
    check_close(given, expected)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gated_product(native_library: NativeLibrary, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    num_inputs, num_outputs = shape
    gate, up = (draw(num_outputs, num_inputs, dtype=dtype, seed=seed) for seed in (1, 2))
    rows = draw(13, num_inputs, dtype=dtype, seed=3)
    expected = functional.silu(rows.double() @ gate.double().T) * (rows.double() @ up.double().T)
    check_close(NativeLinear(native_library, [gate, up])(rows), expected)


@pytest.mark.parametrize("number", [-1e4, -100.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 100.0, 1e4])
def test_the_gate_is_finite_and_right_for_numbers_of_any_size(native_library: NativeLibrary, number: float) -> None:
    layer = NativeLinear(native_library, [torch.tensor([[number, 0.0]]), torch.tensor([[1.0, 0.0]])])
    given = layer(torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(given, functional.silu(torch.tensor([[number]])), rtol=1e-6, atol=1e-30)


@DTYPES
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_is_the_same_bits_in_every_number_and_place(
    native_library: NativeLibrary, dtype: torch.dtype, is_gated: bool, num_threads: int
) -> None:
    # Every product is exactly 0, so that the rounding of the sums is all there is, and any other order shows.
    half_rows, half_weight = draw(40, 144, dtype=dtype, seed=1), draw(70, 144, dtype=dtype, seed=2)
    order = torch.randperm(288, generator=torch.Generator().manual_seed(3))
    rows = torch.cat([half_rows, half_rows], dim=1)[:, order]
    weight = torch.cat([half_weight, -half_weight], dim=1)[:, order]
    layer = NativeLinear(native_library, [weight, weight.flip(0)] if is_gated else [weight])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = torch.cat([layer(row.unsqueeze(0)) for row in rows])
        assert alone.count_nonzero() > 0
        for num_rows in range(41):
            assert torch.equal(layer(rows[:num_rows]), alone[:num_rows])
            assert torch.equal(layer(rows[40 - num_rows :]), alone[40 - num_rows :])
    finally:
        torch.set_num_threads(before)


def test_rows_may_lie_apart_or_across(native_library: NativeLibrary) -> None:
    layer = NativeLinear(native_library, [draw(40, 16, dtype=torch.float32, seed=1)])
    wide = draw(5, 48, dtype=torch.float32, seed=2)
    assert torch.equal(layer(wide[:, 16:32]), layer(wide[:, 16:32].contiguous()))
    tall = draw(16, 5, dtype=torch.float32, seed=3)
    assert torch.equal(layer(tall.T), layer(tall.T.contiguous()))


def test_leading_dimensions_are_kept(native_library: NativeLibrary) -> None:
    layer = NativeLinear(native_library, [draw(40, 16, dtype=torch.float32, seed=1)])
    rows = draw(2, 3, 16, dtype=torch.float32, seed=2)
    assert torch.equal(layer(rows), layer(rows.reshape(6, 16)).view(2, 3, 40))


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_how_weights_are_packed(dtype: torch.dtype, step: int) -> None:
    weight = torch.arange(40 * 6).view(40, 6).to(dtype)
    packed = pack([weight])
    assert packed.shape == (2, 6 // step, PANEL, step)
    assert packed[1, 2 // step, 3, 2 % step] == weight[PANEL + 3, 2]
    assert packed[1, :, 8:].count_nonzero() == 0
    gated = pack([weight, -weight])
    assert gated.shape == (3, 6 // step, PANEL, step)
    assert (gated[1, 0, 2, 0], gated[1, 0, PANEL // 2 + 2, 0]) == (weight[18, 0], -weight[18, 0])
