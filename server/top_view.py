"""The figures of a server on a terminal. Knows rich; asks nobody for anything."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from server.top_figures import Figures

_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING = "-"
_BAR_WIDTH = 30
_PHASE_STYLES = {"schedule": "yellow", "propose": "cyan", "forward": "blue", "verify": "magenta", "commit": "green"}


def draw(figures: Figures, url: str, rates: Sequence[float], note: str = "") -> RenderableType:
    """The whole view.

    Args:
        rates: tokens a second, the newest last.
        note: what is wrong, if anything is.
    """
    parts: list[RenderableType] = [_head(figures, url), Text(note, style="bold red"), _figures(figures, rates)]
    if figures.phase_shares:
        parts += [Text(), _phases(figures)]
    if figures.drafters:
        parts += [Text(), _drafters(figures)]
    return Group(*parts)


def sparkline(values: Sequence[float]) -> str:
    """A character for each value, the highest of them full."""
    top = max(values, default=0.0)
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] if top else _BLOCKS[0] for value in values)


def bar(share: float, width: int = _BAR_WIDTH) -> Text:
    """A share of 0 to 1 as a line that can be read without colours too."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * full, "green"), ("┄" * (width - full), "bright_black"))


def _head(figures: Figures, url: str) -> Text:
    about = figures.about
    model = ", ".join(filter(None, (about.get("device"), about.get("dtype"))))
    drafts = f"drafter {about.get('drafter', _NOTHING)}, up to {about.get('num_speculative_tokens', _NOTHING)}"
    state = ("up", "bold green") if figures.is_up else ("takes no requests", "bold red")
    return Text.assemble((about.get("model_name", url), "bold"), f"  {model}  {drafts}  {url}  ", state)


def _figures(figures: Figures, rates: Sequence[float]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("tokens a second", f"{figures.tokens_per_second:.1f}", Text(sparkline(rates), style="green"))
    table.add_row("prompt tokens a second", f"{figures.prompt_tokens_per_second:.1f}")
    table.add_row("acceptance rate", _percent(figures.acceptance_rate), bar(figures.acceptance_rate or 0.0))
    table.add_row("mean acceptance length", _number(figures.mean_acceptance_length))
    table.add_row("output from drafts", _percent(figures.share_from_drafts), bar(figures.share_from_drafts or 0.0))
    table.add_row("speed-up, as measured", _number(figures.speedup), _error(figures.speedup_error))
    table.add_row("running, waiting", f"{figures.num_running}, {figures.num_waiting}")
    table.add_row("KV cache in use", _percent(figures.kv_cache_usage), bar(figures.kv_cache_usage))
    table.add_row("steps a second", f"{figures.steps_per_second:.1f}", _step(figures.step_seconds))
    return table


def _phases(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(no_wrap=True)
    line, names = Text(), Text()
    for phase, share in figures.phase_shares.items():
        style = _PHASE_STYLES[phase]
        line.append("━" * round(share * 2 * _BAR_WIDTH), style)
        names.append(f"{phase} {share:.0%}  ", style)
    table.add_row("time in steps", line)
    table.add_row("", names)
    return table


def _drafters(figures: Figures) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    table.add_column("drafter")
    for heading in ("proposed a second", "acceptance rate", "mean acceptance length"):
        table.add_column(heading, justify="right")
    for drafter in figures.drafters:
        table.add_row(
            drafter.name,
            f"{drafter.proposed_per_second:.1f}",
            _percent(drafter.acceptance_rate),
            _number(drafter.mean_acceptance_length),
        )
    return table


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _error(value: float | None) -> str:
    return "" if value is None else f"± {value:.2f}"


def _step(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f} ms each"
