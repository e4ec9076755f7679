"""Small tokenizers of the kinds that models have, made in code."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "The three primary colours are red, yellow and blue.\n\nNaïve café, naïveté, façade; 12345 and 67890.\n"
    "Grüße aus Köln — 日本語のテキスト, 日本, 本日。 🙂🙂🎉 the end of the beginning of the end\n\n"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def byte_level(
    *, vocab_size: int = 400, chat_template: str | None = CHAT_TEMPLATE, more_special_tokens: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """Byte pairs over all 256 bytes; id 0 is the special end token ``<|end|>``, and the others follow."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>", *more_special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=chat_template)


def with_begin_and_gap(*, chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """As ``byte_level``, with a begin token in front of a prompt and the tokens for text that is to be inserted."""
    begin = "<|begin|>"
    made = byte_level(
        chat_template=chat_template,
        more_special_tokens=(begin, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    )
    made.bos_token = begin
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, made.bos_token_id)]
    )
    return made


def byte_fallback(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Words with their space as ``▁``, unknown characters as bytes, a begin token in front: SentencePiece's way."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,é"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("n", "d"), ("▁a", "nd"), ("▁", "▁")]
    words = [left + right for left, right in merges]
    vocab = {piece: index for index, piece in enumerate([*pieces, *letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )


def word_pieces() -> PreTrainedTokenizerFast:
    """A kind whose text changes with what follows."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def merges_of(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The merges of a byte-pair tokenizer, best first, each as two pieces with a space between them."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return [" ".join(pair) for pair in model["merges"]]
