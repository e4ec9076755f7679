"""The names that vLLM gives to what is measured here, for dashboards and benchmarks that ask by them.

Knows two vocabularies; measures nothing. What vLLM measures and this server does not has no name here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from server.metric_registry import PREFIX

VLLM_PREFIX = "vllm:"
# One engine, which is the first.
_ENGINE = {"engine": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    """A family by vLLM's name: the labels that it has besides, and those that go by another name."""

    theirs: str
    added: Mapping[str, str] = field(default_factory=lambda: _ENGINE)
    renamed: Mapping[str, str] = field(default_factory=dict)


def _same(theirs: str) -> tuple[_Name, ...]:
    return (_Name(theirs=theirs),)


# Families by their own names, a counter without its "_total".
_NAMES: dict[str, tuple[_Name, ...]] = {
    "requests_running": _same("num_requests_running"),
    "requests_waiting": (
        _Name(theirs="num_requests_waiting"),
        _Name(theirs="num_requests_waiting_by_reason", added=_ENGINE | {"reason": "capacity"}),
    ),
    "kv_cache_usage_ratio": _same("kv_cache_usage_perc"),
    "prompt_tokens": (_Name(theirs="prompt_tokens"), _Name(theirs="prefix_cache_queries")),
    "cached_prompt_tokens": (_Name(theirs="prompt_tokens_cached"), _Name(theirs="prefix_cache_hits")),
    "generation_tokens": _same("generation_tokens"),
    "preemptions": _same("num_preemptions"),
    "requests": (_Name(theirs="request_success", renamed={"finish_reason": "finished_reason"}),),
    "rejected_requests": (_Name(theirs="admission_rejections", added={}),),
    "time_to_first_token_seconds": _same("time_to_first_token_seconds"),
    "inter_token_latency_seconds": _same("inter_token_latency_seconds"),
    "request_time_per_output_token_seconds": _same("request_time_per_output_token_seconds"),
    "request_duration_seconds": _same("e2e_request_latency_seconds"),
    "request_queue_seconds": _same("request_queue_time_seconds"),
    "request_inference_seconds": _same("request_inference_time_seconds"),
    "request_prefill_seconds": _same("request_prefill_time_seconds"),
    "request_decode_seconds": _same("request_decode_time_seconds"),
    "request_prompt_tokens": _same("request_prompt_tokens"),
    "request_computed_prompt_tokens": _same("request_prefill_kv_computed_tokens"),
    "request_generation_tokens": (
        _Name(theirs="request_generation_tokens"),
        _Name(theirs="request_max_num_generation_tokens"),
    ),
    "request_max_tokens": _same("request_params_max_tokens"),
    "request_preemptions": _same("request_num_preemptions"),
    "spec_decode_drafts": _same("spec_decode_num_drafts"),
    "spec_decode_draft_tokens": _same("spec_decode_num_draft_tokens"),
    "spec_decode_accepted_tokens": _same("spec_decode_num_accepted_tokens"),
    "spec_decode_accepted_tokens_per_position": _same("spec_decode_num_accepted_tokens_per_pos"),
}


def with_vllm_names(families: Iterable[Metric]) -> Iterator[Metric]:
    """The families, and behind each the same samples by vLLM's names."""
    for family in families:
        yield family
        for name in _NAMES.get(family.name.removeprefix(PREFIX), ()):
            yield _translate(family, name)


def _translate(family: Metric, name: _Name) -> Metric:
    translated = Metric(VLLM_PREFIX + name.theirs, family.documentation, family.type)
    for sample in family.samples:
        labels = {name.renamed.get(label, label): value for label, value in sample.labels.items()}
        sample_name = translated.name + sample.name.removeprefix(family.name)
        translated.add_sample(sample_name, {**name.added, **labels}, sample.value)
    return translated
