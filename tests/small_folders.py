"""Small models on disk, as a user would have them: a Hugging Face folder, a GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from tests import vocabularies
from tests.tiny import tiny_llama

HIDDEN_SIZE = 64
FEED_FORWARD_SIZE = 96


def write_hugging_face_folder(folder: Path) -> Path:
    """A two-layer Llama with a byte-level tokenizer and a chat template."""
    tokenizer = vocabularies.byte_level()
    # Padded, as vocabularies often are.
    model = tiny_llama(vocab_size=-(-len(tokenizer) // 8) * 8)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(path: Path, *, pre: str = "smollm", architecture: str = "llama", seed: int = 0) -> dict[str, np.ndarray]:
    """A one-layer Llama with Q4_1 matrices and a byte-level vocabulary.

    Returns:
        The exact values of the tensors by their GGUF names, float32.
    """
    tokenizer = vocabularies.byte_level()
    writer = GGUFWriter(path, architecture)
    _describe(writer, vocab_size=len(tokenizer))
    _add_vocabulary(writer, tokenizer, pre)
    random = np.random.default_rng(seed)
    values = {}
    for name, shape in _shapes(len(tokenizer)).items():
        drawn = random.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            values[name] = drawn
            writer.add_tensor(name, drawn)
            continue
        packed = quants.quantize(drawn, GGMLQuantizationType.Q4_1)
        values[name] = quants.dequantize(packed, GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def _describe(writer: GGUFWriter, *, vocab_size: int) -> None:
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD_SIZE)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN_SIZE // 4)
    writer.add_vocab_size(vocab_size)


def _add_vocabulary(writer: GGUFWriter, tokenizer: vocabularies.PreTrainedTokenizerFast, pre: str) -> None:
    model = vocabularies.merges_of(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in range(len(tokens))]
    )
    writer.add_token_merges(model)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(vocabularies.CHAT_TEMPLATE)


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    block, half = "blk.0", HIDDEN_SIZE // 2
    return {
        "token_embd.weight": (vocab_size, HIDDEN_SIZE),
        "output.weight": (vocab_size, HIDDEN_SIZE),
        "output_norm.weight": (HIDDEN_SIZE,),
        f"{block}.attn_norm.weight": (HIDDEN_SIZE,),
        f"{block}.ffn_norm.weight": (HIDDEN_SIZE,),
        f"{block}.attn_q.weight": (HIDDEN_SIZE, HIDDEN_SIZE),
        f"{block}.attn_k.weight": (half, HIDDEN_SIZE),
        f"{block}.attn_v.weight": (half, HIDDEN_SIZE),
        f"{block}.attn_output.weight": (HIDDEN_SIZE, HIDDEN_SIZE),
        f"{block}.ffn_gate.weight": (FEED_FORWARD_SIZE, HIDDEN_SIZE),
        f"{block}.ffn_up.weight": (FEED_FORWARD_SIZE, HIDDEN_SIZE),
        f"{block}.ffn_down.weight": (HIDDEN_SIZE, FEED_FORWARD_SIZE),
    }
