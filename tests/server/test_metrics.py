"""Prometheus: names, arithmetic, and that the two ways of counting agree."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import httpx
import pytest

from engine.step_stats import StepStats
from engine.types import FinishReason, RequestMetrics, RequestOutput, SpeculationStats
from server.metric_buckets import DURATION_BUCKETS, FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS
from server.metrics import ServerMetrics
from server.step_metrics import PHASES
from tests.fakes import FakeEngine, Script, fake_info
from tests.server.harness import complete, post, scrape, serve

FIRST_TOKEN_BOUNDS = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
INTER_TOKEN_BOUNDS = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
DURATION_BOUNDS = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def metrics(clock: _Clock) -> ServerMetrics:
    return ServerMetrics(fake_info(), model_name="fake", version="1", is_healthy=lambda: True, clock=clock)


def _value(metrics: ServerMetrics, name: str, labels: str = "") -> float:
    pattern = rf'^draftahead_{name}{{{labels}model_name="fake"[^}}]*}} (\S+)$'
    (value,) = re.findall(pattern, metrics.exposition().decode(), re.MULTILINE)
    return float(value)


async def test_format(client: httpx.AsyncClient) -> None:
    await complete(client)
    response = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "_created" not in response.text


async def test_names_follow_the_conventions(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert helps.keys() == types.keys()
    for name, kind in types.items():
        assert re.fullmatch(r"draftahead_[a-z_]+", name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_count", "_sum", "_bucket")), name


async def test_everything_is_there_and_zero_before_anything_happened(client: httpx.AsyncClient) -> None:
    samples = await scrape(client)
    plain = [
        "prompt_tokens_total",
        "cached_prompt_tokens_total",
        "generation_tokens_total",
        "spec_decode_drafts_total",
        "spec_decode_draft_tokens_total",
        "spec_decode_accepted_tokens_total",
        "spec_decode_recovered_tokens_total",
        "spec_decode_bonus_tokens_total",
        "preemptions_total",
        "steps_total",
        "acceptance_rate",
        "tokens_per_second",
        "requests_running",
        "requests_waiting",
        "kv_cache_usage_ratio",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "step_rows_count",
        "request_duration_seconds_count",
        "request_queue_seconds_count",
        "request_inference_seconds_count",
        "request_prefill_seconds_count",
        "request_decode_seconds_count",
        "request_time_per_output_token_seconds_count",
        "request_max_tokens_count",
        "request_preemptions_count",
        "request_computed_prompt_tokens_count",
        "request_prompt_tokens_count",
        "request_generation_tokens_count",
    ]
    phases = [f"step_seconds_total{{phase={p}}}" for p in PHASES]
    reasons = [f"requests_total{{finish_reason={r}}}" for r in FinishReason]
    positions = [
        f"spec_decode_{kind}_tokens_per_position_total{{position={j}}}"
        for kind in ("draft", "accepted")
        for j in range(4)
    ]
    for name in (*plain, *phases, *reasons, *positions):
        assert samples[f"draftahead_{name}"] == 0, name
    assert samples["draftahead_mean_acceptance_length"] == 1


async def test_counters_and_requests_reconcile() -> None:
    engine = FakeEngine(Script(tokens_per_step=(3, 1, 2), num_drafted=3, num_cached=1))
    async with serve(engine) as client:
        requests: list[dict[str, Any]] = [
            {"max_tokens": 5},
            {"prompt": ["abc", "d"], "n": 3},
            {"speculation": {"mode": "off"}},
            {"speculation": {"num_speculative_tokens": 2}, "stop": "ll"},
            {"echo": True, "max_tokens": 0},
        ]
        answers = [await complete(client, **fields) for fields in requests]
        samples = await scrape(client)
    drafting = [answer["metrics"]["speculative_decoding"] for answer in answers]
    completion_tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    prompt_tokens = sum(
        a["usage"]["prompt_tokens"] * fields.get("n", 1) for a, fields in zip(answers, requests, strict=True)
    )
    accepted = sum(d["num_accepted_draft_tokens"] for d in drafting)
    drafted = sum(d["num_draft_tokens"] for d in drafting)
    drafts = sum(d["num_spec_steps"] for d in drafting)
    assert (accepted, drafted, drafts) == (22, 67, 23)
    expected = {
        "generation_tokens_total": completion_tokens,
        "request_generation_tokens_sum": completion_tokens,
        "prompt_tokens_total": prompt_tokens,
        "request_prompt_tokens_sum": prompt_tokens,
        "cached_prompt_tokens_total": 10,
        "request_computed_prompt_tokens_sum": prompt_tokens - 10,
        "spec_decode_drafts_total": drafts,
        "spec_decode_draft_tokens_total": drafted,
        "spec_decode_accepted_tokens_total": accepted,
        "spec_decode_drafts_by_drafter_total{drafter=suffix}": drafts,
        "spec_decode_draft_tokens_by_drafter_total{drafter=suffix}": drafted,
        "spec_decode_accepted_tokens_by_drafter_total{drafter=suffix}": accepted,
        "acceptance_rate": accepted / drafted,
        "mean_acceptance_length": 1 + accepted / drafts,
        "request_duration_seconds_count": 10,
        "time_to_first_token_seconds_count": 9,
        "requests_total{finish_reason=stop}": 8,
        "requests_total{finish_reason=length}": 2,
        "requests_total{finish_reason=abort}": 0,
        "request_queue_seconds_count": 10,
        "request_inference_seconds_count": 10,
        "request_prefill_seconds_count": 9,
        "request_decode_seconds_count": 9,
        "http_responses_total{status=200}": 5,
    }
    assert {name: samples[f"draftahead_{name}"] for name in expected} == expected
    for kind, total in (("draft", drafted), ("accepted", accepted)):
        start = f"draftahead_spec_decode_{kind}_tokens_per_position_total{{"
        assert sum(value for name, value in samples.items() if name.startswith(start)) == total
    assert all(math.isfinite(value) for value in samples.values())


async def test_an_abandoned_request_is_counted_once() -> None:
    engine = FakeEngine()
    engine.refusals.extend([None, RuntimeError("no")])
    async with serve(engine) as client:
        await post(client, n=2)
        samples = await scrape(client)
    assert samples["draftahead_requests_total{finish_reason=abort}"] == 1
    assert samples["draftahead_request_duration_seconds_count"] == 0


async def test_label_is_the_first_served_name() -> None:
    async with serve(FakeEngine(), served_model_names=("first", "second")) as client:
        text = (await client.get("/metrics")).text
    assert set(re.findall(r'model_name="([^"]*)"', text)) == {"first"}


async def test_model_info(client: httpx.AsyncClient) -> None:
    (line,) = re.findall(r"^draftahead_model_info\{(.*)\} 1.0$", (await client.get("/metrics")).text, re.M)
    for label in ('dtype="float32"', 'device="cpu"', 'drafter="auto"', 'max_model_len="64"'):
        assert label in line


async def test_two_apps_share_no_registry() -> None:
    async with serve(FakeEngine()) as one, serve(FakeEngine()) as other:
        await complete(one)
        assert (await scrape(one))["draftahead_steps_total"] == 6
        assert (await scrape(other))["draftahead_steps_total"] == 0


def test_a_step(metrics: ServerMetrics) -> None:
    metrics.observe_step(
        StepStats(
            num_running=3,
            num_waiting=2,
            kv_cache_usage=0.25,
            num_rows=9,
            num_preemptions=1,
            schedule_seconds=1,
            propose_seconds=2,
            forward_seconds=3,
            verify_seconds=4,
            commit_seconds=5,
        )
    )
    assert _value(metrics, "steps_total") == 1
    assert _value(metrics, "requests_running") == 3
    assert _value(metrics, "requests_waiting") == 2
    assert _value(metrics, "kv_cache_usage_ratio") == 0.25
    assert _value(metrics, "preemptions_total") == 1
    seconds = [
        re.findall(rf'step_seconds_total{{.*phase="{phase}"}} (\S+)', metrics.exposition().decode())
        for phase in ("schedule", "propose", "forward", "verify", "commit")
    ]
    assert seconds == [["1.0"], ["2.0"], ["3.0"], ["4.0"], ["5.0"]]


def test_a_report_of_an_idle_engine_is_no_step(metrics: ServerMetrics) -> None:
    metrics.observe_step(StepStats(num_running=1, num_rows=1))
    metrics.observe_step(StepStats())
    assert _value(metrics, "steps_total") == 1
    assert _value(metrics, "requests_running") == 0


def test_tokens_per_second_is_of_the_last_ten_seconds(metrics: ServerMetrics, clock: _Clock) -> None:
    metrics.observe_step(StepStats(num_generated_tokens=30))
    assert _value(metrics, "tokens_per_second") == 3
    clock.now += 6
    metrics.observe_step(StepStats(num_generated_tokens=20))
    assert _value(metrics, "tokens_per_second") == 5
    clock.now += 5
    assert _value(metrics, "tokens_per_second") == 2
    clock.now += 5
    assert _value(metrics, "tokens_per_second") == 0


def test_latencies(metrics: ServerMetrics, clock: _Clock) -> None:
    meter = metrics.start_request(metrics.now(), max_tokens=6)
    start = clock.now
    account = RequestMetrics(7, 2, 6, 3, 1, SpeculationStats(4), scheduled_at=start + 0.1)
    meter.observe(RequestOutput("r", [1, 2], time=start + 0.5))
    meter.observe(RequestOutput("r", [], time=start + 0.6))
    meter.observe(RequestOutput("r", [3, 4, 5], time=start + 0.8))
    last = RequestOutput("r", [6], finish_reason=FinishReason.LENGTH, metrics=account, time=start + 1.0)
    meter.observe(last)
    meter.abandon()
    assert _value(metrics, "time_to_first_token_seconds_count") == 1
    assert _value(metrics, "time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert _value(metrics, "inter_token_latency_seconds_count") == 4
    assert _value(metrics, "inter_token_latency_seconds_sum") == pytest.approx(0.5)
    assert _value(metrics, "request_duration_seconds_sum") == pytest.approx(1.0)
    assert _value(metrics, "request_queue_seconds_sum") == pytest.approx(0.1)
    assert _value(metrics, "request_inference_seconds_sum") == pytest.approx(0.9)
    assert _value(metrics, "request_prefill_seconds_sum") == pytest.approx(0.4)
    assert _value(metrics, "request_decode_seconds_sum") == pytest.approx(0.5)
    assert _value(metrics, "request_time_per_output_token_seconds_sum") == pytest.approx(0.5 / 4)
    assert _value(metrics, "request_prompt_tokens_sum") == 7
    assert _value(metrics, "request_computed_prompt_tokens_sum") == 5
    assert _value(metrics, "request_max_tokens_sum") == 6
    assert _value(metrics, "request_preemptions_sum") == 1
    assert _value(metrics, "request_generation_tokens_sum") == 6
    assert _value(metrics, "requests_total", 'finish_reason="length",') == 1
    assert _value(metrics, "requests_total", 'finish_reason="abort",') == 0


@pytest.mark.parametrize(
    ("buckets", "known"),
    [
        (FIRST_TOKEN_BUCKETS, FIRST_TOKEN_BOUNDS),
        (INTER_TOKEN_BUCKETS, INTER_TOKEN_BOUNDS),
        (DURATION_BUCKETS, DURATION_BOUNDS),
    ],
)
def test_buckets_hold_the_known_bounds(buckets: tuple[float, ...], known: str) -> None:
    assert set(map(float, known.split())) <= set(buckets)
    assert list(buckets) == sorted(set(buckets))


def test_length_buckets_end_at_the_context(metrics: ServerMetrics) -> None:
    bounds = re.findall(r'request_prompt_tokens_bucket{le="([^"]+)"', metrics.exposition().decode())
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"]


async def test_answers_are_counted_by_status_and_probes_are_not() -> None:
    async with serve(FakeEngine(), api_keys=("key",)) as client:
        assert (await client.get("/v1/models")).status_code == 401
        with_key = {"authorization": "Bearer key"}
        assert (await client.get("/v1/models", headers=with_key)).status_code == 200
        assert (await client.get("/v1/models/other", headers=with_key)).status_code == 404
        assert (await client.get("/nowhere", headers=with_key)).status_code == 404
        assert (await client.get("/health")).status_code == 200
        samples = await scrape(client)
    answers = {name: value for name, value in samples.items() if "http_responses" in name and value}
    assert answers == {
        "draftahead_http_responses_total{status=200}": 1,
        "draftahead_http_responses_total{status=401}": 1,
        "draftahead_http_responses_total{status=404}": 2,
    }


async def test_the_engine_is_up_until_it_takes_no_requests() -> None:
    engine = FakeEngine()
    async with serve(engine) as client:
        assert (await scrape(client))["draftahead_engine_up"] == 1
        engine.is_healthy = False
        assert (await scrape(client))["draftahead_engine_up"] == 0


async def test_memory(client: httpx.AsyncClient) -> None:
    samples, info = await scrape(client), fake_info()
    assert samples["draftahead_model_weights_bytes"] == info.weights_bytes
    assert samples["draftahead_kv_cache_bytes"] == info.kv_cache_bytes
    assert samples["draftahead_kv_cache_capacity_tokens"] == info.num_kv_tokens
    assert samples["draftahead_process_resident_memory_bytes"] > 2**20
    assert samples["draftahead_process_start_time_seconds"] <= time.time()
