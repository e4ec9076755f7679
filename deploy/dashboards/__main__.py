"""Writes the dashboards' JSON where Grafana's provisioning finds it."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.dashboards.overview import OVERVIEW
from deploy.dashboards.speculation import SPECULATION

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"


def files() -> dict[Path, str]:
    """The text of every file."""
    boards = {"overview": OVERVIEW, "speculation": SPECULATION}
    return {FOLDER / f"{name}.json": json.dumps(board.to_json(), indent=2) + "\n" for name, board in boards.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
        print(path)
