"""Tokenizers of both kinds, made once."""

from __future__ import annotations

from functools import cache

from transformers import AutoTokenizer

from engine.config import EngineConfig
from engine.model.default_model import find_default_model
from engine.model.gguf_conversion import convert_gguf
from engine.tokenizer import Tokenizer
from tests import vocabularies


@cache
def default_tokenizer() -> Tokenizer:
    folder = convert_gguf(find_default_model(), EngineConfig().cache_dir, lambda stage, fraction: None)
    return Tokenizer(AutoTokenizer.from_pretrained(folder))


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(vocabularies.byte_level())


@cache
def byte_fallback() -> Tokenizer:
    return Tokenizer(vocabularies.byte_fallback())
