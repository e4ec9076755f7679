"""The words about the engine, and the settings they make.

A flag is named after its setting and its default is the setting's own. Refuses to know which command they belong to,
and imports nothing slow, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from engine.config import Device, DrafterName, DraftLength, Dtype, EngineConfig, Quantization
from engine.errors import ConfigError
from engine.workloads import Workload

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def add_engine_arguments(parser: argparse.ArgumentParser, default: EngineConfig) -> argparse._ArgumentGroup:
    """The model and everything about its engine; gives the group, to which a command may add."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=default.model,
        help="a Hugging Face folder or name, or a .gguf file",
    )
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--workload",
        choices=get_args(Workload),
        help="settings that go together, in the place of the defaults; those given by name stand",
    )
    for field, choices, text in _CHOICES:
        group.add_argument(_flag(field), choices=choices, default=getattr(default, field), help=text)
    for field, text in _NUMBERS:
        group.add_argument(_flag(field), type=int, metavar="N", default=getattr(default, field), help=text)
    _add_drafting_arguments(group, default)
    _add_running_arguments(group, default)
    return group


def _add_running_arguments(group: argparse._ArgumentGroup, default: EngineConfig) -> None:
    group.add_argument(
        "--threads",
        dest="num_threads",
        type=int,
        metavar="N",
        help="CPU threads for the model (default: what a trial at the start finds fastest)",
    )
    group.add_argument(
        "--enforce-eager",
        action="store_true",
        help="run the model's own code in every step: no graphs on CUDA, no recorded layers on the CPU",
    )
    group.add_argument(
        "--kv-cache-memory",
        type=parse_size,
        metavar="SIZE",
        help="memory for the key-value cache, such as 512M or 2G (default: a share of what is free)",
    )
    group.add_argument(
        "--cache-dir", type=Path, metavar="DIR", default=default.cache_dir, help="where converted models are kept"
    )


def _add_drafting_arguments(group: argparse._ArgumentGroup, default: EngineConfig) -> None:
    group.add_argument("--draft-model", metavar="NAME", help="a smaller model with the same vocabulary that drafts")
    group.add_argument(
        "--itl-slo-ms",
        type=float,
        metavar="MS",
        default=default.itl_slo_ms,
        help="milliseconds between two tokens that drafts must not exceed (default: no target)",
    )
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write every step to this file, for draftahead inspect; what was in it is lost",
    )


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Raises ``ConfigError`` for values that are out of bounds or do not go together."""
    try:
        return EngineConfig(**{field.name: getattr(arguments, field.name) for field in fields(EngineConfig)})
    except ConfigError as error:
        if arguments.workload is None:
            raise
        raise ConfigError(f"{error} (the workload {arguments.workload!r} sets what is not given by name)") from error


def parse_size(text: str) -> int:
    """Bytes from ``512M``, ``1.5GiB`` or a plain number; the letters are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))


_CHOICES = (
    ("device", get_args(Device), "where to run"),
    ("dtype", get_args(Dtype), "number type of the weights and the key-value cache"),
    ("quantization", get_args(Quantization), "type in which weights are kept, on the CPU"),
    ("drafter", get_args(DrafterName), "who proposes drafts: auto takes the best of all, none is plain decoding"),
    ("draft_length", get_args(DraftLength), "whether to verify of each draft what is worth its time, or all of it"),
)
_NUMBERS = (
    ("shared_suffix_tokens", "tokens of finished outputs kept to draft from, by cache_salt; 0 keeps none"),
    ("num_speculative_tokens", "longest draft of a request that does not say otherwise"),
    ("max_model_len", "longest prompt plus output in tokens (default: the model's own limit)"),
    ("block_size", "tokens in one block of the key-value cache (default: what suits the device)"),
    ("max_num_seqs", "most sequences in one step"),
    ("max_num_batched_tokens", "most rows in one forward of the model"),
    ("max_num_waiting", "most requests in flight beyond those in one step; one more is refused"),
)


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
