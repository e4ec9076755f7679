"""The runner against transformers itself, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from engine.errors import ConfigError
from engine.model.attention import attend
from engine.model.flat_batch import flatten
from engine.model.forward_batch import send
from engine.model.kv_pool import KVPool
from engine.model.runner import ModelRunner, kv_shape
from engine.model.tiled_attention import TiledAttention
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.types import Draft
from tests.sequences import make_sequence, run, tokens_of
from tests.tiny import ARCHITECTURES, SHAPE, build_core, tiny_gemma2, tiny_llama, tiny_qwen3


def make_pool(model: PreTrainedModel, num_blocks: int = 64, block_size: int = 4) -> KVPool:
    num_layers, num_kv_heads, head_dim = kv_shape(model)
    return KVPool(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
    )


def make_runner(model: PreTrainedModel) -> ModelRunner:
    return ModelRunner(model, make_pool(model), TiledAttention())


@pytest.mark.parametrize("make_model", ARCHITECTURES)
def test_greedy_output_is_that_of_transformers_token_for_token(make_model: Callable[[], PreTrainedModel]) -> None:
    reference = make_model()
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [40], [7] * 30]
    core = build_core(make_model(), max_num_batched_tokens=20)
    outputs = run(core, [make_sequence(str(i), prompt, ignore_eos=True) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens_of(outputs[str(i)]) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("make_model", ARCHITECTURES)
def test_logits_of_a_mixed_batch_are_those_of_whole_texts(make_model: Callable[[], PreTrainedModel]) -> None:
    """A chunk that draws nothing, a prompt to be scored, a decode row, and a draft, in one forward."""
    reference, model = make_model(), make_model()
    runner = make_runner(model)
    texts = {
        "chunk": [5] * 20,
        "scored": [9, 8, 7, 6, 5],
        "plain": [11, 12, 13, 14, 15, 16],
        "drafted": [21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32],
    }
    sequences = {name: make_sequence(name, text) for name, text in texts.items()}
    sequences["scored"] = make_sequence("scored", texts["scored"], prompt_logprobs=0)
    for i, sequence in enumerate(sequences.values()):
        sequence.block_table = [1 + i + 4 * n for n in range(8)]
    draft = Draft((33, 34, 35))
    for name in ("plain", "drafted"):
        first = ScheduledSequence(sequences[name], len(texts[name]) - 1)
        runner.forward(ScheduledBatch([first]), [Draft()])
        sequences[name].num_computed_tokens = len(texts[name]) - 1
    entries = [ScheduledSequence(s, s.num_uncomputed_tokens) for s in sequences.values()]
    entries[0].num_tokens = 9
    logits = runner.forward(ScheduledBatch(entries), [Draft(), Draft(), Draft(), draft])

    def whole(token_ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = reference(input_ids=torch.tensor([token_ids])).logits[0]
        return result

    expected = torch.cat(
        [
            whole(texts["scored"]),
            whole(texts["plain"])[-1:],
            whole([*texts["drafted"], *draft.token_ids])[-4:],
        ]
    )
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_batch_is_flat_and_rows_of_one_sequence_stand_together() -> None:
    model = tiny_llama()
    pool = make_pool(model, block_size=4)
    first, second = make_sequence("a", [1, 2, 3, 4, 5, 6]), make_sequence("b", [7, 8, 9], prompt_logprobs=0)
    first.num_computed_tokens, first.block_table = 5, [3, 1, 9]
    second.block_table = [2]
    batch = ScheduledBatch([ScheduledSequence(first, 1), ScheduledSequence(second, 2)])
    flat = flatten(batch, [Draft((50, 51, 52)), Draft()], pool.block_size)
    sent = send(flat, model.device)
    assert sent.input_ids.tolist() == flat.input_ids == [6, 50, 51, 52, 7, 8]
    assert sent.positions.tolist() == flat.positions == [5, 6, 7, 8, 0, 1]
    assert sent.slots.tolist() == flat.slots == [5, 6, 7, 36, 8, 9]
    assert sent.logit_rows.tolist() == flat.logit_rows == [0, 1, 2, 3, 4, 5]
    assert flat.row_counts == [4, 2]
    assert sent.cumulative_rows.tolist() == [0, 4, 6]
    assert sent.context_lengths.tolist() == flat.context_lengths == [9, 2]
    assert sent.block_tables.tolist() == [[3, 1, 9], [2, 0, 0]]
    assert (sent.max_rows, sent.max_context) == (4, 9)
    assert first.token_ids == [1, 2, 3, 4, 5, 6]


class WithSinks(LlamaForCausalLM):
    """Asks every attention for softmax sinks, as some model classes do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs, s_aux=torch.zeros(4))


def test_a_feature_that_is_not_computed_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"unsupported attention feature.*s_aux"):
        make_runner(WithSinks(LlamaConfig(**SHAPE)).eval())


@pytest.mark.parametrize("keyword", ["s_aux", "head_mask", "position_bias", "alibi"])
def test_an_unknown_keyword_is_refused_by_name_unless_it_is_none(keyword: str) -> None:
    rows = torch.zeros(1, 4, 1, 16)

    def call(**unknown: Any) -> None:
        attend(nn.Module(), rows, rows, rows, None, paged_attention=None, **unknown)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=keyword):
        call(**{keyword: torch.zeros(1)})
    with pytest.raises(AttributeError, match="layer_idx"):
        call(**{keyword: None})


def test_a_mask_and_attention_to_later_tokens_are_refused() -> None:
    rows = torch.zeros(1, 4, 1, 16)
    with pytest.raises(ConfigError, match="an attention mask"):
        attend(nn.Module(), rows, rows, rows, torch.zeros(1), paged_attention=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="attention to later tokens"):
        attend(nn.Module(), rows, rows, rows, None, paged_attention=None, is_causal=False)  # type: ignore[arg-type]


def test_a_model_with_layers_that_go_around_the_paged_attention_is_refused() -> None:
    model = tiny_llama()
    model.config.num_hidden_layers = 3
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM does not run on paged attention.*went around"):
        ModelRunner(model, make_pool(model), TiledAttention())


def test_a_model_whose_layers_differ_in_head_dimension_is_refused() -> None:
    model = tiny_llama()
    model.model.layers[1].self_attn.head_dim = 8
    with pytest.raises(ConfigError, match=r"different head dimensions: \[8, 32\]"):
        kv_shape(model)


@pytest.mark.parametrize(
    ("make_model", "shape"), [(tiny_llama, (2, 2, 32)), (tiny_qwen3, (2, 2, 32)), (tiny_gemma2, (2, 2, 16))]
)
def test_the_shape_of_the_pool_follows_the_model(
    make_model: Callable[[], PreTrainedModel], shape: tuple[int, int, int]
) -> None:
    assert kv_shape(make_model()) == shape


def test_memory_is_counted_in_bytes() -> None:
    pool = make_pool(tiny_llama(), num_blocks=10, block_size=4)
    per_token = KVPool.bytes_per_token(num_layers=2, num_kv_heads=2, head_dim=32, dtype=torch.float32)
    assert per_token == 2 * 2 * 2 * 32 * 4
    assert pool.num_bytes == 40 * per_token
