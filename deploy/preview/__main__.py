"""``python -m deploy.preview --prometheus URL --out FILE``: a dashboard over the last minutes, as one HTML file."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from deploy.preview.page import page
from deploy.preview.source import Prometheus

_DASHBOARDS = Path(__file__).parents[1] / "grafana" / "dashboards"


def main() -> None:
    names = sorted(path.stem for path in _DASHBOARDS.glob("*.json"))
    parser = argparse.ArgumentParser(prog="python -m deploy.preview", description=__doc__)
    parser.add_argument("--prometheus", required=True, metavar="URL", help="a Prometheus that scrapes a server")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the page")
    parser.add_argument("--dashboard", choices=names, default="speculation")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back it looks")
    arguments = parser.parse_args()
    now = time.time()
    dashboard = json.loads((_DASHBOARDS / f"{arguments.dashboard}.json").read_text("utf-8"))
    prometheus = Prometheus(arguments.prometheus, start=now - 60 * arguments.minutes, end=now)
    arguments.out.write_text(page(dashboard, prometheus), "utf-8")


if __name__ == "__main__":
    main()
