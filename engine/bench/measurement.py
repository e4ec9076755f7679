"""What single requests and chunks of them gave. Plain data, whoever measured it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

PHASES = ("schedule", "propose", "forward", "verify", "commit")


class BenchMode(StrEnum):
    """How requests are decoded. ``AS_SERVED`` is whatever a server does that cannot be told what to do."""

    PLAIN = "plain"
    SPECULATIVE = "speculative"
    AS_SERVED = "as served"


class DraftCounts(NamedTuple):
    """As in ``SpeculationStats``."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


class StepTimes(NamedTuple):
    """Time of the engine's steps. ``seconds`` has one entry for each of ``PHASES``."""

    num_steps: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One counted request.

    Attributes:
        output: its token ids, or its text where that is all there is to see.
        num_tokens: output tokens, an end token included where the measured side counts it.
        ttft: seconds from handing it over to its first token, in process to the end of the step with it.
        token_gaps: for each later token, in seconds, the time since the tokens before divided by the number of
            tokens that came together.
        num_cached_tokens: prompt tokens found in a prefix cache, as far as is told.
        num_steps: steps that brought it tokens; None if not told.
        drafts: None if not told.
        has_usage: False if ``num_tokens`` is the number of chunks, for want of a better.
        has_shared_gaps: True if chunks of several tokens did not say how many each had, and the tokens were
            shared out by the length of the text.
    """

    prompt_id: int
    output: tuple[int, ...] | str
    num_tokens: int
    ttft: float
    token_gaps: tuple[float, ...]
    num_cached_tokens: int = 0
    num_steps: int | None = None
    drafts: DraftCounts | None = None
    has_usage: bool = True
    has_shared_gaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """A chunk of prompts of one task, run once in one mode.

    Attributes:
        seconds: from the first submission to the last end.
        step_times: of the engine's steps meanwhile; None if not told.
    """

    task: str
    mode: BenchMode
    repeat: int
    seconds: float
    measurements: tuple[Measurement, ...]
    step_times: StepTimes | None = None
