"""Tests that need a CUDA device. Without one they are skipped; ``make test-gpu`` fails then, before it runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.model.cuda_attention import VarlenAttention, open_varlen_attention
from engine.model.runner import attention_shape
from tests.gpu.engines import BLOCK_SIZE
from tests.tiny import tiny_llama

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("gpu")
            # A driver may warn of much that is no concern of these tests.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True, scope="session")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def model(device: torch.device) -> PreTrainedModel:
    """In bfloat16, which is what the fast attention takes."""
    return tiny_llama().to(device, torch.bfloat16)


@pytest.fixture(scope="session")
def varlen(model: PreTrainedModel, device: torch.device) -> VarlenAttention:
    backend = open_varlen_attention(attention_shape(model, BLOCK_SIZE), device)
    assert backend is not None, "the fast attention does not serve a Llama in bfloat16 here; the log says why"
    return backend
