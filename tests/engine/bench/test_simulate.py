"""Simulated loads: the real scheduler and controller on tables and recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from engine.bench.recorded_load import RecordedRequest, recorded_requests
from engine.bench.simulate import SimulatedRun, policies, simulate
from engine.bench.step_tables import step_times
from engine.errors import ConfigError
from engine.speculation.trace import TracedRequest, TracedStep

FREE = {1: 0.01, 4096: 0.01}
STEEP = {1: 0.01, 4096: 40.96}


def part(name: str, position: int, accepted: int, *confidences: float, reason: str | None = "whole") -> TracedRequest:
    return TracedRequest(
        id=name,
        num_prompt_tokens=5,
        position=position,
        num_rows=1,
        source="suffix" if confidences else "none",
        confidences=list(confidences),
        chances=[],
        length=len(confidences),
        accepted=accepted,
        reason=reason,
    )


def steps_of(*parts: TracedRequest) -> list[TracedStep]:
    numbers = {"at": 0.0, "num_rows": 1, "seconds": 0.1, "propose_seconds": 0.0, "predicted_seconds": 0.0}
    rest = {"kv_cache_usage": 0.0, "num_waiting": 0, "num_preemptions": 0}
    return [TracedStep(requests=[each], **numbers, **rest) for each in parts]  # type: ignore[arg-type]


def request_with(*drafts: tuple[int, list[float]]) -> RecordedRequest:
    """Of each draft how many tokens were accepted, and its confidences."""
    position, parts = 0, []
    for accepted, confidences in drafts:
        parts.append(part("a", position, accepted, *confidences))
        position += accepted + 1
    (request,) = recorded_requests(steps_of(*parts))
    return request


def run(
    requests: list[RecordedRequest], times: Mapping[int, float], streams: int, **options: int
) -> list[SimulatedRun]:
    return list(simulate(times, requests, policies((1, 4), longest_draft=4), [streams], **options))


def test_a_recording_tells_what_a_draft_would_have_brought_at_every_place() -> None:
    request = request_with((2, [0.9, 0.8, 0.7]), (0, []), (1, [0.6]))
    assert (request.num_prompt_tokens, request.num_output_tokens) == (5, 6)
    assert request.draft_at(0) == ([0.9, 0.8, 0.7], 2)
    assert request.draft_at(1) == ([0.8, 0.7], 1)
    assert request.draft_at(2) == ([0.7], 0)
    assert request.draft_at(3) == ([], 0)
    assert request.draft_at(4) == ([0.6], 1)
    assert request.draft_at(5) == ([], 0)


def test_requests_without_drafts_or_without_their_beginning_are_left_out() -> None:
    steps = steps_of(
        part("reading", 0, 0, reason=None),
        part("reading", 0, 1, 0.5),
        part("late", 7, 1, 0.5),
        part("plain", 0, 0, reason="off"),
    )
    assert [request.num_output_tokens for request in recorded_requests(steps)] == [2]


def test_rows_that_cost_nothing_bring_what_was_accepted() -> None:
    """Five tokens in every step, for each of the streams."""
    always = request_with(*[(4, [0.9] * 4)] * 8)
    plain, one, four, adaptive = run([always], FREE, streams=3)
    assert plain.mean_draft_length == 0
    # Two tokens, two, and one where the recorded draft ends.
    assert one.tokens_per_second / plain.tokens_per_second == pytest.approx(5 / 3, rel=0.05)
    assert four.tokens_per_second / plain.tokens_per_second == pytest.approx(5, rel=0.1)
    assert adaptive.tokens_per_second == pytest.approx(four.tokens_per_second, rel=0.03)
    assert four.acceptance_rate == 1


def test_rows_that_cost_what_a_step_costs_are_not_verified() -> None:
    half = request_with(*[(1, [0.5] * 4)] * 16)
    plain, _, four, adaptive = run([half], STEEP, streams=4)
    assert four.tokens_per_second < 0.6 * plain.tokens_per_second
    assert adaptive.tokens_per_second > 0.98 * plain.tokens_per_second


def test_a_simulation_is_the_same_every_time() -> None:
    requests = [request_with(*[(n % 3, [0.7] * 3)] * 9) for n in range(4)]
    assert run(requests, FREE, 5) == run(requests, FREE, 5)


def test_at_every_load_priced_lengths_are_at_least_as_good_as_none_and_as_the_best_fixed_one() -> None:
    """The built-in recording on the built-in machine, at loads that this one cannot make."""
    from engine.bench.simulation_run import built_in_requests

    requests = built_in_requests()
    assert len(requests) > 50
    for streams in (1, 32, 256):
        chosen = policies((1, 3, 7), longest_draft=7)
        runs = list(simulate(step_times("h200-8b"), requests, chosen, [streams]))
        plain, adaptive = runs[0].tokens_per_second, runs[-1].tokens_per_second
        assert adaptive >= plain
        assert adaptive >= 0.97 * max(run.tokens_per_second for run in runs)
        if streams == 256:
            assert runs[-2].policy == "fixed 7"
            assert runs[-2].tokens_per_second < 0.95 * plain


@pytest.mark.parametrize("target_ms", [10.5, 12, 15])
def test_gaps_keep_a_target_that_plain_decoding_keeps(target_ms: float) -> None:
    rising = {1: 0.010, 8: 0.012, 64: 0.040, 1024: 1.0}
    requests = [request_with(*[(3, [0.9] * 4)] * 20) for _ in range(3)]
    for request in requests:
        request.num_prompt_tokens = 1
    chosen = policies((), longest_draft=8, itl_slo=target_ms / 1000)
    plain, adaptive = simulate(rising, requests, chosen, [1])
    assert plain.gap_p99 <= target_ms / 1000
    assert adaptive.gap_p99 <= target_ms / 1000
    free = list(simulate(rising, requests, policies((), longest_draft=8), [1]))[-1]
    assert free.gap_p99 > 0.0109, "without a target the steps are longer than the strictest"
    assert adaptive.tokens_per_second >= plain.tokens_per_second


def test_a_trace_of_priced_lengths_is_refused() -> None:
    """Nobody knows what would have become of the tokens that were not verified."""
    cut = replace(part("a", 0, 1, 0.9, 0.8, 0.7), length=1)
    with pytest.raises(ConfigError, match="of 3 tokens drafted for request a at token 0 1 were verified"):
        recorded_requests(steps_of(cut))


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(ConfigError, match="no drafted request"):
        run([], FREE, 1)


def test_the_machine_is_flat_and_then_steep() -> None:
    times = step_times("h200-8b")
    assert times[1] == times[128] == pytest.approx(0.00476, rel=0.01)
    assert times[4096] == pytest.approx(2 * times[2048])
