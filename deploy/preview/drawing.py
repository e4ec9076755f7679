"""Series as SVG: lines, stacked areas, heatmaps, bars, one number. Knows shapes; knows no metric and no Prometheus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from deploy.preview.scale import round_up, shown

COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#56c7c9", "#f2495c", "#a3a8b8", "#8f6bd1", "#c0d860")
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 8, 20
_LINES = 4

Named = tuple[str, list[float]]


def time_series(
    named: Sequence[Named], *, width: int, height: int, unit: str, is_stacked: bool, most: float | None
) -> str:
    """Lines over time, or areas on top of each other."""
    drawn = _stack(named) if is_stacked else [(name, [0.0] * len(values), values) for name, values in named]
    highest = max((value for _, _, tops in drawn for value in tops if math.isfinite(value)), default=0.0)
    end = most or round_up(highest)
    parts = [_grid(width, height, end, unit)]
    for number, (_, bottoms, tops) in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        for run in _runs(tops):
            line = " ".join(_point(i, tops[i], len(tops), end, width, height) for i in run)
            if is_stacked:
                below = " ".join(_point(i, bottoms[i], len(tops), end, width, height) for i in reversed(run))
                parts.append(f'<polygon points="{line} {below}" fill="{colour}" fill-opacity=".75"/>')
            else:
                parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return _svg(width, height, parts)


def heatmap(rows: Sequence[Named], *, width: int, height: int) -> str:
    """A row of cells for each bucket, the lowest at the bottom, the fuller the brighter."""
    highest = max((value for _, values in rows for value in values if math.isfinite(value)), default=0.0) or 1.0
    inner, tall = width - _LEFT - _RIGHT, (height - _TOP - _BOTTOM) / max(len(rows), 1)
    parts = []
    for number, (name, values) in enumerate(rows):
        y = height - _BOTTOM - (number + 1) * tall
        if number % max(len(rows) // 8, 1) == 0:
            parts.append(_label(_LEFT - 6, y + tall / 2 + 3, name))
        wide = inner / len(values)
        for place, value in enumerate(values):
            if math.isfinite(value) and value > 0:
                strength = 0.12 + 0.88 * math.sqrt(value / highest)
                x = _LEFT + place * wide
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide + 0.3:.1f}" height="{tall:.1f}" '
                    f'fill="#ff9830" fill-opacity="{strength:.2f}"/>'
                )
    return _svg(width, height, parts)


def bars(named: Sequence[Named], *, width: int, height: int, unit: str, most: float | None) -> str:
    """A bar for each name."""
    end = most or round_up(max((values[-1] for _, values in named), default=1.0))
    tall = (height - 8) / max(len(named), 1)
    parts = []
    for number, (name, values) in enumerate(named):
        y, value = 4 + number * tall, values[-1]
        long = max((width - 120) * min(value / end, 1.0), 1.0) if math.isfinite(value) else 1.0
        parts.append(_label(34, y + tall / 2 + 4, name))
        parts.append(
            f'<rect x="42" y="{y + 2:.1f}" width="{long:.1f}" height="{max(tall - 4, 2):.1f}" rx="2" fill="#73bf69"/>'
        )
        parts.append(f'<text x="{50 + long:.1f}" y="{y + tall / 2 + 4:.1f}" class="bar">{shown(value, unit)}</text>')
    return _svg(width, height, parts)


def _stack(named: Sequence[Named]) -> list[tuple[str, list[float], list[float]]]:
    stacked = []
    below: list[float] = []
    for name, values in named:
        below = below or [0.0] * len(values)
        tops = [low + (value if math.isfinite(value) else 0.0) for low, value in zip(below, values, strict=True)]
        stacked.append((name, below, tops))
        below = tops
    return stacked


def _runs(values: Sequence[float]) -> list[list[int]]:
    """Places of neighbouring values, gaps left out."""
    runs: list[list[int]] = [[]]
    for place, value in enumerate(values):
        if math.isfinite(value):
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _point(place: int, value: float, number: int, end: float, width: int, height: int) -> str:
    x = _LEFT + place / (number - 1) * (width - _LEFT - _RIGHT)
    y = height - _BOTTOM - min(max(value / end, 0.0), 1.0) * (height - _TOP - _BOTTOM)
    return f"{x:.1f},{y:.1f}"


def _grid(width: int, height: int, end: float, unit: str) -> str:
    parts = []
    for number in range(_LINES + 1):
        y = height - _BOTTOM - number / _LINES * (height - _TOP - _BOTTOM)
        parts.append(f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_label(_LEFT - 6, y + 3, shown(end * number / _LINES, unit)))
    return "".join(parts)


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="axis">{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(parts)}</svg>'
