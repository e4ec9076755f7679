"""Shows a benchmark result: a table for people, a JSON document for later comparison.

Knows how figures are written and which machine this is. Refuses to know how they came about.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from engine.bench.result import BenchResult, ModeResult, TaskResult
from engine.bench.run import BenchProgress
from engine.errors import ConfigError
from engine.types import ModelInfo
from engine.version import program_version


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchContext:
    """What a reader needs to judge or repeat a run.

    Attributes:
        command: the command line.
        started_at: ISO 8601, with the offset from UTC.
        cpu: model name.
        num_cores: cores this process may use.
        accelerator: name of the CUDA device; None on the CPU.
        versions: of Python and the packages that make the numbers.
    """

    command: str
    started_at: str
    cpu: str
    num_cores: int
    accelerator: str | None
    versions: dict[str, str]


def describe_run(info: ModelInfo, *, command: str, started_at: datetime) -> BenchContext:
    """The context of a run on this machine; ``started_at`` must know its time zone."""
    return BenchContext(
        command=command,
        started_at=started_at.isoformat(timespec="seconds"),
        cpu=_cpu_model(Path("/proc/cpuinfo")),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        accelerator=_accelerator(info.device),
        versions={
            "python": platform.python_version(),
            "draftahead": program_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        },
    )


@contextmanager
def show_progress(console: Console) -> Iterator[Callable[[BenchProgress], None]]:
    """A progress bar on ``console``, if that is a terminal; gives the callback that ``run_bench`` wants."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # drawing takes time from the cores that are being measured
    progress = Progress(
        *columns, console=console, transient=True, refresh_per_second=1, disable=not console.is_terminal
    )
    with progress:
        bar = progress.add_task("", total=None)

        def on_progress(state: BenchProgress) -> None:
            progress.update(bar, completed=state.num_done, total=state.num_total, description=state.task)

        yield on_progress


def print_report(result: BenchResult, context: BenchContext, console: Console) -> None:
    """The table, with the conditions above it and the verdict on exactness below it."""
    info, options = result.info, result.options
    hardware = f"{context.accelerator}, host {context.cpu}" if context.accelerator else context.cpu
    sampling = "greedy" if options.temperature == 0 else f"T={options.temperature:g} seed={options.seed}"
    lines = [
        f"{info.name} ({info.dtype}), drafter {info.drafter}, up to {info.num_speculative_tokens} speculative tokens",
        f"{hardware}, cores {context.num_cores}, threads {info.num_threads}, torch {context.versions['torch']}",
        f"{sampling}, max_tokens {options.max_tokens}, concurrency {options.concurrency}, "
        f"repeats {options.repeats}, chat template {'yes' if result.uses_chat_template else 'no'}",
    ]
    console.print("\n".join(lines), markup=False, highlight=False)
    console.print(_table(result))
    console.print(_exactness(result.overall), markup=False, highlight=False)


def write_json(result: BenchResult, context: BenchContext, path: Path) -> None:
    """Write the whole result, with its context, to ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    document = {
        "context": asdict(context),
        "model": asdict(result.info),
        "options": asdict(result.options),
        "uses_chat_template": result.uses_chat_template,
        "matched_plain_run": "'plain' is the same prompts on the same engine in the same run, alternating",
        "units": "times in seconds, lengths in tokens",
        "tasks": [asdict(row) for row in result.tasks],
        "overall": asdict(result.overall),
    }
    try:
        path.expanduser().write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"json: cannot write {path}: {error}") from error


def _table(result: BenchResult) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=0,
        caption="Each task: plain above, speculative below, under the speed-up its range.\n"
        "TTFT: time to first token, median. ITL: inter-token latency, percentiles.",
        caption_justify="left",
    )
    table.add_column("task", no_wrap=True)
    for heading in (
        "tokens\n/s",
        "TTFT\nms",
        "ITL50\nms",
        "ITL99\nms",
        "tokens\n/step",
        "accept\nlength",
        "accept\n%",
        "speed-up",
        "same\ntokens",
    ):
        table.add_column(heading, justify="right", overflow="fold")  # a figure may break, never lose a digit
    for row in result.tasks:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(result.overall), style="bold")
    return table


def _cells(row: TaskResult) -> list[str]:
    """One cell a column, each of two lines."""
    speedup = row.speedup
    spread = f"{speedup.lowest:.2f}-{speedup.highest:.2f}" if len(speedup.per_repeat) > 1 else ""
    modes = zip(_mode_cells(row.plain), _mode_cells(row.speculative), strict=True)
    return [
        f"{row.task}\n  speculative",
        *("\n".join(pair) for pair in modes),
        f"{speedup.median:.2f}\n{spread}",
        f"{row.num_identical}/{row.num_prompts}",
    ]


def _mode_cells(mode: ModeResult) -> list[str]:
    return [
        f"{mode.tokens_per_second:.1f}",
        _milliseconds(mode.ttft_p50),
        _milliseconds(mode.itl_p50),
        _milliseconds(mode.itl_p99),
        f"{mode.tokens_per_step:.2f}",
        # without a draft these two would be made-up figures
        f"{mode.mean_acceptance_length:.2f}" if mode.num_drafts else "-",
        f"{mode.acceptance_rate * 100:.0f}" if mode.num_draft_tokens else "-",
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _exactness(overall: TaskResult) -> str:
    if not overall.differing_prompt_ids:
        return f"All {overall.num_prompts} prompts gave the same tokens with and without speculation."
    return (
        f"NOT EXACT: {len(overall.differing_prompt_ids)} of {overall.num_prompts} prompts gave other tokens "
        f"in some run: {', '.join(map(str, overall.differing_prompt_ids))}"
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
