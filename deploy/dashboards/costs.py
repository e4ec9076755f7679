"""What a step costs: a row of the second page."""

from __future__ import annotations

from deploy.dashboards.panel import Panel, Query, Row
from deploy.dashboards.queries import mean, quantile, rate

_DRAFTED = "spec_decode_draft_tokens_total"

COSTS = Row(
    "What a step costs",
    (
        Panel(
            title="Time of a step, by phase",
            text="Mean seconds a forward pass: schedule, propose (the drafter), forward (the target), verify, commit.",
            unit="s",
            is_stacked=True,
            queries=(
                Query(
                    f"{rate('step_seconds_total', by='phase')} / on() group_left() ({rate('steps_total')} > 0)",
                    "{{phase}}",
                ),
            ),
        ),
        Panel(
            title="Measured / predicted time",
            text="Of a step, median and 95th percentile: how well rows are priced.",
            unit="none",
            queries=(
                Query(quantile(0.5, "step_time_prediction_ratio"), "p50"),
                Query(quantile(0.95, "step_time_prediction_ratio"), "p95"),
            ),
        ),
        Panel(
            title="Busy share, by phase",
            text="Seconds of steps in a second. All together near 1 is an engine that never waits for work.",
            unit="percentunit",
            is_stacked=True,
            queries=(Query(rate("step_seconds_total", by="phase"), "{{phase}}"),),
        ),
        Panel(
            title="Rows a forward pass",
            text="Mean rows, and how many of them were drafted.",
            unit="none",
            queries=(
                Query(mean("step_rows"), "rows"),
                Query(f"{rate(_DRAFTED)} / ({rate('steps_total')} > 0)", "of them drafted"),
            ),
        ),
        Panel(
            title="Rows a forward pass, all of them",
            text="How often a pass had how many rows.",
            unit="none",
            kind="heatmap",
            queries=(Query(rate("step_rows_bucket", by="le"), "{{le}}"),),
        ),
    ),
)
