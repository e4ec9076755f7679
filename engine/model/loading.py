"""From a model's name to a model in memory, or to one sentence that says why not.

Knows where models lie, what they weigh and which type suits the hardware. Refuses to know how a model is run,
and leaves its code as the library has it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from engine.config import DEFAULT_MODEL, EngineConfig
from engine.errors import ConfigError
from engine.model.default_model import find_default_model
from engine.model.gguf_conversion import convert_gguf, without_bars
from engine.model.memory import available_bytes, out_of_memory_explained
from engine.model.suitability import check_suitable
from engine.types import Progress

_WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
# Only what is read here: other formats of the same weights can be as large again.
_FILES_OF_A_MODEL = ["*.json", "*.jinja", "*.model", "*.txt", "model*.safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        model: in evaluation mode, on ``device``, in ``dtype``, or in float32 if it is yet to be quantised.
        tokenizer: the model's own.
        name: what the model is called if nobody says otherwise.
        eos_token_ids: tokens that end an output.
        max_model_len: longest prompt plus output in tokens.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    name: str
    device: torch.device
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    max_model_len: int


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Find the configured model, check that it can run here, and load it.

    Args:
        progress: told the stage and the fraction done, 0..1; each stage that takes long counts from 0.

    Raises:
        ConfigError: there is no such model, it is not supported, it is damaged, or it does not fit.
    """
    folder, name = _find(config, progress)
    with _explained(f"cannot read the configuration of the model {name}"):
        model_config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    check_suitable(model_config, name)
    max_model_len = _resolve_max_model_len(config, model_config)
    device = resolve_device(config)
    dtype = resolve_dtype(config, device)
    # Quantising starts from the numbers of the file, not from rounded ones.
    stored_dtype = dtype if config.quantization == "none" else torch.float32
    _check_memory(name, folder, device, stored_dtype, model_config)
    progress(f"loading {name}", 0.0)
    tokenizer = _load_tokenizer(folder, name, model_config)
    progress(f"loading {name}", 0.3)
    model = _load_weights(folder, name, device, stored_dtype)
    progress(f"loading {name}", 1.0)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        device=device,
        dtype=dtype,
        eos_token_ids=_eos_token_ids(model),
        max_model_len=max_model_len,
    )


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn whatever the library raises on a bad folder into one line that begins with ``what``."""
    try:
        with without_bars():
            yield
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"{what}: {reason}") from error


def _find(config: EngineConfig, progress: Progress) -> tuple[Path, str]:
    """The folder that holds the model, and the model's name."""
    if config.model == DEFAULT_MODEL:
        return convert_gguf(find_default_model(), config.cache_dir, progress), DEFAULT_MODEL
    path = Path(config.model).expanduser()
    if path.is_dir():
        return path, path.resolve().name
    is_gguf = path.suffix == ".gguf"
    if path.is_file() and not is_gguf:
        raise ConfigError(f"the model {config.model} is a file, but neither a folder nor a .gguf file")
    if is_gguf and path.is_file():
        return convert_gguf(path, config.cache_dir, progress), path.stem
    if is_gguf or config.model.startswith(("/", ".", "~")) or config.model.count("/") > 1:
        raise ConfigError(f"there is no model at {config.model}: no such {'file' if is_gguf else 'folder'}")
    return _download(config.model, progress), config.model


def _download(name: str, progress: Progress) -> Path:
    progress(f"looking for {name}", 0.0)
    try:
        with without_bars():
            return Path(snapshot_download(name, allow_patterns=_FILES_OF_A_MODEL))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"there is no model {name!r}: no such folder, and neither the Hugging Face cache nor the hub "
            f"gives a model of that name ({reason})"
        ) from error


def _resolve_max_model_len(config: EngineConfig, model_config: PretrainedConfig) -> int:
    limit = getattr(model_config, "max_position_embeddings", None)
    if config.max_model_len is None:
        if limit is None:
            raise ConfigError("the model names no longest length; set max_model_len")
        return int(limit)
    if limit is not None and config.max_model_len > limit:
        raise ConfigError(f"max_model_len is {config.max_model_len}, but the model was made for {limit} tokens at most")
    return config.max_model_len


def resolve_device(config: EngineConfig) -> torch.device:
    """The configured device, or for ``auto`` the best there is. Raises ``ConfigError`` if it is not there."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError("device is cuda, but there is no CUDA device that torch can use")
    return torch.device("cuda", 0) if has_cuda and config.device != "cpu" else torch.device("cpu")


def resolve_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """The configured type of weights, or for ``auto`` the one that suits the hardware."""
    if config.quantization != "none":
        return _dtype_beside_quantised(config, device)
    if config.dtype != "auto":
        return getattr(torch, config.dtype)  # type: ignore[no-any-return]
    return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32


def _dtype_beside_quantised(config: EngineConfig, device: torch.device) -> torch.dtype:
    if device.type != "cpu":
        raise ConfigError(f"quantization is {config.quantization}, which is for the CPU, but device is {device}")
    if config.dtype not in ("auto", "bfloat16"):
        raise ConfigError(
            f"quantization is {config.quantization}, which goes with bfloat16, but dtype is {config.dtype}"
        )
    return torch.bfloat16


def _multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the hardware has instructions for it; without them bfloat16 is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a torch without oneDNN
        return False


def _check_memory(
    name: str, folder: Path, device: torch.device, dtype: torch.dtype, model_config: PretrainedConfig
) -> None:
    with _explained(f"cannot read the weights of the model {name}"):
        num_weights = sum(_num_weights(path) for path in _weight_files(folder))
    text_config = model_config.get_text_config()
    if device.type == "cpu" and text_config.tie_word_embeddings:
        num_weights += text_config.vocab_size * text_config.hidden_size  # the output layer is packed for itself
    needed = num_weights * dtype.itemsize
    available = available_bytes(device)
    if needed > available:
        raise ConfigError(
            f"not enough memory on {device} for the weights of {name}: "
            f"they take {needed / 2**20:.0f} MiB, but only {available / 2**20:.0f} MiB are available"
        )


def num_bytes(model: PreTrainedModel) -> int:
    """Memory that the weights take, in whatever form."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def vocab_size(loaded: LoadedModel) -> int:
    """Tokens that the model itself knows; its tokenizer may have fewer."""
    return int(loaded.model.config.get_text_config().vocab_size)


def _weight_files(folder: Path) -> list[Path]:
    if (index := folder / _WEIGHTS_INDEX).is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if (weights := folder / _WEIGHTS).is_file():
        return [weights]
    raise ConfigError(f"{folder} holds no {_WEIGHTS}; other formats of weights are not read")


def _num_weights(path: Path) -> int:
    with safe_open(path, framework="pt") as tensors:
        return sum(prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118


def _load_tokenizer(folder: Path, name: str, model_config: PretrainedConfig) -> PreTrainedTokenizerFast:
    with _explained(f"cannot load the tokenizer of the model {name}"):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ConfigError(f"the model {name} has no tokenizer.json, and other tokenizers are not read")
    if len(tokenizer) > model_config.vocab_size:
        raise ConfigError(
            f"the tokenizer of the model {name} has {len(tokenizer)} tokens, "
            f"but the model itself knows {model_config.vocab_size}"
        )
    return tokenizer


def _load_weights(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    with _explained(f"cannot load the model {name}"), out_of_memory_explained(f"the weights of {name}"):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False
        )
        model = model.to(device).eval()
    # The library would fill these with noise and go on.
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(f"the model {name} lacks {len(missing)} of its weights, such as {missing[0]}")
    for key, found, expected in sorted(report["mismatched_keys"]):
        raise ConfigError(f"the weight {key} of the model {name} has the shape {found}, but its config says {expected}")
    return model


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    found: set[int] = set()
    for source in (model.generation_config, model.config):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(token_id for token_id in found if 0 <= token_id < model.config.get_text_config().vocab_size)
