"""Every PromQL expression under ``deploy/``, and the names of ours that it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from tests.deploy.tools import ROOT

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))

# As Grafana would fill them in for a scrape interval of a second.
_VARIABLES = {
    "$__rate_interval": "5s",
    "$__interval": "1s",
    "$job": ".*",
    "$instance": ".*",
    "$model_name": ".*",
}


class Expression(NamedTuple):
    """``origin`` names the panel or rule; ``expr`` has no variables."""

    origin: str
    expr: str

    @property
    def names(self) -> set[str]:
        """The metrics of ours that it asks for, as they are scraped."""
        return set(re.findall(r"(?<![:\w])draftahead_\w+", self.expr))


def load_dashboards() -> dict[str, Any]:
    """Every dashboard by its file's name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in DASHBOARDS}


def panel_expressions() -> Iterator[Expression]:
    """Those of panels and annotations."""
    for name, board in load_dashboards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Expression(f"{name}: {panel['title']}", fill(target["expr"]))
        for annotation in board["annotations"]["list"]:
            yield Expression(f"{name}: {annotation['name']}", fill(annotation["expr"]))


def rules() -> Iterator[dict[str, Any]]:
    """Every rule of every file."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            yield from group["rules"]


def rule_expressions(*, longest: str = "") -> Iterator[Expression]:
    """Those of rules; ``longest`` takes the place of the times that they look back."""
    for rule in rules():
        expr = re.sub(r"\[\d+[smhd]\]", f"[{longest}]", rule["expr"]) if longest else rule["expr"]
        yield Expression(rule.get("record") or rule["alert"], expr)


def fill(expr: str) -> str:
    """An expression with a value for each variable."""
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr
