"""vLLM's names: there on request only, with our values and their labels."""

from __future__ import annotations

import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import FakeEngine, Script
from tests.server.harness import complete, serve

LABELS = {"model_name": "fake", "engine": "0"}

# Ours, theirs, and the labels beside LABELS.
PAIRS = [
    ("requests_running", "num_requests_running", {}),
    ("requests_waiting", "num_requests_waiting", {}),
    ("requests_waiting", "num_requests_waiting_by_reason", {"reason": "capacity"}),
    ("kv_cache_usage_ratio", "kv_cache_usage_perc", {}),
    ("prompt_tokens_total", "prompt_tokens_total", {}),
    ("prompt_tokens_total", "prefix_cache_queries_total", {}),
    ("cached_prompt_tokens_total", "prefix_cache_hits_total", {}),
    ("cached_prompt_tokens_total", "prompt_tokens_cached_total", {}),
    ("generation_tokens_total", "generation_tokens_total", {}),
    ("preemptions_total", "num_preemptions_total", {}),
    ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count", {}),
    ("inter_token_latency_seconds_count", "inter_token_latency_seconds_count", {}),
    ("request_time_per_output_token_seconds_sum", "request_time_per_output_token_seconds_sum", {}),
    ("request_duration_seconds_sum", "e2e_request_latency_seconds_sum", {}),
    ("request_queue_seconds_sum", "request_queue_time_seconds_sum", {}),
    ("request_inference_seconds_sum", "request_inference_time_seconds_sum", {}),
    ("request_prefill_seconds_sum", "request_prefill_time_seconds_sum", {}),
    ("request_decode_seconds_sum", "request_decode_time_seconds_sum", {}),
    ("request_prompt_tokens_sum", "request_prompt_tokens_sum", {}),
    ("request_computed_prompt_tokens_sum", "request_prefill_kv_computed_tokens_sum", {}),
    ("request_generation_tokens_sum", "request_generation_tokens_sum", {}),
    ("request_generation_tokens_sum", "request_max_num_generation_tokens_sum", {}),
    ("request_max_tokens_sum", "request_params_max_tokens_sum", {}),
    ("request_preemptions_count", "request_num_preemptions_count", {}),
    ("spec_decode_drafts_total", "spec_decode_num_drafts_total", {}),
    ("spec_decode_draft_tokens_total", "spec_decode_num_draft_tokens_total", {}),
    ("spec_decode_accepted_tokens_total", "spec_decode_num_accepted_tokens_total", {}),
]


@pytest.fixture
async def page() -> str:
    async with serve(
        FakeEngine(Script(tokens_per_step=(2, 1), num_drafted=2, num_cached=1)), metrics_names="vllm"
    ) as client:
        await complete(client, max_tokens=5, n=2)
        await client.post("/v1/completions", json={"model": "other", "prompt": "a"})
        return (await client.get("/metrics")).text


def _samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.mark.parametrize(("ours", "theirs", "labels"), PAIRS)
def test_the_values_are_ours(page: str, ours: str, theirs: str, labels: dict[str, str]) -> None:
    samples = _samples(page)
    value = samples[f"draftahead_{ours}", frozenset({"model_name": "fake"}.items())]
    assert samples[f"vllm:{theirs}", frozenset((LABELS | labels).items())] == value


@pytest.mark.parametrize(
    ("ours", "our_labels", "theirs", "their_labels"),
    [
        (
            "requests_total",
            {"finish_reason": "length"},
            "request_success_total",
            LABELS | {"finished_reason": "length"},
        ),
        (
            "rejected_requests_total",
            {"reason": "model_not_found"},
            "admission_rejections_total",
            {"model_name": "fake", "reason": "model_not_found"},
        ),
        (
            "spec_decode_accepted_tokens_per_position_total",
            {"position": "0"},
            "spec_decode_num_accepted_tokens_per_pos_total",
            LABELS | {"position": "0"},
        ),
        (
            "inter_token_latency_seconds_bucket",
            {"le": "0.05"},
            "inter_token_latency_seconds_bucket",
            LABELS | {"le": "0.05"},
        ),
    ],
)
def test_labels_are_theirs(
    page: str, ours: str, our_labels: dict[str, str], theirs: str, their_labels: dict[str, str]
) -> None:
    samples = _samples(page)
    value = samples[f"draftahead_{ours}", frozenset(({"model_name": "fake"} | our_labels).items())]
    assert value > 0
    assert samples[f"vllm:{theirs}", frozenset(their_labels.items())] == value


def test_every_family_has_one_type_and_one_help(page: str) -> None:
    helps, types = (re.findall(rf"^# {word} (\S+)", page, re.MULTILINE) for word in ("HELP", "TYPE"))
    assert helps == types
    assert len(set(types)) == len(types)


async def test_without_the_option_there_are_none(client: httpx.AsyncClient) -> None:
    assert "vllm" not in (await client.get("/metrics")).text
