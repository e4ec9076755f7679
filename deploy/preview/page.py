"""One page with the panels of a dashboard on Grafana's grid."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from deploy.preview.drawing import COLOURS, Named, bars, heatmap, time_series
from deploy.preview.scale import shown
from deploy.preview.source import Prometheus, Series

_COLUMN, _LINE, _GAP = 53, 32, 8
_HEADING = 30
_LEGEND = 20
_VARIABLES = {"$__rate_interval": "20s", "$__interval": "5s", "$job": ".*", "$instance": ".*", "$model_name": ".*"}

_STYLE = """
body { margin: 0; padding: 16px; background: #111217; color: #d8d9da;
  font: 13px Inter, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 18px; font-weight: 500; margin: 2px 4px 14px; }
#grid { position: relative; }
section { position: absolute; box-sizing: border-box; background: #181b1f;
  border: 1px solid #26282e; border-radius: 4px; }
section h2 { font-size: 13px; font-weight: 500; margin: 8px 10px 0; }
.row { position: absolute; font-weight: 500; padding: 6px 4px; }
.stat { font-size: 30px; font-weight: 500; text-align: center; color: #73bf69; margin-top: 14px; }
.legend { margin: 0 10px; font-size: 11px; color: #a0a3aa; white-space: nowrap; overflow: hidden; }
.legend i { display: inline-block; width: 10px; height: 3px; margin: 0 5px 3px 8px; }
.axis { font-size: 10px; fill: #8e9198; text-anchor: end; }
.bar { font-size: 11px; fill: #d8d9da; }
.grid { stroke: #2a2d33; stroke-width: 1; }
"""


def page(dashboard: dict[str, Any], prometheus: Prometheus) -> str:
    """Self-contained HTML of a dashboard as Grafana loads it."""
    placed = [_placed(panel, prometheus) for panel in dashboard["panels"]]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) * (_LINE + _GAP)
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(dashboard["title"])}</title><style>{_STYLE}</style>'
        f'<h1>{escape(dashboard["title"])}</h1><div id="grid" style="height:{height}px">{"".join(placed)}</div>'
    )


def fill(expr: str) -> str:
    """The query with every variable filled in."""
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def _placed(panel: dict[str, Any], prometheus: Prometheus) -> str:
    at = panel["gridPos"]
    left, top = at["x"] * _COLUMN, at["y"] * (_LINE + _GAP)
    width, height = at["w"] * _COLUMN - _GAP, at["h"] * (_LINE + _GAP) - _GAP
    place = f"left:{left}px;top:{top}px;width:{width}px;height:{height}px"
    if panel["type"] == "row":
        return f'<div class="row" style="{place}">{escape(panel["title"])}</div>'
    content = _content(panel, prometheus, width - 4, height - _HEADING)
    return f'<section style="{place}"><h2>{escape(panel["title"])}</h2>{content}</section>'


def _content(panel: dict[str, Any], prometheus: Prometheus, width: int, height: int) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    unit, most = defaults["unit"], defaults.get("max")
    match panel["type"]:
        case "stat":
            values = _named(panel, prometheus, is_now=True)
            return f'<div class="stat">{shown(values[0][1][0], unit) if values else "-"}</div>'
        case "bargauge":
            named = _named(panel, prometheus, is_now=True)
            return bars(
                sorted(named, key=lambda each: _number(each[0])), width=width, height=height, unit=unit, most=most
            )
        case "heatmap":
            return heatmap(_buckets(_series(panel, prometheus)), width=width, height=height)
    named = _named(panel, prometheus)
    is_stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    drawn = time_series(named, width=width, height=height - _LEGEND, unit=unit, is_stacked=is_stacked, most=most)
    names = "".join(
        f'<i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}'
        for number, (name, _) in enumerate(named)
    )
    return f'{drawn}<div class="legend">{names}</div>'


def _named(panel: dict[str, Any], prometheus: Prometheus, *, is_now: bool = False) -> list[Named]:
    ask = prometheus.now if is_now else prometheus.series
    return [
        (_legend(target, series, panel["title"]), series.values)
        for target in panel["targets"]
        for series in ask(fill(target["expr"]))
    ]


def _series(panel: dict[str, Any], prometheus: Prometheus) -> list[Series]:
    return [series for target in panel["targets"] for series in prometheus.series(fill(target["expr"]))]


def _legend(target: dict[str, Any], series: Series, title: str) -> str:
    legend = target.get("legendFormat") or title
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match.group(1), ""), legend)


def _buckets(cumulative: Sequence[Series]) -> list[Named]:
    """Of counts up to each bound, those between it and the one below; empty bounds at the ends are left out."""
    rows: list[Named] = []
    below: list[float] = []
    for series in sorted(cumulative, key=lambda each: _number(each.labels.get("le", ""))):
        below = below or [0.0] * len(series.values)
        rows.append((series.labels.get("le", ""), [max(a - b, 0.0) for a, b in zip(series.values, below, strict=True)]))
        below = series.values
    used = [place for place, (_, values) in enumerate(rows) if any(math.isfinite(each) and each > 0 for each in values)]
    return rows[used[0] : used[-1] + 1] if used else []


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf
