from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient, run
from reports import CONTEXT, served

from engine.bench.document import write_json
from engine.bench.prompts import BenchPrompt
from engine.bench.result import BenchResult
from engine.errors import ConfigError


def written(result: BenchResult, folder: Path) -> dict[str, Any]:
    write_json(result, CONTEXT, folder / "bench.json")
    document: dict[str, Any] = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    return document


async def test_holds_the_run_and_its_conditions(prompts: list[BenchPrompt], tmp_path: Path) -> None:
    result = await run(FakeClient(), prompts, concurrency=(1, 2), repeats=2)
    document = written(result, tmp_path)
    assert document["context"]["command"] == "draftahead bench --repeats 2"
    assert document["model"]["dtype"] == "float32"
    assert document["options"]["concurrency"] == [1, 2]
    assert document["peak_rss_mib"] == result.peak_rss_mib > 1
    assert document["differing_prompt_ids"] == []
    assert [(load["concurrency"], load["request_rate"]) for load in document["loads"]] == [(1, None), (2, None)]
    load = document["loads"][0]
    assert [task["task"] for task in load["tasks"]] == ["chat", "maths"]
    speedup = result.loads[0].overall.speedup
    assert speedup is not None
    assert load["overall"]["speedup"]["per_repeat"] == list(speedup.per_repeat)
    assert list(load["overall"]["modes"]) == ["plain", "speculative"]
    plain = load["overall"]["modes"]["plain"]
    assert plain["tokens_per_second"] == pytest.approx(50)
    assert plain["ttft"] == pytest.approx({"p50": 0.1, "p90": 0.1, "p99": 0.1})
    assert plain["step_split"]["shares"]["forward"] == pytest.approx(0.75)
    assert len(load["itl_percentiles"]["plain"]) == 99


def test_of_a_server_has_null_where_nothing_is_told(tmp_path: Path) -> None:
    document = written(served(num_repeats=1), tmp_path)
    assert "model" not in document
    assert document["server"]["url"] == "http://host"
    assert document["peak_rss_mib"] is None
    row = document["loads"][0]["overall"]
    assert (row["speedup"], row["num_identical"]) == (None, None)
    assert row["modes"]["as served"]["acceptance_rate"] is None
    assert row["modes"]["as served"]["step_split"] is None


def test_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"json: cannot write .*absent"):
        write_json(served(num_repeats=1), CONTEXT, tmp_path / "absent" / "bench.json")
