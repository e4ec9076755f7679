"""Why drafts were as long as they were, and what that brought. Knows nothing of the drafts' tokens."""

from __future__ import annotations

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.step_stats import StepStats
from engine.types import DraftReason
from server.metric_buckets import PREDICTION_BUCKETS
from server.metric_registry import MetricRegistry


class LengthMetrics:
    """What the controller of draft lengths decided and expected."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._decisions = registry.counter_by(
            "reason", DraftReason, "draft_length_decisions", "Draft lengths chosen, by why they were not longer."
        )
        self._lengths = registry.histogram(
            "draft_length", "Tokens of a draft that were verified, 0 among them.", range(MAX_SPECULATIVE_TOKENS + 1)
        )
        self._expected = registry.counter(
            "spec_decode_expected_accepted_tokens", "Accepted tokens as they were expected when lengths were chosen."
        )
        self._prediction = registry.histogram(
            "step_time_prediction_ratio", "Time of a step / the time it was expected to take.", PREDICTION_BUCKETS
        )
        gauge = registry.late_gauge
        self._speedup = gauge(
            "speculation_speedup_ratio", "Tokens a second with drafts / without, over the last steps, as measured."
        )
        self._speedup_error = gauge("speculation_speedup_error", "Standard error of speculation_speedup_ratio.")
        self._calibration_error = gauge(
            "draft_calibration_error",
            "Mean distance of the chances given to drafted tokens from the share accepted, over the last tokens.",
        )

    def observe(self, stats: StepStats) -> None:
        """Add one step."""
        for reason, number in stats.decisions.items():
            self._decisions.inc(reason, number)
        for length, number in enumerate(stats.draft_lengths):
            for _ in range(number):
                self._lengths.observe(length)
        self._expected.inc(stats.expected_accepted_tokens)
        if stats.predicted_seconds:
            self._prediction.observe(stats.seconds / stats.predicted_seconds)
        if stats.speedup is not None:
            self._speedup.set(stats.speedup.ratio)
            self._speedup_error.set(stats.speedup.error)
        if stats.calibration_error is not None:
            self._calibration_error.set(stats.calibration_error)
