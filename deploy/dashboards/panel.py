"""What a panel is, and how panels become a dashboard that Grafana 10.4 and newer loads. Knows no metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]

GRID_WIDTH = 24
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "heatmap", "bargauge"]
_HEIGHTS: dict[str, int] = {"stat": 4, "timeseries": 8, "heatmap": 8, "bargauge": 8}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; ``legend`` names its series, with ``{{label}}`` for the value of a label."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture.

    Attributes:
        text: what it shows and what to make of it, behind the (i) of the panel.
        unit: Grafana's name of the unit.
        width: columns of 24.
        is_stacked: the series add up to something.
        limits: green below the first, yellow from there, red from the second; or the other way about if they fall.
        most: upper end of the scale.
    """

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    is_stacked: bool = False
    limits: tuple[float, float] | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a common heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page; ``uid`` is its address and never changes."""

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]

    def to_json(self) -> Json:
        """What Grafana loads."""
        return {
            "id": None,
            "uid": self.uid,
            "title": self.title,
            "description": self.text,
            "tags": ["draftahead"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "5s",
            "time": {"from": "now-15m", "to": "now"},
            "timezone": "browser",
            "links": [_link_to_others()],
            "annotations": {"list": [_restarts()]},
            "templating": {"list": _variables()},
            "panels": _lay_out(self.rows),
        }


def _lay_out(rows: Sequence[Row]) -> list[Json]:
    """Rows one below the other, panels from left to right, each on the first line that has room."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(_heading(row.title, len(placed) + 1, y))
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                y, x, height = y + height, 0, 0
            panel_height = _HEIGHTS[panel.kind]
            position = {"x": x, "y": y, "w": panel.width, "h": panel_height}
            placed.append(_panel(panel, len(placed) + 1, position))
            x, height = x + panel.width, max(height, panel_height)
        y += height
    return placed


def _heading(title: str, panel_id: int, y: int) -> Json:
    position = {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1}
    return {"id": panel_id, "type": "row", "title": title, "collapsed": False, "gridPos": position, "panels": []}


def _panel(panel: Panel, panel_id: int, position: dict[str, int]) -> Json:
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel.kind, panel.unit),
        "targets": [_target(panel.kind, query, number) for number, query in enumerate(panel.queries)],
    }


def _target(kind: Kind, query: Query, number: int) -> Json:
    target: Json = {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "editorMode": "code",
        "range": kind in ("timeseries", "heatmap"),
        "instant": kind in ("stat", "bargauge"),
    }
    return target | ({"format": "heatmap"} if kind == "heatmap" else {})


def _field(panel: Panel) -> Json:
    field: Json = {"unit": panel.unit, "min": 0, "color": {"mode": "palette-classic"}}
    if panel.most is not None:
        field["max"] = panel.most
    if panel.limits is not None:
        field |= {"color": {"mode": "thresholds"}, "thresholds": _thresholds(*panel.limits)}
    if panel.kind == "timeseries":
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.is_stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    return field


def _thresholds(first: float, second: float) -> Json:
    rising = first <= second
    colours = ("green", "yellow", "red") if rising else ("red", "yellow", "green")
    bounds = (None, *sorted((first, second)))
    steps = [{"color": colour, "value": bound} for colour, bound in zip(colours, bounds, strict=True)]
    return {"mode": "absolute", "steps": steps}


def _options(kind: Kind, unit: str) -> Json:
    match kind:
        case "timeseries":
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "value"}
        case "bargauge":
            last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": last, "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True}
        case "heatmap":
            colour = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
            return {"calculate": False, "color": colour, "yAxis": {"unit": unit}, "legend": {"show": True}}


def _variables() -> list[Json]:
    source: Json = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }
    labels = {"job": "Job", "instance": "Instance", "model_name": "Model"}
    return [source, *(_variable(name, label) for name, label in labels.items())]


def _variable(name: str, label: str) -> Json:
    query = f"label_values(draftahead_engine_up, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def _restarts() -> Json:
    return {
        "name": "Starts of the server",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": 'draftahead_process_start_time_seconds{job=~"$job", instance=~"$instance"} * 1000',
        "useValueForTime": True,
        "titleFormat": "Started {{instance}}",
    }


def _link_to_others() -> Json:
    return {
        "title": "Draftahead",
        "type": "dashboards",
        "tags": ["draftahead"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }
