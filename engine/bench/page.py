"""A benchmark result as one HTML file that needs nothing else. Knows what stands on the page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from engine.bench.context import BenchContext
from engine.bench.document import write_text
from engine.bench.plots import plots
from engine.bench.result import BenchResult
from engine.bench.target import ServerInfo
from engine.bench.wording import (
    columns,
    conditions,
    identity_cell,
    notes,
    speedup_cells,
    step_splits,
    verdict,
)


def write_html(result: BenchResult, context: BenchContext, path: Path) -> None:
    """Write the report to ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_text(render_page(result, context), path, option="html")


def render_page(result: BenchResult, context: BenchContext) -> str:
    """The report as text."""
    environment = Environment(
        loader=PackageLoader("engine.bench", "data"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        name=result.info.model if isinstance(result.info, ServerInfo) else result.info.name,
        what="text" if isinstance(result.info, ServerInfo) else "tokens",
        context=context,
        conditions=conditions(result, context),
        verdict=verdict(result),
        notes=notes(result),
        loads=result.loads,
        columns=columns,
        plots=plots,
        step_splits=step_splits,
        speedup_cells=speedup_cells,
        identity_cell=identity_cell,
    )
