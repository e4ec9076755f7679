"""Plain decoding, fixed draft lengths and priced ones, side by side on a machine that is only a table.

The real scheduler and the real controller run; time is what the table says, so a run is the same every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import quantiles

from engine.bench.recorded_load import RecordedRequest
from engine.bench.simulated_engine import ControllerMaker, SimulatedEngine
from engine.errors import ConfigError
from engine.speculation.controller import FixedDraftLength
from engine.speculation.goodput import GoodputController
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival

# Requests that end, for each stream, before a run is over; all streams are kept busy until then.
_ROUNDS = 3
# Rows of a step for each stream, so that the longest fixed drafts find room, and the least for prompts.
_ROWS_PER_STREAM, _LEAST_ROWS = 8, 512


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to choose draft lengths."""

    name: str
    longest_draft: int
    make_controller: ControllerMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What one policy reached with so many streams.

    Attributes:
        tokens_per_second: output tokens of all streams together, in simulated time.
        mean_draft_length: tokens verified a step and stream.
        acceptance_rate: accepted / drafted.
        gap_p50, gap_p99: seconds between two outputs of a request.
    """

    num_streams: int
    policy: str
    tokens_per_second: float
    mean_draft_length: float
    acceptance_rate: float
    gap_p50: float
    gap_p99: float


def policies(fixed: Seq[int], *, longest_draft: int, itl_slo: float | None = None) -> list[Policy]:
    """Plain decoding first, then the fixed lengths, then the controller."""

    def fixed_length(*_: object) -> FixedDraftLength:
        return FixedDraftLength()

    def adaptive(times: StepTimes, survival: Survival, clock: Callable[[], float]) -> GoodputController:
        return GoodputController(times, survival, itl_slo=itl_slo, clock=clock)

    return [
        Policy("plain", 0, fixed_length),
        *(Policy(f"fixed {length}", length, fixed_length) for length in fixed),
        Policy("adaptive", longest_draft, adaptive),
    ]


def simulate(
    times: Mapping[int, float],
    requests: Seq[RecordedRequest],
    chosen: Seq[Policy],
    stream_counts: Seq[int],
    *,
    seed: int = 0,
) -> Iterator[SimulatedRun]:
    """Each policy with each number of streams, the same requests in the same order.

    Raises:
        ConfigError: nothing was recorded.
    """
    if not requests:
        raise ConfigError("the trace has no drafted request from its first token on; record one with fixed lengths")
    for num_streams in stream_counts:
        for policy in chosen:
            yield _Run(times, requests, policy, num_streams, seed).result()


class _Run:
    """One policy with one number of streams."""

    def __init__(
        self,
        times: Mapping[int, float],
        requests: Seq[RecordedRequest],
        policy: Policy,
        num_streams: int,
        seed: int,
    ) -> None:
        longest = max(request.num_prompt_tokens + request.num_output_tokens for request in requests)
        self._policy = policy
        self._num_streams = num_streams
        self._engine = SimulatedEngine(
            times,
            policy.make_controller,
            longest_draft=policy.longest_draft,
            num_streams=num_streams,
            num_kv_tokens=2 * num_streams * (longest + 16),
            max_num_batched_tokens=max(_LEAST_ROWS, _ROWS_PER_STREAM * num_streams),
        )
        self._arrivals = _arrivals(requests, seed)
        self._last_output: dict[str, float] = {}
        self._gaps: list[float] = []

    def result(self) -> SimulatedRun:
        core, clock = self._engine.core, self._engine.clock
        num_tokens = num_drafted = num_accepted = num_shares = num_finished = 0
        for _ in range(self._num_streams):
            self._engine.add(*next(self._arrivals))
        while num_finished < _ROUNDS * self._num_streams:
            step = core.step()
            stats = step.stats
            num_tokens += stats.num_generated_tokens
            num_drafted += stats.num_draft_tokens
            num_accepted += stats.num_accepted_tokens
            num_shares += sum(stats.draft_lengths)
            for output in step.outputs:
                self._note(output.request_id, clock())
                if output.finish_reason is not None:
                    num_finished += 1
                    del self._last_output[output.request_id]
                    self._engine.add(*next(self._arrivals))
        cuts = quantiles(self._gaps, n=100, method="inclusive") if len(self._gaps) > 1 else [0.0] * 99
        return SimulatedRun(
            num_streams=self._num_streams,
            policy=self._policy.name,
            tokens_per_second=num_tokens / clock(),
            mean_draft_length=num_drafted / num_shares,
            acceptance_rate=num_accepted / num_drafted if num_drafted else 0.0,
            gap_p50=cuts[49],
            gap_p99=cuts[98],
        )

    def _note(self, name: str, now: float) -> None:
        if name in self._last_output:
            self._gaps.append(now - self._last_output[name])
        self._last_output[name] = now


def _arrivals(requests: Seq[RecordedRequest], seed: int) -> Iterator[tuple[str, RecordedRequest]]:
    """The recorded requests over and over, each time in another order."""
    order = random.Random(seed)
    number = 0
    while True:
        for request in order.sample(requests, len(requests)):
            yield str(number), request
            number += 1
