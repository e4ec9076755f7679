"""A step waits for the device once: when it copies the tokens to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import PreTrainedModel

from engine.core import EngineCore
from engine.model.cuda_attention import VarlenAttention
from engine.model.tiled_attention import TiledAttention
from engine.sampling.logits import reads_draft
from tests.draft_pairs import truncated
from tests.drafters import RandomDrafter
from tests.exactness.test_tiny_identity import REQUESTS, answer_all, request_for
from tests.gpu.engines import USUAL_BUCKETS, cuda_core
from tests.tiny import VOCAB_SIZE, tiny_llama


class CopyCounter:
    """``num_copies`` of a tensor into a list, the one way to the host that is allowed."""

    def __init__(self) -> None:
        self.num_copies = 0
        self._to_list: Callable[[torch.Tensor], list[object]] = torch.Tensor.tolist

    def to_list(self, tensor: torch.Tensor) -> list[object]:
        self.num_copies += 1
        torch.cuda.set_sync_debug_mode("default")
        try:
            return self._to_list(tensor)
        finally:
            torch.cuda.set_sync_debug_mode("error")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[CopyCounter]:
    counter = CopyCounter()
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: counter.to_list(tensor))
    yield counter
    torch.cuda.set_sync_debug_mode("default")


def make_core(kind: str, model: PreTrainedModel, varlen: VarlenAttention) -> EngineCore:
    drafter = RandomDrafter(VOCAB_SIZE)
    match kind:
        case "graphs":
            return cuda_core(model, varlen, buckets=USUAL_BUCKETS, drafter=drafter)
        case "launched":
            return cuda_core(model, varlen, drafter=drafter)
    return cuda_core(tiny_llama().to(model.device), TiledAttention(), drafter=drafter)


@pytest.mark.parametrize("kind", ["graphs", "launched", "reference attention"])
def test_one_copy_a_step(kind: str, model: PreTrainedModel, varlen: VarlenAttention, copies: CopyCounter) -> None:
    """Every kind of request at once: penalties, biases, truncation, log-probabilities, drafts, prompts in pieces."""
    core = make_core(kind, model, varlen)
    answer_all(core, 4)  # libraries may wait when they are used for the first time
    for name in REQUESTS:
        core.add(request_for(name, 4))
    torch.cuda.set_sync_debug_mode("error")
    most = 0
    while core.has_unfinished:
        copies.num_copies = 0
        core.step()
        most = max(most, copies.num_copies)
    assert most == 1


def test_one_more_for_all_tokens_of_a_draft_model(
    model: PreTrainedModel, varlen: VarlenAttention, copies: CopyCounter
) -> None:
    """Of requests that do not penalise what the draft holds."""
    draft = truncated(tiny_llama()).to(model.device, model.dtype)
    core = cuda_core(model, varlen, buckets=USUAL_BUCKETS, draft=draft, looks_at_each=False)
    answer_all(core, 4)
    for name in REQUESTS:
        sequence = request_for(name, 4)
        if not reads_draft(sequence.params):
            core.add(sequence)
    torch.cuda.set_sync_debug_mode("error")
    most = 0
    while core.has_unfinished:
        copies.num_copies = 0
        core.step()
        most = max(most, copies.num_copies)
    assert most == 2


def test_the_test_has_teeth(device: torch.device) -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroni"):
            torch.ones(1, device=device).item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
