"""The real scheduler and controller around a machine and a text that are only recorded.

Knows how a table becomes time and a recorded draft becomes tokens. A token is right or wrong; what it says is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

from engine.bench.recorded_load import RecordedRequest
from engine.bench.steps import SilentText
from engine.core import EngineCore
from engine.params import SamplingParams, SpeculationParams
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import ScheduledBatch, Scheduler
from engine.sequence import Sequence
from engine.speculation.auto import AutoDrafter, Source
from engine.speculation.controller import DraftLengthController
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.types import Draft, Verdict

ControllerMaker = Callable[[StepTimes, Survival, Callable[[], float]], DraftLengthController]

_RIGHT, _WRONG = 1, 2
_BLOCK_SIZE = 16
_NAME = "recorded"


class VirtualClock:
    """Time that passes only where a step takes it."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


class SimulatedEngine:
    """An engine core in which a step takes what a table says, and a draft is as right as it was when recorded.

    Args:
        times: seconds by number of rows; the controller knows them too, as after a profile at the start.
        make_controller: from the times, the chances of tokens and the clock.
        longest_draft: of every request; 0 is plain decoding.
        num_streams: most requests in one step.
        num_kv_tokens: tokens that the key-value cache has room for.
    """

    def __init__(
        self,
        times: Mapping[int, float],
        make_controller: ControllerMaker,
        *,
        longest_draft: int,
        num_streams: int,
        num_kv_tokens: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.clock = VirtualClock()
        self._longest_draft = longest_draft
        self._text = _RecordedText()
        survival = Survival()
        self.core = EngineCore(
            scheduler=Scheduler(
                BlockManager(1 + num_kv_tokens // _BLOCK_SIZE, _BLOCK_SIZE, enable_prefix_caching=False),
                max_num_seqs=num_streams,
                max_num_batched_tokens=max_num_batched_tokens,
            ),
            controller=make_controller(StepTimes(times), survival, self.clock),
            drafter=AutoDrafter([Source(self._text)], survival, clock=self.clock),
            runner=_TimedRunner(StepTimes(times), self.clock),
            verifier=self._text,
            end_token_ids=frozenset(),
            now=self.clock,
        )

    def add(self, name: str, request: RecordedRequest) -> None:
        """Let a recorded request arrive."""
        self._text.requests[name] = request
        self.core.add(
            Sequence(
                name,
                [0] * request.num_prompt_tokens,
                SamplingParams(seed=0, temperature=0.0, max_tokens=request.num_output_tokens),
                text=SilentText(),
                speculation=SpeculationParams(),
                num_speculative_tokens=self._longest_draft,
            )
        )


class _TimedRunner:
    """Computes nothing, and takes its time for it."""

    def __init__(self, times: StepTimes, clock: VirtualClock) -> None:
        self._times = times
        self._clock = clock

    def forward(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> Any:
        num_rows = batch.num_rows + sum(len(draft.token_ids) for draft in drafts)
        self._clock.advance(self._times.predict(num_rows)[0])


class _RecordedText:
    """Drafter and verifier at once: the target says right tokens only, and drafts have them as far as they had."""

    def __init__(self) -> None:
        self.requests: dict[str, RecordedRequest] = {}

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        return [self._draft(entry.sequence, entry.max_draft_length) for entry in batch]

    def verify(self, batch: ScheduledBatch, drafts: Seq[Draft], logits: Any) -> list[Verdict]:
        return [_verdict(draft) if entry.samples else Verdict() for entry, draft in zip(batch, drafts, strict=True)]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self.requests.pop(sequence.request_id, None)

    def _draft(self, sequence: Sequence, longest: int) -> Draft:
        confidences, num_right = self.requests[sequence.request_id].draft_at(sequence.num_output_tokens)
        confidences = confidences[:longest]
        tokens = tuple(_RIGHT if place < num_right else _WRONG for place in range(len(confidences)))
        return Draft(tokens, tuple(confidences), _NAME)


def _verdict(draft: Draft) -> Verdict:
    num_right = next((n for n, token in enumerate(draft.token_ids) if token != _RIGHT), len(draft.token_ids))
    return Verdict((_RIGHT,) * (num_right + 1), num_right)
