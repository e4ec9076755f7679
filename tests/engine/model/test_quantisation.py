"""Weights in blocks: what is kept of them; their products are right, and the same for any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.loading import load_model
from engine.model.native_linear import NativeLinear
from engine.model.quantisation import BLOCK, QuantisedType, QuantisedWeight, quantise
from engine.native.functions import NativeLibrary

TYPES = pytest.mark.parametrize("to", ["int8", "int4"])


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# In 4 bits around 0 the far end lies a whole step outside.
@pytest.mark.parametrize(("to", "share"), [("int8", 0.5 / 127), ("int4", 1 / 8)])
def test_how_far_off_a_weight_may_be(to: QuantisedType, share: float) -> None:
    weight = draw(40, 96, seed=1)
    error = (quantise(weight, to).dequantise() - weight).unflatten(1, (-1, BLOCK)).abs().amax(-1)
    largest = weight.unflatten(1, (-1, BLOCK)).abs().amax(-1)
    assert bool((error <= largest * (share + 2e-3)).all())  # what float16 rounds off comes on top


@TYPES
@pytest.mark.parametrize("weight", [torch.zeros(4, 64), torch.full((4, 64), 0.25), -torch.ones(4, 64)])
def test_equal_weights_are_kept(to: QuantisedType, weight: torch.Tensor) -> None:
    torch.testing.assert_close(quantise(weight, to).dequantise(), weight, rtol=1e-3, atol=0)


def test_weights_beyond_the_scales_are_refused() -> None:
    with pytest.raises(ConfigError, match="as large as 1e\\+06"):
        quantise(torch.full((1, 32), 1e6), "int4")


def as_q8_0(seed: int) -> torch.Tensor:
    numbers = torch.randint(-127, 128, (8, 3, BLOCK), generator=torch.Generator().manual_seed(seed))
    numbers[..., 5] = 127
    return QuantisedWeight(numbers, draw(8, 3, seed=seed).abs().half()).dequantise()


def as_q4_1(seed: int) -> torch.Tensor:
    numbers = torch.randint(0, 16, (8, 3, BLOCK), generator=torch.Generator().manual_seed(seed))
    numbers[..., 3], numbers[..., 9] = 0, 15
    return QuantisedWeight(numbers, draw(8, 3, seed=seed).abs().half(), draw(8, 3, seed=seed + 1).half()).dequantise()


def as_q4_0(seed: int) -> torch.Tensor:
    numbers = torch.randint(1, 15, (8, 3, BLOCK), generator=torch.Generator().manual_seed(seed))
    numbers[..., 7] = 0
    scales = draw(8, 3, seed=seed).half()
    return QuantisedWeight(numbers, scales, -8 * scales).dequantise()


@pytest.mark.parametrize(("make", "to"), [(as_q8_0, "int8"), (as_q4_1, "int4"), (as_q4_0, "int4")])
def test_blocks_of_a_gguf_file_come_out_as_they_were(make: Callable[[int], torch.Tensor], to: QuantisedType) -> None:
    for seed in range(20):
        weight = make(seed)
        assert torch.equal(quantise(weight, to).dequantise(), weight)


def test_the_default_models_weights_come_out_as_its_file_has_them() -> None:
    config = EngineConfig(device="cpu", dtype="float32")
    state = load_model(config, lambda stage, fraction: None).model.state_dict()
    for layer in (0, 17, 29):
        for name in ("self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj"):
            weight = state[f"model.layers.{layer}.{name}.weight"]
            assert torch.equal(quantise(weight, "int4").dequantise(), weight), (layer, name)
    head = state["lm_head.weight"][:2000]
    assert torch.equal(quantise(head, "int8").dequantise(), head)


@TYPES
@pytest.mark.parametrize("shape", [(576, 96), (64, 200), (32, 33), (1536, 31)])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_product(native_library: NativeLibrary, to: QuantisedType, shape: tuple[int, int], is_gated: bool) -> None:
    num_inputs, num_outputs = shape
    weights = [draw(num_outputs, num_inputs, seed=seed) for seed in (1, 2)]
    rows = draw(21, num_inputs, seed=3).bfloat16()
    first, second = (rows.double() @ quantise(weight, to).dequantise().double().T for weight in weights)
    expected = functional.silu(first) * second if is_gated else first
    given = NativeLinear(native_library, weights if is_gated else weights[:1], to=to)(rows)
    assert given.dtype is torch.bfloat16
    torch.testing.assert_close(given.double(), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


@TYPES
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_is_the_same_bits_in_every_number_and_place(
    native_library: NativeLibrary, to: QuantisedType, is_gated: bool, num_threads: int
) -> None:
    weights = [draw(70, 288, seed=seed) for seed in (1, 2)]
    layer = NativeLinear(native_library, weights if is_gated else weights[:1], to=to)
    rows = draw(40, 288, seed=3).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone = torch.cat([layer(row.unsqueeze(0)) for row in rows])
        for num_rows in range(41):
            assert torch.equal(layer(rows[:num_rows]), alone[:num_rows])
            assert torch.equal(layer(rows[40 - num_rows :]), alone[40 - num_rows :])
    finally:
        torch.set_num_threads(before)
