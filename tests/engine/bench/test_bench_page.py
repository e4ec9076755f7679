from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_client import FakeClient, run
from reports import CONTEXT, served

from engine.bench.page import render_page, write_html
from engine.bench.prompts import BenchPrompt
from engine.bench.svg import ticks
from engine.errors import ConfigError


class Page(HTMLParser):
    """The text of each table row, the headings, and what is loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.resources: list[str] = []
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.resources += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th", "h2", "h3"):
            self._into = self.rows[-1] if tag.startswith("t") else self.headings
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data


def drawings(page: str) -> list[ElementTree.Element]:
    """Each SVG, which must be well-formed."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def tips(drawing: ElementTree.Element) -> list[str]:
    return [title.text or "" for shape in drawing for title in shape]


async def test_shows_tables_and_plots_of_each_load(prompts: list[BenchPrompt]) -> None:
    text = render_page(await run(FakeClient(), prompts, concurrency=(1, 2), repeats=2), CONTEXT)
    page = Page(text)
    plots = ["Tokens per second", "Speed-up", "Inter-token latency", "Step time"]
    assert page.headings == ["Concurrency 1", *plots, "Concurrency 2", *plots]
    times = ["100.0"] * 3 + ["10.0"] * 3
    assert page.rows[1] == ["chat", "plain", "50.0", *times, "9.0", "1.00", "-", "-", "1.36", "1.36-1.36", "4/4"]
    assert page.rows[2] == ["", "speculative", "68.2", *["100.0"] * 3, *["4.0"] * 3, "9.0", "3.00", "4.00", "75"]
    assert "All 6 prompts gave the same tokens" in text
    assert "draftahead bench --repeats 2" in text


async def test_needs_nothing_else_and_knows_the_dark(prompts: list[BenchPrompt]) -> None:
    text = render_page(await run(FakeClient(), prompts), CONTEXT)
    assert Page(text).resources == []
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


async def test_the_plots_hold_the_figures(prompts: list[BenchPrompt]) -> None:
    rates, speedups, latencies, steps = drawings(render_page(await run(FakeClient(), prompts, repeats=2), CONTEXT))
    assert "chat, speculative: 68.2 tokens/s" in tips(rates)
    assert "overall: 1.36, from 1.36 to 1.36" in tips(speedups)
    curves = [line.get("points", "").split() for line in latencies.iter("polyline") if "curve" in line.get("class", "")]
    assert [len(points) for points in curves] == [99, 99]
    assert tips(steps).count("forward: 75.0 %") == 2


def test_of_another_server_leaves_out_what_is_not_told() -> None:
    page = Page(render_page(served(num_repeats=1), CONTEXT))
    assert page.headings == ["Concurrency 1", "Tokens per second", "Inter-token latency"]
    assert [heading.split() for heading in page.rows[0]][-1] == ["same", "text"]
    assert page.rows[1] == ["chat", "as served", "2.0", *["500.0"] * 3, *["250.0"] * 3, "4.0", "-"]


def test_foreign_text_stays_text() -> None:
    result = served(num_repeats=1)
    text = render_page(result, replace(CONTEXT, command="bench '<script>alert(1)</script>'"))
    assert "<script>" not in text


def test_answers_without_gaps_have_no_plot_of_them() -> None:
    result = served(num_repeats=1)
    load = replace(result.loads[0], itl_percentiles={})
    assert "Inter-token latency" not in Page(render_page(replace(result, loads=(load,)), CONTEXT)).headings


def test_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"html: cannot write .*absent"):
        write_html(served(num_repeats=1), CONTEXT, tmp_path / "absent" / "bench.html")


@pytest.mark.parametrize(
    ("most", "last", "count"), [(68.2, 80, 5), (1.36, 1.5, 4), (100, 100, 6), (0.003, 0.003, 4), (0, 1, 2)]
)
def test_axes_end_at_a_round_number(most: float, last: float, count: int) -> None:
    steps = ticks(most)
    assert steps[-1] == pytest.approx(last)
    assert len(steps) == count
