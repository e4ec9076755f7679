"""Linear layers whose rows do not depend on how many others there are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ConfigError
from engine.model import row_stable
from engine.model.row_stable import (
    CANDIDATE_ROW_COUNTS,
    RowStableActivation,
    RowStableLinear,
    agreeing_row_counts,
    stabilise,
)


def make_linear(inputs: int = 48, outputs: int = 40, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[torch.Tensor], torch.Tensor]], list[int]]:
    """Replace the matrix library by one that adds an error to each result; gives the list of row counts it saw."""

    def replace(error: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
        seen: list[int] = []

        def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            seen.append(len(rows))
            # One row at a time, so that the error alone makes a difference.
            exact = torch.cat([functional.linear(row.unsqueeze(0), weight, bias) for row in rows])
            return exact + error(rows)

        monkeypatch.setattr(row_stable, "functional", SimpleNamespace(linear=linear, pad=functional.pad))
        return seen

    return replace


def by_count(error: Callable[[int], float]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda rows: torch.full((len(rows), 1), error(len(rows)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 63, 64, 65, 256, 257, 600])
def test_padding_and_splitting_change_no_number(num_rows: int, bias: bool) -> None:
    linear = make_linear(bias=bias)
    x = torch.randn(num_rows, 48)
    result = RowStableLinear(linear, (4, 16, 64))(x)
    assert result.shape == (num_rows, 40)
    torch.testing.assert_close(result, functional.linear(x, linear.weight, linear.bias), rtol=1e-5, atol=1e-5)


def test_leading_dimensions_are_kept() -> None:
    linear = make_linear()
    x = torch.randn(2, 5, 48)
    torch.testing.assert_close(RowStableLinear(linear, (8,))(x), linear(x), rtol=1e-5, atol=1e-5)


def test_only_the_buckets_reach_the_library(library: Any) -> None:
    seen = library(by_count(lambda count: 0.0))
    layer = RowStableLinear(make_linear(), (4, 16))
    for num_rows, counts in {1: [4], 4: [4], 5: [16], 16: [16], 17: [16, 4], 40: [16, 16, 16], 36: [16, 16, 4]}.items():
        seen.clear()
        layer(torch.randn(num_rows, 48))
        assert seen == counts


def test_parameters_are_shared_and_not_copied() -> None:
    linear = make_linear()
    layer = RowStableLinear(linear, (4,))
    assert layer.weight is linear.weight
    assert layer.bias is linear.bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (64, 300)])
def test_rows_are_the_same_bits_in_every_number_and_place(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    linear = make_linear(*shape).to(dtype)
    layer = RowStableLinear(linear, agreeing_row_counts(linear))
    x = torch.randn(300, shape[0]).to(dtype)
    with torch.inference_mode():
        alone = torch.cat([layer(row.unsqueeze(0)) for row in x])
        for num_rows in (2, 3, 7, 9, 16, 17, 33, 100, 255, 300):
            assert torch.equal(layer(x[:num_rows]), alone[:num_rows])
            assert torch.equal(layer(x[-num_rows:]), alone[-num_rows:])


def test_row_counts_that_differ_are_kept_apart(library: Any) -> None:
    library(by_count(lambda count: 0.5 if count < 8 else 0.0))
    assert agreeing_row_counts(make_linear()) == tuple(n for n in CANDIDATE_ROW_COUNTS if n >= 8)


def test_the_largest_group_wins_even_if_its_members_do_not_lie_together(library: Any) -> None:
    odd = {4, 16, 128}
    library(by_count(lambda count: 0.5 if count in odd else 0.0))
    assert agreeing_row_counts(make_linear()) == tuple(n for n in CANDIDATE_ROW_COUNTS if n not in odd)


def test_a_row_count_whose_last_rows_go_another_way_is_left_out(library: Any) -> None:
    """A kernel for tiles of 16 rows, with another one for what is left over."""

    def error(rows: torch.Tensor) -> torch.Tensor:
        place = torch.arange(len(rows)).unsqueeze(1)
        return torch.where(place < len(rows) // 16 * 16, 0.0, 0.5)

    library(error)
    assert agreeing_row_counts(make_linear()) == tuple(n for n in CANDIDATE_ROW_COUNTS if n % 16 == 0)


def test_a_row_count_whose_middle_rows_go_another_way_is_left_out(library: Any) -> None:
    """The same backwards and forwards, and still not the same wherever a row stands."""

    def error(rows: torch.Tensor) -> torch.Tensor:
        place = torch.arange(len(rows))
        middle = (place >= 32) & (place < len(rows) - 32)
        return torch.where(middle, 0.5, 0.0).unsqueeze(1)

    library(error)
    assert agreeing_row_counts(make_linear()) == tuple(n for n in CANDIDATE_ROW_COUNTS if n <= 64)


def test_another_order_of_sums_shows_even_where_rounding_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 keeps 8 bits of a sum: two orders of summing give one number nearly always, and then they do not."""

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        products = rows.float().unsqueeze(1) * weight.float()
        if len(rows) == 1:
            return (products[..., ::2].sum(-1) + products[..., 1::2].sum(-1)).to(torch.bfloat16)
        return products.sum(-1).to(torch.bfloat16)

    monkeypatch.setattr(row_stable, "functional", SimpleNamespace(linear=linear, pad=functional.pad))
    plain = make_linear(512, 8, bias=False).to(torch.bfloat16)
    row = torch.randn(1, 512).to(torch.bfloat16)
    assert torch.equal(linear(row, plain.weight, None)[0], linear(row.repeat(2, 1), plain.weight, None)[0])
    assert agreeing_row_counts(plain) == CANDIDATE_ROW_COUNTS[1:]


def test_a_library_that_never_agrees_with_itself_is_refused(library: Any) -> None:
    calls = iter(range(10**6))
    library(lambda rows: torch.full((len(rows), 1), float(next(calls))))
    with pytest.raises(ConfigError, match=r"48 x 40 in torch\.float32"):
        agreeing_row_counts(make_linear())


def test_every_linear_layer_of_a_model_is_replaced_and_nothing_else() -> None:
    transposed = Conv1D(8, 40)
    nn.init.normal_(transposed.bias)
    model = nn.Sequential(make_linear(), nn.LayerNorm(40), nn.Sequential(transposed, make_linear(8, 12)))
    x = torch.randn(3, 48)
    before = model(x)
    stabilise(model)
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(RowStableLinear) == 3
    assert kinds.count(nn.LayerNorm) == 1
    assert kinds.count(nn.Linear) == kinds.count(Conv1D) == 0
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)


class Experts(nn.Module):
    """A matrix each, multiplied by in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 8, 8))


@pytest.mark.parametrize(
    ("layer", "name"), [(Experts(), r"1\.weights .* Experts"), (nn.Conv1d(8, 8, 3), r"1\.weight .* Conv1d")]
)
def test_a_model_that_multiplies_elsewhere_is_refused(layer: nn.Module, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        stabilise(nn.Sequential(make_linear(), layer))


@pytest.mark.parametrize("num_threads", [1, 3, 5, 6])
@pytest.mark.parametrize("width", [1536, 11008, 100, 70_000])
@pytest.mark.parametrize("function", [nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_an_activation_is_the_same_bits_in_every_number_of_rows(
    function: nn.Module, width: int, num_threads: int
) -> None:
    layer = RowStableActivation(function)
    rows = torch.randn(101 if width < 20_000 else 5, width, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = torch.cat([layer(row.unsqueeze(0)) for row in rows])
        torch.testing.assert_close(alone, function(rows), rtol=1e-5, atol=1e-6)
        for num_rows in (2, 5, 7, 22, 86, 89, 98, 101):
            assert torch.equal(layer(rows[:num_rows]), alone[:num_rows])
            assert torch.equal(layer(rows[None, -num_rows:])[0], alone[-num_rows:])
    finally:
        torch.set_num_threads(before)


def test_activations_of_a_model_are_replaced() -> None:
    model = nn.Sequential(make_linear(), nn.SiLU(), nn.Dropout())
    stabilise(model)
    assert [type(module) for module in model] == [RowStableLinear, RowStableActivation, nn.Dropout]
