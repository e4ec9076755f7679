"""On what machine and with which versions a benchmark ran."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from engine.bench.target import ServerInfo
from engine.types import ModelInfo
from engine.version import program_version


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext:
    """What a reader needs to judge or repeat a run.

    Attributes:
        command: the command line.
        started_at: ISO 8601, with the offset from UTC.
        cpu: model name, of the machine that measured.
        num_cores: cores this process may use.
        accelerator: name of the CUDA device of an engine in this process; None on the CPU.
        versions: of Python and the packages that make the numbers.
    """

    command: str
    started_at: str
    cpu: str
    num_cores: int
    accelerator: str | None
    versions: dict[str, str]


def describe_run(info: ModelInfo | ServerInfo, *, command: str, started_at: datetime) -> BenchContext:
    """The context of a run on this machine; ``started_at`` must know its time zone."""
    packages = ("httpx",) if isinstance(info, ServerInfo) else ("torch", "transformers")
    return BenchContext(
        command=command,
        started_at=started_at.isoformat(timespec="seconds"),
        cpu=_cpu_model(Path("/proc/cpuinfo")),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        accelerator=None if isinstance(info, ServerInfo) else _accelerator(info.device),
        versions={
            "python": platform.python_version(),
            "draftahead": program_version(),
            **{name: version(name) for name in packages},
        },
    )


def _cpu_model(cpuinfo: Path) -> str:
    """Linux hides the model from ``platform``; elsewhere that is all there is."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _accelerator(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch  # only where there is a device to ask: the report itself needs no torch

    return torch.cuda.get_device_name(device)
