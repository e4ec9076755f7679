"""Asks a Prometheus what a panel asks, over some time or now. Knows its API; knows nothing of drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import httpx

_SECONDS_TO_ANSWER = 30.0


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one set of labels; ``values`` has NaN where there is none."""

    labels: dict[str, str]
    values: list[float]


class Prometheus:
    """A running one.

    Args:
        url: its address.
        start, end: unix seconds of the time that is shown.
        num_points: values of a series.
    """

    def __init__(self, url: str, *, start: float, end: float, num_points: int = 120) -> None:
        self._client = httpx.Client(base_url=url, timeout=_SECONDS_TO_ANSWER)
        self._start = start
        self._end = end
        self._step = (end - start) / (num_points - 1)
        self._num_points = num_points

    def series(self, expr: str) -> list[Series]:
        """Over the whole time."""
        found = self._ask("query_range", expr, start=self._start, end=self._end, step=self._step)
        return [Series(each["metric"], self._spread(each["values"])) for each in found]

    def now(self, expr: str) -> list[Series]:
        """At the end of the time."""
        found = self._ask("query", expr, time=self._end)
        return [Series(each["metric"], [float(each["value"][1])]) for each in found]

    def _ask(self, what: str, expr: str, **when: float) -> list[dict[str, Any]]:
        answer = self._client.get(f"/api/v1/{what}", params={"query": expr, **when})
        answer.raise_for_status()
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def _spread(self, samples: list[list[Any]]) -> list[float]:
        values = [math.nan] * self._num_points
        for at, value in samples:
            place = round((float(at) - self._start) / self._step)
            if 0 <= place < self._num_points:
                values[place] = float(value)
        return values
