"""What happened between two looks at ``/metrics``. Knows the metrics by name; draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.step_metrics import PHASES
from server.top_reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFigures:
    """One drafter's part: tokens proposed a second, and what became of them; None without a draft."""

    name: str
    proposed_per_second: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How a server does.

    Attributes:
        about: the labels of ``model_info``.
        is_up: whether its engine takes requests.
        acceptance_rate, mean_acceptance_length, share_from_drafts: between the two looks; None where nothing was
            drafted, or said.
        speedup, speedup_error: of drafts, as the server has measured it; None until it has.
        num_running, num_waiting, kv_cache_usage: at the second look.
        step_seconds: of one step; None without a step.
        phase_shares: of the time in steps; empty without a step.
        drafters: those that have ever drafted.
    """

    about: Mapping[str, str]
    is_up: bool
    tokens_per_second: float
    prompt_tokens_per_second: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    share_from_drafts: float | None
    speedup: float | None
    speedup_error: float | None
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    steps_per_second: float
    step_seconds: float | None
    phase_shares: Mapping[str, float]
    drafters: tuple[DrafterFigures, ...]


def figures_between(before: Reading, after: Reading) -> Figures:
    """Both of one server; if it was started anew in between, what it has done since counts."""
    grown = _Growth(before, after)
    generated, steps = grown.of("generation_tokens_total"), grown.of("steps_total")
    drafts, drafted = grown.of("spec_decode_drafts_total"), grown.of("spec_decode_draft_tokens_total")
    accepted = grown.of("spec_decode_accepted_tokens_total")
    phases = grown.by("step_seconds_total", "phase")
    in_steps = sum(phases.values())
    return Figures(
        about=after.labels("model_info"),
        is_up=bool(after.value("engine_up")),
        tokens_per_second=generated / grown.seconds,
        prompt_tokens_per_second=grown.of("prompt_tokens_total") / grown.seconds,
        acceptance_rate=_ratio(accepted, drafted),
        mean_acceptance_length=None if not drafts else 1 + accepted / drafts,
        share_from_drafts=_ratio(accepted, generated),
        speedup=after.value("speculation_speedup_ratio"),
        speedup_error=after.value("speculation_speedup_error"),
        num_running=int(after.value("requests_running") or 0),
        num_waiting=int(after.value("requests_waiting") or 0),
        kv_cache_usage=after.value("kv_cache_usage_ratio") or 0.0,
        steps_per_second=steps / grown.seconds,
        step_seconds=_ratio(in_steps, steps),
        phase_shares={phase: phases.get(phase, 0.0) / in_steps for phase in PHASES} if in_steps else {},
        drafters=_drafters(grown),
    )


def _drafters(grown: _Growth) -> tuple[DrafterFigures, ...]:
    drafts, drafted, accepted = (
        grown.by(f"spec_decode_{what}_by_drafter_total", "drafter")
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    )
    return tuple(
        DrafterFigures(
            name=name,
            proposed_per_second=drafted[name] / grown.seconds,
            acceptance_rate=_ratio(accepted[name], drafted[name]),
            mean_acceptance_length=1 + accepted[name] / drafts[name] if drafts[name] else None,
        )
        for name in sorted(drafts)
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class _Growth:
    """By how much counters have grown; one that has shrunk began anew."""

    def __init__(self, before: Reading, after: Reading) -> None:
        self._before = before
        self._after = after
        self.seconds = after.at - before.at

    def of(self, name: str) -> float:
        return _grown(self._before.value(name) or 0.0, self._after.value(name) or 0.0)

    def by(self, name: str, label: str) -> dict[str, float]:
        old = self._before.by(name, label)
        return {key: _grown(old.get(key, 0.0), value) for key, value in self._after.by(name, label).items()}


def _grown(old: float, new: float) -> float:
    return new - old if new >= old else new
