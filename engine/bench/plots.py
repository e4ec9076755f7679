"""The plots of a report, each of one load. Knows which figure goes on which axis; refuses to compute one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.bench.measurement import PHASES, BenchMode
from engine.bench.result import LoadResult, TaskResult
from engine.bench.svg import Drawing, legend, ticks

_WIDTH, _HEIGHT = 760.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 745.0, 40.0, 265.0
_GROUP_FILL = 0.7  # of a task's width; the rest is air


class Plot(NamedTuple):
    """One plot: a heading, what to know to read it, and the SVG."""

    heading: str
    caption: str
    svg: str


def plots(load: LoadResult) -> Iterator[Plot]:
    """Those for which ``load`` has figures."""
    yield Plot("Tokens per second", "Output tokens of all requests in flight together. Higher is better.", _rates(load))
    if load.overall.speedup is not None:
        caption = "Tokens per second with speculation / without it; the line is the range over the repeats."
        yield Plot("Speed-up", caption, _speedups(load))
    if any(load.itl_percentiles.values()):
        caption = "Share of tokens that came at most so long after the one before. Further left is better."
        yield Plot("Inter-token latency", caption, _latencies(load))
    if any(mode.step_split for mode in load.overall.modes.values()):
        yield Plot("Step time", "Where the time of the engine's steps goes, over all requests.", _steps(load))


def look_of(mode: BenchMode) -> str:
    """The class of a mode's colour."""
    return f"mode-{mode.replace(' ', '-')}"


def _rates(load: LoadResult) -> str:
    drawing = Drawing(_WIDTH, _HEIGHT, title="Tokens per second by task")
    rows = [*load.tasks, load.overall]
    modes = list(load.overall.modes)
    y_of = _vertical_axis(drawing, max(mode.tokens_per_second for row in rows for mode in row.modes.values()))
    for row, left, width in _groups(drawing, rows):
        bar_width = width / len(modes)
        for index, (name, mode) in enumerate(row.modes.items()):
            top = y_of(mode.tokens_per_second)
            tip = f"{row.task}, {name}: {mode.tokens_per_second:.1f} tokens/s"
            drawing.bar(left + index * bar_width, top, bar_width - 2, _BOTTOM - top, look=look_of(name), tip=tip)
    legend(drawing, _LEFT, 18, [(look_of(mode), mode) for mode in modes])
    return str(drawing)


def _speedups(load: LoadResult) -> str:
    drawing = Drawing(_WIDTH, _HEIGHT, title="Speed-up by task")
    rows = [*load.tasks, load.overall]
    y_of = _vertical_axis(drawing, max(1.0, *(row.speedup.highest for row in rows if row.speedup)))
    drawing.line([(_LEFT, y_of(1)), (_RIGHT, y_of(1))], look="baseline")
    for row, left, width in _groups(drawing, rows):
        if (speedup := row.speedup) is None:
            continue
        middle = left + width / 2
        drawing.line([(middle, y_of(speedup.lowest)), (middle, y_of(speedup.highest))], look="range")
        tip = f"{row.task}: {speedup.median:.2f}, from {speedup.lowest:.2f} to {speedup.highest:.2f}"
        drawing.dot(middle, y_of(speedup.median), look=look_of(BenchMode.SPECULATIVE), tip=tip)
        drawing.text(middle + 10, y_of(speedup.median) + 4, f"{speedup.median:.2f}")
    return str(drawing)


def _latencies(load: LoadResult) -> str:
    drawing = Drawing(_WIDTH, _HEIGHT, title="Distribution of the inter-token latency")
    curves = {mode: values for mode, values in load.itl_percentiles.items() if values}
    y_of = _vertical_axis(drawing, 100, unit=" %")
    steps = ticks(max(values[-1] for values in curves.values()) * 1e3)

    def x_of(milliseconds: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * milliseconds / steps[-1]

    for tick in steps:
        drawing.text(x_of(tick), _BOTTOM + 18, f"{tick:g}", anchor="middle")
    drawing.text(_RIGHT, _BOTTOM + 33, "ms", anchor="end")
    for mode, values in curves.items():
        points = [(x_of(value * 1e3), y_of(percent)) for percent, value in enumerate(values, start=1)]
        drawing.line(points, look=f"curve {look_of(mode)}")
    legend(drawing, _LEFT, 18, [(look_of(mode), mode) for mode in curves])
    return str(drawing)


def _steps(load: LoadResult) -> str:
    splits = {name: mode.step_split for name, mode in load.overall.modes.items() if mode.step_split}
    drawing = Drawing(_WIDTH, 40 + 46 * len(splits), title="Step time by phase")
    left = 110.0
    for index, (name, split) in enumerate(splits.items()):
        top, x = 36.0 + 46 * index, left
        drawing.text(left - 10, top + 14, name, anchor="end")
        drawing.text(left - 10, top + 28, f"{split.seconds_per_step * 1e3:.1f} ms", anchor="end", look="label small")
        for number, phase in enumerate(PHASES):
            width = (_RIGHT - left) * split.shares[phase]
            drawing.bar(x, top, width, 32, look=f"phase-{number}", tip=f"{phase}: {split.shares[phase] * 100:.1f} %")
            x += width
    legend(drawing, left, 18, [(f"phase-{number}", phase) for number, phase in enumerate(PHASES)])
    return str(drawing)


def _vertical_axis(drawing: Drawing, most: float, *, unit: str = "") -> Callable[[float], float]:
    """Draw the axis from 0; gives the height of a value."""
    steps = ticks(most)

    def y_of(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * value / steps[-1]

    for tick in steps:
        drawing.line([(_LEFT, y_of(tick)), (_RIGHT, y_of(tick))], look="grid")
        drawing.text(_LEFT - 8, y_of(tick) + 4, f"{tick:g}{unit}", anchor="end")
    return y_of


def _groups(drawing: Drawing, rows: list[TaskResult]) -> Iterator[tuple[TaskResult, float, float]]:
    """Each row with the left end and the width of its place; its name is written below."""
    pitch = (_RIGHT - _LEFT) / len(rows)
    for index, row in enumerate(rows):
        left = _LEFT + pitch * index
        drawing.text(left + pitch / 2, _BOTTOM + 18, row.task, anchor="middle")
        yield row, left + pitch * (1 - _GROUP_FILL) / 2, pitch * _GROUP_FILL
