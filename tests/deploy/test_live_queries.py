"""Every query of every panel and rule, asked of a real Prometheus: of a server that idles, decodes plainly, drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx
import pytest

from tests.deploy.expressions import Expression, load_dashboards, panel_expressions, rule_expressions, rules
from tests.deploy.running import Prometheus, running_prometheus
from tests.running_server import running_server
from tests.small_folders import write_hugging_face_folder

LOOKS_BACK = "5s"
SECONDS_OF_LOAD = 6
SECONDS_TO_FORGET = 7
MOST_ROUNDS = 400

PANELS = list(panel_expressions())
RECORDS = [e for e in rule_expressions(longest=LOOKS_BACK) if e.origin.startswith("instance:")]
ALERTS = [e for e in rule_expressions(longest=LOOKS_BACK) if not e.origin.startswith("instance:")]
SHOWN = [*PANELS, *RECORDS]
OF_DRAFTS = [
    e for e in SHOWN if any(word in e.expr for word in ("spec_decode", "acceptance", "speedup", "calibration"))
]
ALL = [*PANELS, *RECORDS, *ALERTS]


@dataclass(frozen=True)
class Seen:
    """The values of every expression in each phase, and what there was to ask for."""

    values: dict[str, dict[Expression, list[float]]]
    names: set[str]
    labels: dict[str, list[str]]
    rules: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")
    with (
        running_server(folder, "--metrics-names", "vllm") as url,
        running_prometheus(url.removeprefix("http://"), tmp_path_factory.mktemp("prometheus")) as prometheus,
    ):
        prometheus.await_scrapes(3)
        values = {"fresh": _ask(prometheus)}
        for phase, mode in (("plain", "off"), ("drafting", "auto")):
            _load(url, mode)
            values[phase] = _ask(prometheus)
        time.sleep(SECONDS_TO_FORGET)
        values["idle"] = _ask(prometheus)
        labels = {
            name: prometheus.get(f"/label/{name}/values", **{"match[]": "draftahead_engine_up"})
            for name in ("job", "instance", "model_name")
        }
        yield Seen(values, set(prometheus.get("/label/__name__/values")), labels, prometheus.rules())


def _ask(prometheus: Prometheus) -> dict[Expression, list[float]]:
    return {expression: prometheus.query(expression.expr) for expression in ALL}


def _load(url: str, mode: str) -> None:
    """A few clients for some seconds, a predicted answer and a refusal among their requests."""
    until = time.monotonic() + SECONDS_OF_LOAD
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(3) as pool:
        (model,) = (card["id"] for card in client.get("/v1/models").json()["data"])
        prediction = {"prediction": {"type": "content", "content": "abcabcabcabc"}} if mode != "off" else {}

        def work(place: int) -> None:
            for turn in range(MOST_ROUNDS):
                if time.monotonic() > until:
                    return
                fields = prediction if place == 0 else {}
                _complete(client, model, mode, prompt="abcabcabc" * (1 + turn % 3), temperature=place / 2, **fields)
            raise AssertionError(f"{MOST_ROUNDS} requests in less than {SECONDS_OF_LOAD} s")

        list(pool.map(work, range(3)))
        assert client.post("/v1/completions", json={"model": "other", "prompt": "a"}).status_code == 404


def _complete(client: httpx.Client, model: str, mode: str, **fields: Any) -> None:
    settings = {"max_tokens": 64, "ignore_eos": True, "seed": 1, "speculation": {"mode": mode}}
    answer = client.post("/v1/completions", json={"model": model, **settings, **fields})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("phase", ["fresh", "plain", "drafting", "idle"])
def test_what_there_is_to_see_is_finite(seen: Seen, phase: str) -> None:
    odd = {e.origin: values for e, values in seen.values[phase].items() if not all(map(math.isfinite, values))}
    assert not odd


@pytest.mark.parametrize(
    ("phase", "expressions"),
    [("drafting", SHOWN), ("plain", [e for e in SHOWN if e not in OF_DRAFTS])],
    ids=["drafting", "plain"],
)
def test_under_load_there_is_something_to_see(seen: Seen, phase: str, expressions: list[Expression]) -> None:
    assert [e.origin for e in expressions if not seen.values[phase][e]] == []


def test_no_alert_fires_on_a_server_that_is_well(seen: Seen) -> None:
    firing = {(phase, e.origin) for phase, values in seen.values.items() for e in ALERTS if values[e]}
    assert not firing


def test_what_is_seen_tells_the_phases_apart(seen: Seen) -> None:
    def value(phase: str, origin: str) -> list[float]:
        return next(values for e, values in seen.values[phase].items() if e.origin == origin)

    assert value("drafting", "speculation: Output from drafts") > [0.02]
    assert value("drafting", "speculation: Tokens a forward pass") > value(
        "plain", "speculation: Tokens a forward pass"
    )
    assert value("plain", "speculation: Output from drafts") == [0]
    for origin in ("speculation: Acceptance rate", "speculation: Output from drafts", "overview: First token, p95"):
        assert value("idle", origin) == []
    assert value("idle", "overview: Tokens a second") == [0]


def test_every_name_is_exported(seen: Seen) -> None:
    assert set(chain.from_iterable(e.names for e in ALL)) <= seen.names


def test_every_variable_has_values(seen: Seen) -> None:
    variables = {v["name"] for board in load_dashboards().values() for v in board["templating"]["list"]}
    assert variables - {"datasource"} == set(seen.labels)
    assert all(len(values) == 1 for values in seen.labels.values())


def test_every_rule_is_well(seen: Seen) -> None:
    assert len(seen.rules) == len(list(rules()))
    assert {rule["health"] for rule in seen.rules} == {"ok"}


def test_the_names_of_vllm_arrive_as_they_are(seen: Seen) -> None:
    assert {"vllm:generation_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"} <= seen.names
    assert not [name for name in seen.names if name.startswith("vllm_")]
