"""Small random models made in code, and an engine around them without threads or HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.core import EngineCore, Runner
from engine.model.attention import AttentionBackend
from engine.model.kv_pool import KVPool, copy_rows
from engine.model.native_attention import open_native_attention
from engine.model.native_scatter import NativeScatter
from engine.model.recorded_layers import record_layers
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, attention_shape, kv_shape
from engine.model.tiled_attention import TiledAttention
from engine.native.functions import NativeLibrary
from engine.sampling.native_draw import NativeDraw
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from engine.speculation.controller import FixedDraftLength
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.verifier import Verifier
from tests.drafters import draft_model

VOCAB_SIZE = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


def tiny_llama(seed: int = 0, *, vocab_size: int = VOCAB_SIZE, sharpness: float = 0.1) -> PreTrainedModel:
    """Two layers, four heads over two key-value heads.

    Each token's likeliest successor is the next one of its cycle of eight, so that greedy output repeats itself and a
    suffix drafter has something to find; the random layers stir in the rest. ``sharpness`` scales the logits.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).eval()
    successor = torch.arange(vocab_size)
    successor = torch.where(successor % 8 == 7, successor - 7, successor + 1)
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding.normal_()
        model.lm_head.weight[successor] = embedding * sharpness
    return model


def tiny_qwen3() -> PreTrainedModel:
    torch.manual_seed(1)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32)).eval()


def tiny_gemma2() -> PreTrainedModel:
    """Soft-caps on scores and logits, and a window of 8 in every other layer."""
    torch.manual_seed(2)
    return Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=16, sliding_window=8, attn_logit_softcapping=5.0, final_logit_softcapping=8.0)
    ).eval()


def tiny_gpt2() -> PreTrainedModel:
    """Transposed linear layers and learned positions."""
    torch.manual_seed(3)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB_SIZE, n_embd=64, n_layer=2, n_head=4, n_positions=512, initializer_range=0.3)
    ).eval()


ARCHITECTURES = [tiny_llama, tiny_qwen3, tiny_gemma2, tiny_gpt2]


def build_core(
    model: PreTrainedModel,
    *,
    drafter: Drafter | None = None,
    draft: PreTrainedModel | None = None,
    looks_at_each: bool = True,
    attention: AttentionBackend | None = None,
    library: NativeLibrary | None = None,
    wrap: Callable[[ModelRunner], Runner] = lambda runner: runner,
    num_blocks: int = 256,
    block_size: int = 4,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 128,
    enable_prefix_caching: bool = True,
    end_token_ids: frozenset[int] = frozenset({0}),
) -> EngineCore:
    """An engine over ``model``, which must have been passed through ``stabilise`` if bits matter.

    Args:
        draft: drafts, in the place of ``drafter``.
        looks_at_each: as in ``DraftModelDrafter``.
        library: runs what it can of the step; the models must be ``nativise``d and not have been in an engine before.
        wrap: what stands before the runner.
    """
    runner = _build_runner(model, num_blocks, block_size, attention, library)
    if draft is not None:
        drafter = draft_model(
            wrap(_build_runner(draft, num_blocks, block_size, attention, library)),  # type: ignore[arg-type]
            vocab_size=model.config.vocab_size,
            block_size=block_size,
            end_token_ids=end_token_ids,
            looks_at_each=looks_at_each,
            max_num_rows=max_num_batched_tokens,
        )
    return EngineCore(
        scheduler=Scheduler(
            BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
        controller=FixedDraftLength(),
        drafter=drafter or NullDrafter(),
        runner=wrap(runner),
        verifier=Verifier(Sampler(end_token_ids, NativeDraw(library) if library else None)),
        end_token_ids=end_token_ids,
    )


def _build_runner(
    model: PreTrainedModel,
    num_blocks: int,
    block_size: int,
    attention: AttentionBackend | None,
    library: NativeLibrary | None,
) -> ModelRunner:
    num_layers, num_kv_heads, head_dim = kv_shape(model)
    pool = KVPool(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
        write_rows=NativeScatter(library) if library else copy_rows,
    )
    if library is not None:
        attention = open_native_attention(attention_shape(model, block_size), library)
    runner = ModelRunner(model, pool, attention or TiledAttention())
    if library is not None:
        record_layers(model, runner, library, max_model_len=128, max_rows=12)
    return runner


def stable_llama(seed: int = 0, *, vocab_size: int = VOCAB_SIZE, sharpness: float = 0.1) -> PreTrainedModel:
    model = tiny_llama(seed, vocab_size=vocab_size, sharpness=sharpness)
    stabilise(model)
    return model


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from a second thread, and lose much where it has to wait for a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
