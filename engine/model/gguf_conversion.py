"""A GGUF file, once converted, is a Hugging Face folder in the user's cache.

Knows what the conversion gets wrong and how to mend it. Refuses to know devices, types, engines: the folder
holds the exact float32 values of the file, and whoever loads it rounds them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from filelock import FileLock
from gguf import GGUFReader
from safetensors import SafetensorError
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from engine.errors import ConfigError
from engine.model.memory import available_bytes
from engine.types import Progress

logger = logging.getLogger(__name__)

# Part of every cache key: a higher number makes all folders of older conversions stale.
_VERSION = 1
# The reader holds its own copy of the weights while the model takes them over.
_COPIES_IN_MEMORY = 2


def convert_gguf(path: Path, cache_dir: Path, progress: Progress) -> Path:
    """The folder of a converted GGUF file; converts it if no earlier start has done so.

    Two processes may ask at once: one converts, the other waits. A conversion that is cut off leaves nothing
    that a later start would take for whole.

    Args:
        progress: told the stage and the fraction done, 0..1.

    Raises:
        ConfigError: the file is not a GGUF model that can be converted, or memory or disk is too small.
    """
    folder = cache_dir.expanduser() / _folder_name(path)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _convert_into(folder, path, progress)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write the converted model to {folder}: {error}") from error
    return folder


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Keep the libraries' progress bars off the terminal."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _folder_name(path: Path) -> str:
    facts = path.stat()
    key = hashlib.sha256(f"{path.name}:{facts.st_size}:{facts.st_mtime_ns}:{_VERSION}".encode()).hexdigest()
    return f"{path.stem}-{key[:16]}"


def _convert_into(folder: Path, path: Path, progress: Progress) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # the lock is ours, so whoever began it is gone
    try:
        _write(partial, path, progress)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(partial: Path, path: Path, progress: Progress) -> None:
    progress(f"reading {path.name}", 0.0)
    with _readable(path):
        reader = GGUFReader(path)
        num_weights = sum(int(tensor.n_elements) for tensor in reader.tensors)
        pre_tokenizer = _pre_tokenizer_name(reader)
        num_tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    _check_space(path, partial.parent, num_weights * torch.float32.itemsize)
    progress("converting the tokenizer", 0.1)
    with _readable(path), without_bars():
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    _mend(tokenizer, pre_tokenizer, path)
    progress("unpacking the weights", 0.3)
    with _readable(path), without_bars():
        model = AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
    progress("writing the converted model", 0.9)
    with without_bars():
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
    _drop_invented_tokens(partial / "tokenizer.json", num_tokens)
    progress("converted", 1.0)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    # The readers raise whatever they stumble over in a malformed file, from struct.error to MemoryError.
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ConfigError(f"{path} cannot be read as a GGUF model, it may be damaged or cut off: {reason}") from error


def _check_space(path: Path, folder: Path, num_bytes: int) -> None:
    memory, disk = available_bytes(torch.device("cpu")), shutil.disk_usage(folder).free
    for name, free, needed in (
        ("memory", memory, _COPIES_IN_MEMORY * num_bytes),
        (f"disk space in {folder}", disk, num_bytes),
    ):
        if free < needed:
            raise ConfigError(
                f"converting {path.name} takes {needed / 2**20:.0f} MiB of {name}, "
                f"but only {free / 2**20:.0f} MiB are free"
            )


def _pre_tokenizer_name(reader: GGUFReader) -> str | None:
    """``tokenizer.ggml.pre`` of a byte-level vocabulary; the other kinds have no use for it."""
    model, pre = (reader.get_field(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model is None or model.contents() != "gpt2":
        return None
    return "default" if pre is None else str(pre.contents())


def _mend(tokenizer: Any, pre_tokenizer: str | None, path: Path) -> None:
    if pre_tokenizer is None:
        return
    mend = _MENDS.get(pre_tokenizer)
    if mend is None:
        logger.warning(
            "%s names the pre-tokenizer %r, which is unchecked: some text may get the wrong tokens",
            path.name,
            pre_tokenizer,
        )
    else:
        mend(tokenizer.backend_tokenizer)


def _drop_invented_tokens(path: Path, num_tokens: int) -> None:
    """The conversion adds an end token of its own to a vocabulary without one; the model does not know its id."""
    state = json.loads(path.read_text("utf-8"))
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < num_tokens]
    path.write_text(json.dumps(state, ensure_ascii=False), "utf-8")


def _keep(backend: Any) -> None:
    """Nothing to mend."""


def _split_digits(backend: Any) -> None:
    """The conversion forgets that every digit is a word of its own, which also ends the blank before it."""
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _compose_characters(backend: Any) -> None:
    """The conversion forgets the normaliser."""
    backend.normalizer = normalizers.NFC()


def _take_whole_words(backend: Any) -> None:
    """The conversion forgets that a word in the vocabulary is one token even where no merge leads to it."""
    backend.model.ignore_merges = True


_MENDS: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {
        "gpt-2": _keep,
        "llama-bpe": _take_whole_words,
        "qwen2": _compose_characters,
        "smollm": _split_digits,
        "starcoder": _split_digits,
    }
)
