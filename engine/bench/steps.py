"""What one step costs, by the number of rows: so many streams, or one stream that verifies a draft.

Knows how steps are provoked and timed. Refuses to know models, files and how figures are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from statistics import median

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.params import SamplingParams, SpeculationMode, SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.step_stats import StepStats
from engine.types import Draft, Verdict

_NUM_PROMPT_TOKENS = 64
_NUM_WARM_UP_STEPS = 3
_PHASES = ("schedule", "propose", "forward", "verify", "commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Medians over some steps.

    Attributes:
        num_rows: rows of the forward.
        is_verifying: one stream's last token and its draft, and not a row of each of many streams.
        num_context_tokens: tokens whose keys and values the forward reads, in all sequences together.
        seconds, forward_seconds: of the whole step, and of its forward.
    """

    num_rows: int
    is_verifying: bool
    num_context_tokens: float
    seconds: float
    forward_seconds: float


class BlindDrafter:
    """Drafts as long as it may, whatever the text: there is always something to verify, and nothing is learnt."""

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        lengths = [entry.max_draft_length for entry in batch]
        return [Draft(tuple(range(length)), (0.5,) * length, "blind") for length in lengths]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass


def measure_steps(
    core: EngineCore, *, vocab_size: int, row_counts: Seq[int], num_steps: int, temperature: float
) -> Iterator[StepCost]:
    """Time steps of each number of rows, first as streams and then as a draft of one, where a draft may be so long.

    Args:
        core: with a ``BlindDrafter``, prefix caching off, and nothing to do.
        num_steps: timed steps of each kind.

    Raises:
        ConfigError: the scheduler allows no step of that many rows.
    """
    names = count()
    for num_rows in row_counts:
        is_draft = 1 < num_rows <= MAX_SPECULATIVE_TOKENS + 1
        for is_verifying in (False, True) if is_draft else (False,):
            streams = [
                _stream(str(next(names)), num_rows if is_verifying else 1, vocab_size, num_steps, temperature)
                for _ in range(1 if is_verifying else num_rows)
            ]
            yield _time(core, streams, num_rows, is_verifying, num_steps)


def _time(core: EngineCore, streams: Seq[Sequence], num_rows: int, is_verifying: bool, num_steps: int) -> StepCost:
    for stream in streams:
        core.add(stream)
    seen: list[tuple[StepStats, int]] = []
    while len(seen) < _NUM_WARM_UP_STEPS + num_steps:
        num_context_tokens = sum(len(stream.token_ids) for stream in streams)
        stats = core.step().stats
        if stats.num_rows == num_rows and not stats.num_prompt_tokens:
            seen.append((stats, num_context_tokens))
        if not core.has_unfinished:
            raise ConfigError(f"no step had {num_rows} rows; max_num_seqs and max_num_batched_tokens must allow them")
    for stream in streams:
        core.abort(stream.request_id)
    counted = seen[_NUM_WARM_UP_STEPS:]
    return StepCost(
        num_rows=num_rows,
        is_verifying=is_verifying,
        num_context_tokens=median(num_tokens for _, num_tokens in counted),
        seconds=median(sum(getattr(stats, f"{phase}_seconds") for phase in _PHASES) for stats, _ in counted),
        forward_seconds=median(stats.forward_seconds for stats, _ in counted),
    )


def _stream(name: str, num_rows: int, vocab_size: int, num_steps: int, temperature: float) -> Sequence:
    # Should every draft be accepted, it must still last.
    max_tokens = (num_steps + 2 * _NUM_WARM_UP_STEPS) * num_rows + _NUM_PROMPT_TOKENS
    seed = int(name)
    return Sequence(
        name,
        [(seed * 7919 + i * 104729) % vocab_size for i in range(_NUM_PROMPT_TOKENS)],
        SamplingParams(seed=seed, temperature=temperature, max_tokens=max_tokens, ignore_eos=True),
        text=SilentText(),
        speculation=SpeculationParams(SpeculationMode.AUTO),
        num_speculative_tokens=num_rows - 1,
    )


class SilentText:
    """A text that nobody reads."""

    def append(self, token_id: int, *, check_stop: bool = True, is_last: bool = False) -> str | None:
        return None

    def take(self, *, final: bool = False) -> str:
        return ""
