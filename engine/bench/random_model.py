"""Llama-shaped models with random weights, to measure steps of sizes for which there are no weights at hand."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.config import EngineConfig
from engine.model.loading import LoadedModel, resolve_device, resolve_dtype

# Hidden size, layers, inner size, heads; 8 key-value heads and the vocabulary are the same for all.
_SHAPES = {"random-llama-1b": (2048, 16, 8192, 32), "random-llama-8b": (4096, 32, 14336, 32)}
RANDOM_MODELS = tuple(_SHAPES)


def make_random_model(name: str, config: EngineConfig) -> LoadedModel:
    """One of ``RANDOM_MODELS`` on the configured device, without a tokenizer worth the name.

    Raises:
        ConfigError: there is no such device.
    """
    hidden_size, num_layers, inner_size, num_heads = _SHAPES[name]
    device = resolve_device(config)
    dtype = resolve_dtype(config, device)
    max_model_len = config.max_model_len or 4096
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if config.quantization != "none" else dtype)
        try:
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=128_256,
                    hidden_size=hidden_size,
                    num_hidden_layers=num_layers,
                    intermediate_size=inner_size,
                    num_attention_heads=num_heads,
                    num_key_value_heads=8,
                    max_position_embeddings=max_model_len,
                    tie_word_embeddings=name == "random-llama-1b",
                )
            )
        finally:
            torch.set_default_dtype(before)
    return LoadedModel(
        model=model.eval(),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())),
        name=name,
        device=device,
        dtype=dtype,
        eos_token_ids=frozenset(),
        max_model_len=max_model_len,
    )
