"""Prometheus' own tool reads the configuration, tries the rules, and finds nothing to say of /metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.expressions import RULES, rules
from tests.deploy.tools import ROOT, run_tool, said
from tests.fakes import FakeEngine, Script
from tests.server.harness import complete, serve

CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
UNIT_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yml"))
HANDBOOK = ROOT / "docs" / "operations.md"


def test_the_configuration_and_all_rules_are_read() -> None:
    done = run_tool("promtool", "check", "config", CONFIG)
    assert done.returncode == 0, said(done)
    assert f"{len(RULES)} rule files found" in said(done)


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_rules_give_what_they_should(path: Path) -> None:
    done = run_tool("promtool", "test", "rules", path)
    assert done.returncode == 0, said(done)


def test_every_rule_is_tried_and_every_alert_explained() -> None:
    tried = "".join(path.read_text("utf-8") for path in UNIT_TESTS)
    handbook = HANDBOOK.read_text("utf-8")
    for rule in rules():
        assert (rule.get("record") or rule["alert"]) in tried
        if "alert" in rule:
            assert f"`{rule['alert']}`" in handbook


@pytest.mark.parametrize(("names", "complaints"), [("draftahead", set()), ("vllm", {"contain ':'"})])
async def test_nothing_is_wrong_with_the_exposition(names: str, complaints: set[str]) -> None:
    async with serve(FakeEngine(Script(num_drafted=2)), metrics_names=names) as client:
        await complete(client, n=2)
        page = (await client.get("/metrics")).content
    done = run_tool("promtool", "check", "metrics", given=page)
    lines = [line for line in said(done).splitlines() if line]
    # Colons are for rules, and the names with colons are vLLM's own.
    assert {complaint for complaint in complaints if any(complaint in line for line in lines)} == complaints
    if names == "draftahead":
        assert (done.returncode, lines) == (0, [])
    assert not [line for line in lines if not re.match(r"vllm:", line)]
