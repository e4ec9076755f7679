"""Engines on a CUDA device around a tiny model, with captured forwards or without."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.model.attention import AttentionBackend
from engine.model.cuda_graphs import CudaCapture
from engine.model.graph_runner import GraphRunner, capture_forwards
from engine.model.row_buckets import RowBucket, row_buckets
from engine.model.runner import ModelRunner
from tests.tiny import build_core

BLOCK_SIZE = 256  # what the kernel takes
USUAL_BUCKETS = row_buckets(max_num_seqs=16, longest_draft=7, max_num_batched_tokens=128, table_width=2)


def captured(runner: ModelRunner, buckets: Seq[RowBucket] = USUAL_BUCKETS) -> GraphRunner:
    capture = CudaCapture(torch.device("cuda"))
    graphs = capture_forwards(runner, buckets, capture, lambda stage, fraction: None)
    assert graphs is not None, "capturing failed; the log says why"
    return graphs


def cuda_core(
    model: PreTrainedModel, attention: AttentionBackend, *, buckets: Seq[RowBucket] = (), **options: Any
) -> EngineCore:
    """Without ``buckets`` every step is launched kernel by kernel."""
    return build_core(
        model,
        attention=attention,
        wrap=(lambda runner: captured(runner, buckets)) if buckets else (lambda runner: runner),
        block_size=BLOCK_SIZE,
        num_blocks=64,
        **options,
    )
