"""Numbers as people read them, and the ends of axes."""

from __future__ import annotations

import math


def shown(value: float, unit: str) -> str:
    """A value in one of Grafana's units."""
    if not math.isfinite(value):
        return "-"
    match unit:
        case "percentunit":
            return f"{value * 100:.3g} %"
        case "s":
            return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
        case "bytes":
            return f"{value / 2**20:,.0f} MiB"
        case "reqps":
            return f"{value:.3g}/s"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 and 10 times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= value * 0.999)
