"""Small random models made in code, and a way to run sequences through an engine without threads or HTTP."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.core import EngineCore
from engine.model.kv_pool import KVPool
from engine.model.row_stable import stabilise
from engine.model.runner import ModelRunner, kv_shape
from engine.model.tiled_attention import TiledAttention
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Sequence
from engine.speculation.controller import FixedDraftLength
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.verifier import Verifier
from engine.types import RequestOutput, SamplingParams, SpeculationMode, SpeculationParams

VOCAB_SIZE = 96


class NumberText:
    """A ``TextStream`` in which token 7 is the text ``"7 "``; stop strings end it like any other."""

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._stop = stop
        self._text = ""
        self._num_taken = 0

    def append(self, token_id: int, *, check_stop: bool = True) -> str | None:
        start = len(self._text)
        self._text += f"{token_id} "
        for stop in self._stop if check_stop else ():
            at = self._text.find(stop, max(0, start - len(stop)))
            if at >= 0:
                self._text = self._text[:at]
                return stop
        return None

    def take(self, *, final: bool = False) -> str:
        text = self._text[self._num_taken :]
        self._num_taken = len(self._text)
        return text


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


def build_core(
    model: PreTrainedModel,
    *,
    drafter: Drafter | None = None,
    num_blocks: int = 256,
    block_size: int = 4,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 128,
    enable_prefix_caching: bool = True,
    end_token_ids: frozenset[int] = frozenset({0}),
) -> EngineCore:
    """An engine over ``model``, which must have been passed through ``stabilise`` if bits matter."""
    num_layers, num_kv_heads, head_dim = kv_shape(model)
    pool = KVPool(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    return EngineCore(
        scheduler=Scheduler(
            BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
        controller=FixedDraftLength(),
        drafter=drafter or NullDrafter(),
        runner=ModelRunner(model, pool, TiledAttention()),
        verifier=Verifier(Sampler(end_token_ids)),
        end_token_ids=end_token_ids,
    )


def stable_llama(seed: int = 0, *, vocab_size: int = VOCAB_SIZE, sharpness: float = 0.1) -> PreTrainedModel:
    model = tiny_llama(seed, vocab_size=vocab_size, sharpness=sharpness)
    stabilise(model)
    return model


def make_sequence(
    request_id: str,
    prompt: list[int],
    *,
    num_speculative_tokens: int = 0,
    **params: object,
) -> Sequence:
    options = {"seed": 0, "max_tokens": 24, "temperature": 0.0} | params
    sampling = SamplingParams(**options)  # type: ignore[arg-type]
    mode = SpeculationMode.AUTO if num_speculative_tokens else SpeculationMode.OFF
    return Sequence(
        request_id,
        prompt,
        sampling,
        text=NumberText(sampling.stop),
        speculation=SpeculationParams(mode),
        num_speculative_tokens=num_speculative_tokens,
        arrival_time=0.0,
    )


def run(core: EngineCore, sequences: Iterable[Sequence]) -> dict[str, list[RequestOutput]]:
    """Step until all are done; the outputs of each request in order."""
    outputs: dict[str, list[RequestOutput]] = {}
    for sequence in sequences:
        core.add(sequence)
    while core.has_unfinished:
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
