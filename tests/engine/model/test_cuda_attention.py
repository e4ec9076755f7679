"""What can be tested of the CUDA attention without a device: that the reference takes over where it does not serve."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from engine.model import cuda_attention
from engine.model.attention import AttentionShape
from engine.model.cuda_attention import VarlenAttention, open_varlen_attention

CPU = torch.device("cpu")
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=64, block_size=256, dtype=torch.bfloat16, softcap=None)


def reason(shape: AttentionShape, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.WARNING):
        assert open_varlen_attention(shape, CPU) is None
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_a_device_without_the_kernel(caplog: pytest.LogCaptureFixture) -> None:
    assert "varlen_attn does not serve" in reason(SHAPE, caplog)


def test_soft_capping(caplog: pytest.LogCaptureFixture) -> None:
    assert "soft-capping" in reason(replace(SHAPE, softcap=5.0), caplog)


def test_a_torch_without_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_attention, "_HAS_VARLEN", False)
    assert "this torch has no varlen_attn" in reason(SHAPE, caplog)


def test_numbers_that_are_not_finite(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VarlenAttention, "attend", lambda *args: torch.tensor([float("nan")]))
    assert "not finite" in reason(SHAPE, caplog)


def test_where_it_works_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VarlenAttention, "attend", lambda *args: torch.zeros(1))
    assert isinstance(open_varlen_attention(SHAPE, CPU), VarlenAttention)
