"""The second page: what do drafts bring, from whom, how long are they and why, and what do they cost?"""

from __future__ import annotations

from deploy.dashboards.costs import COSTS
from deploy.dashboards.panel import Dashboard, Panel, Query, Row
from deploy.dashboards.queries import gauge, rate, ratio

_ACCEPTED, _DRAFTED, _DRAFTS = (f"spec_decode_{what}_total" for what in ("accepted_tokens", "draft_tokens", "drafts"))
_RECOVERED, _BONUS = "spec_decode_recovered_tokens_total", "spec_decode_bonus_tokens_total"
_ACCEPTED_AT, _DRAFTED_AT = (f"spec_decode_{what}_tokens_per_position_total" for what in ("accepted", "draft"))

_ACCEPTANCE_RATE = ratio(_ACCEPTED, _DRAFTED)
_ACCEPTANCE_LENGTH = f"1 + {ratio(_ACCEPTED, _DRAFTS)}"
_SPEEDUP, _SPEEDUP_ERROR = gauge("speculation_speedup_ratio"), gauge("speculation_speedup_error")
_FROM_DRAFTS = ratio(_ACCEPTED, "generation_tokens_total")
_PER_FORWARD = ratio("generation_tokens_total", "steps_total")

_NOW = Row(
    "Now",
    (
        Panel(
            title="Acceptance rate",
            text="Accepted tokens / proposed tokens.",
            unit="percentunit",
            kind="stat",
            width=4,
            most=1,
            queries=(Query(_ACCEPTANCE_RATE),),
        ),
        Panel(
            title="Acceptance length",
            text="1 + accepted tokens / drafts: the tokens that a step with a draft brings its request.",
            unit="none",
            kind="stat",
            width=4,
            queries=(Query(_ACCEPTANCE_LENGTH),),
        ),
        Panel(
            title="Output from drafts",
            text="Share of the output that was drafted.",
            unit="percentunit",
            kind="stat",
            width=4,
            most=1,
            queries=(Query(_FROM_DRAFTS),),
        ),
        Panel(
            title="Tokens a forward pass",
            text="Over the whole batch, plain and drafted requests together.",
            unit="none",
            kind="stat",
            width=4,
            queries=(Query(_PER_FORWARD),),
        ),
        Panel(
            title="Proposed a second",
            text="Drafted tokens that the target verified.",
            unit="none",
            kind="stat",
            width=4,
            queries=(Query(rate(_DRAFTED)),),
        ),
        Panel(
            title="Speed-up",
            text="Measured while serving, against steps that run plain: above 1 speculation pays.",
            unit="none",
            kind="stat",
            width=4,
            limits=(1, 0.97),
            queries=(Query(f"min({_SPEEDUP})"),),
        ),
    ),
)

_GUESSES = Row(
    "How good the guesses are",
    (
        Panel(
            title="Acceptance rate",
            text="Accepted tokens / proposed tokens, by server.",
            unit="percentunit",
            most=1,
            queries=(Query(ratio(_ACCEPTED, _DRAFTED, by="instance, model_name"), "{{instance}} {{model_name}}"),),
        ),
        Panel(
            title="Mean acceptance length",
            text="Tokens that a step with a draft brings its request, the target's own one included.",
            unit="none",
            queries=(
                Query(f"1 + {ratio(_ACCEPTED, _DRAFTS, by='instance, model_name')}", "{{instance}} {{model_name}}"),
            ),
        ),
        Panel(
            title="Accepted, of the tokens proposed at a place",
            text="By place in the draft, from 0. A place counts only if the ones before it were right.",
            unit="percentunit",
            most=1,
            queries=(Query(ratio(_ACCEPTED_AT, _DRAFTED_AT, by="position"), "{{position}}"),),
        ),
        Panel(
            title="Accepted, of all drafts",
            text="Share of all drafts that were right up to a place and at it, whether or not they were that long.",
            unit="percentunit",
            kind="bargauge",
            most=1,
            queries=(
                Query(f"{rate(_ACCEPTED_AT, by='position')} / on() group_left() ({rate(_DRAFTS)} > 0)", "{{position}}"),
            ),
        ),
        Panel(
            title="Acceptance rate by drafter",
            text="Who guesses how well. A drafter appears with its first draft.",
            unit="percentunit",
            most=1,
            queries=(
                Query(
                    ratio(
                        "spec_decode_accepted_tokens_by_drafter_total",
                        "spec_decode_draft_tokens_by_drafter_total",
                        by="drafter",
                    ),
                    "{{drafter}}",
                ),
            ),
        ),
        Panel(
            title="Acceptance length by drafter",
            text="Tokens that a draft of each drafter brings its request, the target's own one included.",
            unit="none",
            queries=(
                Query(
                    "1 + "
                    + ratio(
                        "spec_decode_accepted_tokens_by_drafter_total",
                        "spec_decode_drafts_by_drafter_total",
                        by="drafter",
                    ),
                    "{{drafter}}",
                ),
            ),
        ),
    ),
)

_OUTPUT = Row(
    "What becomes of them",
    (
        Panel(
            title="Output by origin",
            text=(
                "Tokens a second. Accepted: drafted and right. Recovered: the target's token where a draft missed. "
                "Bonus: its token behind a draft without a miss. Plain: decoded without a draft."
            ),
            unit="none",
            is_stacked=True,
            queries=(
                Query(rate(_ACCEPTED), "accepted"),
                Query(rate(_RECOVERED), "recovered"),
                Query(rate(_BONUS), "bonus"),
                Query(
                    f"{rate('generation_tokens_total')} - {rate(_ACCEPTED)} - {rate(_RECOVERED)} - {rate(_BONUS)}",
                    "plain",
                ),
            ),
        ),
        Panel(
            title="Proposed tokens a second",
            text="What was accepted and what was dropped.",
            unit="none",
            is_stacked=True,
            queries=(
                Query(rate(_ACCEPTED), "accepted"),
                Query(f"{rate(_DRAFTED)} - {rate(_ACCEPTED)}", "rejected"),
            ),
        ),
        Panel(
            title="Share of the output that was drafted",
            text="Accepted tokens / output tokens.",
            unit="percentunit",
            most=1,
            queries=(Query(ratio(_ACCEPTED, "generation_tokens_total", by="instance, model_name"), "{{instance}}"),),
        ),
        Panel(
            title="Proposed tokens a second, by drafter",
            text="Who drafts how much.",
            unit="none",
            is_stacked=True,
            queries=(Query(rate("spec_decode_draft_tokens_by_drafter_total", by="drafter"), "{{drafter}}"),),
        ),
    ),
)

_LENGTHS = Row(
    "How long drafts are, and why",
    (
        Panel(
            title="Mean draft length",
            text="Tokens proposed in a draft; steps without a draft are not counted.",
            unit="none",
            queries=(Query(ratio(_DRAFTED, _DRAFTS), "tokens"),),
        ),
        Panel(
            title="Drafts that reach a length",
            text="Share of drafts with a token at each place, from 0: all have one at 0, few have one at the end.",
            unit="percentunit",
            kind="bargauge",
            most=1,
            queries=(
                Query(f"{rate(_DRAFTED_AT, by='position')} / on() group_left() ({rate(_DRAFTS)} > 0)", "{{position}}"),
            ),
        ),
        Panel(
            title="Why a length was chosen",
            text="Decisions a second, by the reason that limited the draft.",
            unit="none",
            is_stacked=True,
            queries=(Query(rate("draft_length_decisions_total", by="reason"), "{{reason}}"),),
        ),
        Panel(
            title="Chosen lengths",
            text="How often how many tokens of a draft were verified, 0 among them.",
            unit="none",
            kind="heatmap",
            queries=(Query(rate("draft_length_bucket", by="le"), "{{le}}"),),
        ),
        Panel(
            title="Measured speed-up",
            text="Against steps that run plain, by server, with its standard error either way. Below 1 drafts cost.",
            unit="none",
            queries=(
                Query(_SPEEDUP, "{{instance}}"),
                Query(f"{_SPEEDUP} - {_SPEEDUP_ERROR}", "{{instance}}, low"),
                Query(f"{_SPEEDUP} + {_SPEEDUP_ERROR}", "{{instance}}, high"),
            ),
        ),
        Panel(
            title="Expected and accepted",
            text="Tokens accepted / tokens expected to be: at 1 the chances given to drafts are right on the whole.",
            unit="none",
            queries=(Query(ratio(_ACCEPTED, "spec_decode_expected_accepted_tokens_total"), "accepted / expected"),),
        ),
        Panel(
            title="Error of the chances",
            text="Mean distance of the chance given to a drafted token from the share accepted, by server.",
            unit="percentunit",
            queries=(Query(gauge("draft_calibration_error"), "{{instance}}"),),
        ),
    ),
)

SPECULATION = Dashboard(
    uid="draftahead-speculation",
    title="Draftahead: speculation",
    text="What drafts bring, from whom, how long they are and why, and what they cost.",
    rows=(_NOW, _GUESSES, _OUTPUT, _LENGTHS, COSTS),
)
