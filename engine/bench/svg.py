"""Drawing in SVG, to be put into a page as it is. Knows shapes and scales; colours are the page's, by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

Anchor = Literal["start", "middle", "end"]


class Drawing:
    """Shapes on a canvas of ``width`` times ``height`` units, y downwards.

    Args:
        title: read out to those who cannot see it.
    """

    def __init__(self, width: float, height: float, *, title: str) -> None:
        self._size = f"0 0 {width:g} {height:g}"
        self._shapes = [f"<title>{escape(title)}</title>"]

    def bar(self, x: float, y: float, width: float, height: float, *, look: str, tip: str) -> None:
        """A rectangle that tells ``tip`` under the pointer; ``look`` is its class."""
        self._shapes.append(
            f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
            f"<title>{escape(tip)}</title></rect>"
        )

    def dot(self, x: float, y: float, *, look: str, tip: str) -> None:
        """A point that tells ``tip`` under the pointer."""
        self._shapes.append(
            f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(tip)}</title></circle>'
        )

    def line(self, points: Iterable[tuple[float, float]], *, look: str) -> None:
        """A line through ``points``."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="{look}" points="{path}"/>')

    def text(self, x: float, y: float, text: str, *, anchor: Anchor = "start", look: str = "label") -> None:
        """One line of text on the baseline ``y``."""
        self._shapes.append(
            f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def __str__(self) -> str:
        return f'<svg viewBox="{self._size}" role="img">{"".join(self._shapes)}</svg>'


def ticks(most: float, *, num_steps: int = 5) -> list[float]:
    """Round numbers from 0 to the first at or above ``most``, in about ``num_steps`` steps."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / num_steps
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= raw * (1 - 1e-9))
    return [step * index for index in range(math.ceil(most / step - 1e-9) + 1)]


def legend(drawing: Drawing, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    """A row of coloured squares with names; ``entries`` are class and name."""
    for look, name in entries:
        drawing.bar(x, y - 10, 12, 12, look=look, tip=name)
        drawing.text(x + 17, y, name)
        x += 34 + 7.2 * len(name)
