"""The dashboards drawn without Grafana, on answers that a Prometheus could give."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from deploy.preview.page import page
from deploy.preview.scale import round_up, shown
from deploy.preview.source import Prometheus
from tests.deploy.expressions import load_dashboards

START = 1000.0


def answer(request: httpx.Request) -> httpx.Response:
    """Two series for every query; the second has a gap."""
    query = request.url.params["query"]
    assert "$" not in query
    assert "__" not in query.replace("__name__", "")
    labels = [{"le": "1", "position": "0", "reason": "whole"}, {"le": "+Inf", "position": "1", "reason": "<price>"}]
    if request.url.path.endswith("query"):
        result: list[dict[str, Any]] = [{"metric": each, "value": [START, "0.5"]} for each in labels]
    else:
        points = [[START + 10 * place, str(0.2 + place / 20)] for place in range(11)]
        result = [{"metric": labels[0], "values": points}, {"metric": labels[1], "values": points[:4] + points[7:]}]
    return httpx.Response(200, json={"status": "success", "data": {"result": result}})


@pytest.fixture
def prometheus() -> Prometheus:
    source = Prometheus("http://prometheus", start=START, end=START + 100, num_points=11)
    source._client = httpx.Client(base_url="http://prometheus", transport=httpx.MockTransport(answer))
    return source


@pytest.mark.parametrize("name", load_dashboards())
def test_every_panel_is_drawn(prometheus: Prometheus, name: str) -> None:
    dashboard = load_dashboards()[name]
    drawn = page(dashboard, prometheus)
    kinds = [panel["type"] for panel in dashboard["panels"]]
    assert drawn.count("<section") == len(kinds) - kinds.count("row")
    assert drawn.count("<svg") == len(kinds) - kinds.count("row") - kinds.count("stat")
    assert "nan" not in drawn
    assert "<price>" not in drawn


def test_a_gap_stays_a_gap(prometheus: Prometheus) -> None:
    values = prometheus.series("up")[1].values
    assert [math.isnan(value) for value in values] == [False] * 4 + [True] * 3 + [False] * 4


def test_numbers_are_readable() -> None:
    assert [shown(0.0123, "s"), shown(2.5, "s"), shown(0.734, "percentunit"), shown(12345.6, "none")] == [
        "12.3 ms",
        "2.5 s",
        "73.4 %",
        "12,346",
    ]
    assert shown(math.nan, "s") == "-"
    assert [round_up(value) for value in (0, 0.3, 1, 17, 240)] == [1, 0.5, 1, 20, 250]
    assert json.dumps(round_up(math.inf)) == "1.0"
