"""What an operator sees on the terminal while a server starts.

Knows how facts are laid out. Refuses to find them out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from engine.types import ModelInfo


@contextmanager
def show_loading() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, a line for each stage elsewhere; gives what to call with stage and fraction."""
    # The stream by name: whoever silences libraries by swapping sys.stderr must not silence this.
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _stage_printer(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, redirect_stderr=False) as bars:
        bar = bars.add_task("", total=1.0)
        yield lambda stage, fraction: bars.update(bar, description=stage, completed=fraction)


def print_card(info: ModelInfo, url: str) -> None:
    """The facts of a server that has just begun to serve, and a command that tries it."""
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(info, url):
        table.add_row(Text(name, style="bold"), Text(value))
    console = Console()
    console.print(Panel(table, title="Draftahead", title_align="left", expand=False))
    # Outside the frame and in one piece, so that it can be copied.
    console.print(f"Try it:\n{_curl(info, url)}\n", markup=False, highlight=False, soft_wrap=True)


def _stage_printer(console: Console) -> Callable[[str, float], None]:
    shown: list[str] = []

    def show(stage: str, fraction: float) -> None:
        if stage not in shown:
            shown.append(stage)
            console.print(stage, markup=False, highlight=False, soft_wrap=True)

    return show


def _facts(info: ModelInfo, url: str) -> list[tuple[str, str]]:
    drafter = info.drafter
    if info.draft_model:
        drafter = f"{drafter} {info.draft_model} ({_mebibytes(info.draft_weights_bytes)})"
    if info.num_speculative_tokens:
        drafter = f"{drafter}, up to {info.num_speculative_tokens} tokens a draft"
    quantised = "" if info.quantization == "none" else f", {info.quantization}"
    return [
        ("model", info.name),
        ("device", f"{info.device}, {info.dtype}"),
        ("weights", f"{_mebibytes(info.weights_bytes)}{quantised}"),
        ("KV cache", f"{_mebibytes(info.kv_cache_bytes)} for {info.num_kv_tokens:,} tokens"),
        ("context", f"{info.max_model_len:,} tokens"),
        ("drafter", drafter),
        ("threads", str(info.num_threads)),
        ("URL", url),
    ]


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def _curl(info: ModelInfo, url: str) -> str:
    body = json.dumps({"model": info.name, "prompt": "The three primary colours are", "max_tokens": 32})
    # A name may hold an apostrophe, which would end the shell's quotes.
    quoted = body.replace("'", "'\\''")
    return f"curl {url}/v1/completions -H 'content-type: application/json' -d '{quoted}'"
