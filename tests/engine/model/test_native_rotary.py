"""Turned queries and keys: the model's own numbers, row by row, and its own function for what is not served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from engine.model.native_rotary import NativeRotary, nativise_rotary
from engine.native.functions import NativeLibrary
from tests.tiny import tiny_gemma2, tiny_llama, tiny_qwen3

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The library's modules as they were, so that each test meets the original."""
    before = {home: home.apply_rotary_pos_emb for home in (modeling_gemma2, modeling_llama, modeling_qwen3)}
    for home, function in before.items():
        if isinstance(function, NativeRotary):
            home.apply_rotary_pos_emb = function.original
    yield
    for home, function in before.items():
        home.apply_rotary_pos_emb = function


def inputs(num_rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, num_rows, heads, width, generator=generator).to(dtype).transpose(1, 2) for heads in (6, 2))
    angles = (torch.rand(1, num_rows, width // 2, generator=generator) * 6).repeat(1, 1, 2)
    return q, k, angles.cos().to(dtype), angles.sin().to(dtype)


@DTYPES
@pytest.mark.parametrize(("num_rows", "width"), [(1, 32), (5, 64), (130, 64), (3, 128)])
def test_the_models_own_numbers(native_library: NativeLibrary, dtype: torch.dtype, num_rows: int, width: int) -> None:
    original = modeling_llama.apply_rotary_pos_emb
    values = inputs(num_rows, width, dtype)
    expected = original(*(value.double() for value in values))
    given = NativeRotary(native_library, fail)(*values)
    for ours, theirs in zip(given, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, dtype)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-2)


@DTYPES
def test_a_row_is_the_same_bits_in_every_number_and_place(native_library: NativeLibrary, dtype: torch.dtype) -> None:
    q, k, cos, sin = inputs(130, 64, dtype)
    rotary = NativeRotary(native_library, fail)
    whole = rotary(q, k, cos, sin)
    for first, end in ((0, 1), (129, 130), (7, 90), (3, 5)):
        part = rotary(q[:, :, first:end], k[:, :, first:end], cos[:, first:end], sin[:, first:end])
        assert all(torch.equal(p, w[:, :, first:end]) for p, w in zip(part, whole, strict=True))


def fail(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    raise AssertionError("not for the original")


def test_what_is_not_served_goes_to_the_original(native_library: NativeLibrary) -> None:
    asked = []

    def original(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((args, options))
        return args[0], args[1]

    rotary = NativeRotary(native_library, original)
    q, k, cos, sin = inputs(4, 64, torch.float32)
    rotary(q, k, cos, sin, unsqueeze_dim=2)
    rotary(q, k, cos, sin, 2)
    rotary(q.half(), k.half(), cos.half(), sin.half())
    rotary(q, k, cos.bfloat16(), sin.bfloat16())
    rotary(q[..., :16], k[..., :16], cos[..., :16], sin[..., :16])
    rotary(q, k, cos[:, :, :32], sin[:, :, :32])
    rotary(q.repeat(2, 1, 1, 1), k.repeat(2, 1, 1, 1), cos, sin)
    assert len(asked) == 7


@pytest.mark.parametrize(
    ("make_model", "home"),
    [(tiny_llama, modeling_llama), (tiny_qwen3, modeling_qwen3), (tiny_gemma2, modeling_gemma2)],
)
def test_it_is_put_where_the_model_looks(
    native_library: NativeLibrary, make_model: Callable[[], PreTrainedModel], home: ModuleType
) -> None:
    model = make_model()
    original = home.apply_rotary_pos_emb
    for _ in range(2):
        nativise_rotary(model, native_library)
        assert isinstance(home.apply_rotary_pos_emb, NativeRotary)
        assert home.apply_rotary_pos_emb.original is original


def test_another_function_of_that_name_stays(native_library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return q * cos.unsqueeze(1), k * cos.unsqueeze(1)

    def needs_more(q: torch.Tensor, k: torch.Tensor) -> None: ...

    for function in (backwards, needs_more):
        monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", function)
        nativise_rotary(tiny_llama(), native_library)
        assert modeling_llama.apply_rotary_pos_emb is function
