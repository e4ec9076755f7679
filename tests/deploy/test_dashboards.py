"""The dashboards' JSON: made by the code beside it, and of a shape that Grafana loads and people can read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from deploy.dashboards.__main__ import files
from deploy.dashboards.panel import GRID_WIDTH
from tests.deploy.expressions import DASHBOARDS, load_dashboards

BOARDS = load_dashboards()
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def test_the_files_are_what_the_code_makes() -> None:
    made = files()
    assert sorted(made) == DASHBOARDS
    for path, text in made.items():
        assert path.read_text("utf-8") == text, f"{path.name} is not what `make dashboards` writes"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
class TestBoard:
    def test_it_can_be_loaded_anywhere(self, board: dict[str, Any]) -> None:
        assert board["id"] is None
        assert board["uid"].startswith("draftahead-")
        assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "job", "instance", "model_name"]

    def test_panels_have_ids_of_their_own(self, board: dict[str, Any]) -> None:
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        titles = [panel["title"] for panel in board["panels"] if panel["type"] not in ("row", "stat")]
        assert len(set(titles)) == len(titles)

    def test_no_panel_covers_another(self, board: dict[str, Any]) -> None:
        places = [panel["gridPos"] for panel in board["panels"]]
        for place in places:
            assert place["x"] + place["w"] <= GRID_WIDTH
        for one, other in itertools.combinations(places, 2):
            apart_in_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            apart_in_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert apart_in_x or apart_in_y, (one, other)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert all(source["uid"] == "${datasource}" for source in sources)
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


def test_the_pages_know_each_other() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        assert set(board["links"][0]["tags"]) <= set(board["tags"])
