"""What an operator may set. Values are frozen; whoever resolves an ``auto`` makes a new object."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from engine.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DrafterName = Literal["auto", "none", "suffix", "model"]
DraftLength = Literal["adaptive", "fixed"]
Quantization = Literal["none", "int8", "int4"]

# A draft longer than this never paid in any measurement; the bound keeps per-position metrics finite.
MAX_SPECULATIVE_TOKENS = 32
# Beyond this a block wastes more than its bookkeeping saves.
MAX_BLOCK_SIZE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine needs to start.

    Attributes:
        model: a Hugging Face folder or name, a ``.gguf`` file, or ``DEFAULT_MODEL``.
        device: ``auto`` takes the first CUDA device if there is one, else the CPU.
        dtype: of weights and KV cache; ``auto`` is bfloat16 where the hardware multiplies it, else float32.
        quantization: type in which weights are kept, on the CPU; the rest is bfloat16 then.
        max_model_len: longest prompt plus output in tokens; None takes the model's own limit.
        block_size: tokens in one KV block; None is 16 on the CPU and 256 on CUDA (what its paged kernels take).
        kv_cache_memory: bytes for the KV pool; None sizes it from the free memory.
        enable_prefix_caching: whether finished blocks are kept and shared between equal prefixes.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most rows in one target forward (prefill chunks, decode and verify rows together).
        max_num_waiting: most requests in flight beyond ``max_num_seqs``; one more is refused.
        drafter: who proposes drafts; ``auto`` is the best of all there are, ``none`` is plain decoding.
        draft_model: the model of the drafter ``model``: a folder or name as for ``model``, with the same vocabulary.
        shared_suffix_tokens: tokens of finished outputs that the drafter ``suffix`` keeps, for requests with the same
            ``cache_salt``; 0 keeps none.
        num_speculative_tokens: longest draft of a request that does not say otherwise.
        draft_length: ``adaptive`` verifies of each draft what is worth its rows, ``fixed`` all of it.
        itl_slo_ms: milliseconds between two tokens that adaptive drafts must not exceed; None is no target.
        trace: a file into which every step is written, for ``draftahead inspect``.
        num_threads: CPU threads for the forward, at most one for every core this process may use; None is what a
            trial at the start finds fastest.
        enforce_eager: run the library's own code in every step: capture no graphs on CUDA, record no layers on the CPU.
        cache_dir: where converted models are kept.
    """

    model: str = DEFAULT_MODEL
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization = "none"
    max_model_len: int | None = None
    block_size: int | None = None
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_num_waiting: int = 1024
    drafter: DrafterName = "auto"
    draft_model: str | None = None
    shared_suffix_tokens: int = 0
    num_speculative_tokens: int = 8
    draft_length: DraftLength = "adaptive"
    itl_slo_ms: float | None = None
    trace: Path | None = None
    num_threads: int | None = None
    enforce_eager: bool = False
    cache_dir: Path = Path("~/.cache/draftahead")

    @property
    def itl_slo(self) -> float | None:
        """``itl_slo_ms`` in seconds."""
        return None if self.itl_slo_ms is None else self.itl_slo_ms / 1000

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_at_least(self, "max_model_len", 2)
        _check_at_least(self, "block_size", 1)
        _check_at_most(self, "block_size", MAX_BLOCK_SIZE)
        _check_at_least(self, "kv_cache_memory", 1)
        _check_at_least(self, "max_num_seqs", 1)
        _check_at_least(self, "max_num_waiting", 0)
        _check_at_least(self, "num_threads", 1)
        _check_at_most(self, "num_threads", len(os.sched_getaffinity(0)))
        _check_at_least(self, "max_num_batched_tokens", self.max_num_seqs)
        _check_at_least(self, "shared_suffix_tokens", 0)
        _check_drafter(self)
        if not 1 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ConfigError(
                f"num_speculative_tokens must lie in 1..{MAX_SPECULATIVE_TOKENS}, "
                f"not {self.num_speculative_tokens} (drafter 'none' switches speculation off)"
            )


def _check_drafter(config: EngineConfig) -> None:
    if config.drafter == "model" and not config.draft_model:
        raise ConfigError("drafter is 'model', but no draft_model is named")
    if config.draft_model and config.drafter not in ("auto", "model"):
        raise ConfigError(f"draft_model is for the drafters 'auto' and 'model', but drafter is {config.drafter!r}")
    if config.shared_suffix_tokens and config.drafter not in ("auto", "suffix"):
        raise ConfigError(
            f"shared_suffix_tokens is for the drafters 'auto' and 'suffix', but drafter is {config.drafter!r}"
        )
    if config.itl_slo_ms is not None and not 0 < config.itl_slo_ms < float("inf"):
        raise ConfigError(f"itl_slo_ms must be a number above 0, not {config.itl_slo_ms}")
    if config.trace is not None and not os.access(config.trace.parent, os.W_OK):
        raise ConfigError(f"trace {config.trace} cannot be written: no such folder, or it may not be written to")
    if config.itl_slo_ms is not None and config.draft_length == "fixed":
        raise ConfigError("itl_slo_ms needs adaptive draft lengths, but draft_length is 'fixed'")


def _check_choices(config: EngineConfig) -> None:
    hints = get_type_hints(EngineConfig)
    for field in fields(EngineConfig):
        choices = get_args(hints[field.name])
        value = getattr(config, field.name)
        if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
            raise ConfigError(f"{field.name} must be one of {', '.join(choices)}, not {value!r}")


def _check_at_most(config: EngineConfig, name: str, most: int) -> None:
    value = getattr(config, name)
    if value is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, not {value}")


def _check_at_least(config: EngineConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    if value is not None and value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
