"""The best of several drafters, for each request by itself, and the others judged all the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest

from engine.params import SpeculationMode, SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.auto import AutoDrafter, Source
from engine.speculation.controller import PAUSED
from engine.speculation.draft_gate import DraftGate
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.types import Draft, Verdict
from tests.sequences import make_sequence

RIGHT, WRONG = 1, 2


class Constant:
    """Proposes the same tokens to everybody, and counts who asked."""

    def __init__(self, name: str, token: int, *confidences: float) -> None:
        self.token = token
        self.asked: list[list[str]] = []
        self.released: list[str] = []
        self._name = name
        self._confidences = confidences

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        self.asked.append([entry.sequence.request_id for entry in batch])
        return [
            Draft(
                (self.token,) * len(self._confidences[: entry.max_draft_length]),
                self._confidences[: entry.max_draft_length],
                self._name,
            )
            for entry in batch
        ]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.request_id)


class Time:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batch_of(*names: str, longest: int = 4, mode: SpeculationMode = SpeculationMode.AUTO) -> ScheduledBatch:
    sequences = [make_sequence(name, [1], num_speculative_tokens=4) for name in names]
    for sequence in sequences:
        sequence.speculation = SpeculationParams(mode)
        sequence.num_computed_tokens = 1
        sequence.append(7, frozenset())
    return ScheduledBatch([ScheduledSequence(sequence, 1, longest) for sequence in sequences])


def test_the_draft_of_which_most_should_be_accepted_is_taken() -> None:
    sure, long = Constant("suffix", RIGHT, 0.9), Constant("model", RIGHT, 0.6, 0.6, 0.6)
    drafter = AutoDrafter([Source(sure), Source(long)], Survival())
    assert [draft.source for draft in drafter.propose(batch_of("a"))] == ["model"]  # .6 + .36 + .216
    assert [draft.source for draft in drafter.propose(batch_of("a", longest=1))] == ["suffix"]


def test_who_promises_more_and_keeps_less_loses() -> None:
    """Both are judged by every step, whoever drafted it."""
    boaster, modest = Constant("suffix", WRONG, 0.95, 0.95), Constant("model", RIGHT, 0.4, 0.4)
    drafter = AutoDrafter([Source(boaster), Source(modest)], Survival())
    batch, taken = batch_of("a"), []
    for _ in range(40):
        drafts = drafter.propose(batch)
        taken.append(drafts[0].source)
        drafter.observe(batch, drafts, [Verdict((RIGHT,), 0)])
    assert taken[0] == "suffix"
    assert set(taken[20:]) == {"model"}


@pytest.mark.parametrize(
    ("mode", "asked"),
    [(SpeculationMode.AUTO, [1, 1]), (SpeculationMode.SUFFIX, [1, 0]), (SpeculationMode.MODEL, [0, 1])],
)
def test_a_request_may_name_its_drafter(mode: SpeculationMode, asked: list[int]) -> None:
    suffix, model = Constant("suffix", RIGHT, 0.5), Constant("model", RIGHT, 0.5)
    sources = [Source(suffix, SpeculationMode.SUFFIX), Source(model, SpeculationMode.MODEL)]
    AutoDrafter(sources, Survival()).propose(batch_of("a", mode=mode))
    assert [len(suffix.asked), len(model.asked)] == asked


def test_nobody_is_asked_where_no_draft_is_allowed() -> None:
    drafter = Constant("suffix", RIGHT, 0.5)
    auto = AutoDrafter([Source(drafter)], Survival())
    assert auto.propose(batch_of("a", "b", longest=0)) == [NO_DRAFT, NO_DRAFT]
    assert drafter.asked == []


def test_an_ended_request_is_forgotten_by_all() -> None:
    first, second = Constant("suffix", RIGHT, 0.5), Constant("model", RIGHT, 0.5)
    gate = DraftGate(StepTimes({1: 1.0, 8: 1.0}))
    auto = AutoDrafter([Source(first), Source(second, gate=gate)], Survival())
    batch = batch_of("a")
    auto.propose(batch)
    auto.release(batch.entries[0].sequence)
    assert first.released == second.released == ["a"]
    assert gate._worth_of == {}


class SlowDrafter(Constant):
    """A drafter whose every proposal takes so many seconds."""

    def __init__(self, time: Time, seconds: float, token: int, *confidences: float) -> None:
        super().__init__("model", token, *confidences)
        self._time = time
        self._seconds = seconds

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        self._time.now += self._seconds
        return super().propose(batch)


class Bench:
    """A slow drafter in an auto drafter, and steps around it of ten milliseconds."""

    def __init__(self, seconds: float, token: int, *others: Constant) -> None:
        self.time = Time()
        self.slow = SlowDrafter(self.time, seconds, token, *[0.9] * 4)
        self.gate = DraftGate(StepTimes({1: 0.010, 8: 0.011}), clock=self.time)
        sources = [*(Source(other) for other in others), Source(self.slow, gate=self.gate)]
        self.auto = AutoDrafter(sources, Survival(), clock=self.time)
        self.batch = batch_of("a")

    def run(self, seconds: float, *, until: Callable[[Draft], bool] = lambda draft: False) -> float:
        """Steps, each of which verifies all that is proposed; how long it took."""
        began = self.time.now
        while self.time.now - began < seconds:
            drafts = self.auto.propose(self.batch)
            tokens = drafts[0].token_ids
            num_right = next((n for n, token in enumerate(tokens) if token != RIGHT), len(tokens))
            self.auto.observe(self.batch, drafts, [Verdict((RIGHT,) * (num_right + 1), num_right)])
            self.time.now += 0.010
            if until(drafts[0]):
                break
        return self.time.now - began


def test_a_drafter_that_is_worth_its_time_is_asked_every_time() -> None:
    bench = Bench(0.005, RIGHT)
    bench.run(1.0)
    assert len(bench.slow.asked) == pytest.approx(1.0 / 0.015, abs=2)


@pytest.mark.parametrize("seconds", [0.002, 0.010, 0.050])
def test_a_bad_drafter_is_soon_asked_no_more_and_soon_again_when_it_is_good(seconds: float) -> None:
    bench = Bench(seconds, WRONG)
    assert bench.run(2.0, until=lambda draft: draft is PAUSED) < 2.0
    bench.run(2.0)
    asked_before = len(bench.slow.asked)
    bench.run(10.0)
    assert (len(bench.slow.asked) - asked_before) * seconds < 0.02 * 10.0 + 2 * seconds, "a trial now and then"
    bench.slow.token = RIGHT
    worth_it = seconds < 0.050
    assert (bench.run(5.0, until=lambda draft: len(draft.token_ids) == 4) < 5.0) or not worth_it
    asked_before = len(bench.slow.asked)
    bench.run(1.0)
    if worth_it:
        assert len(bench.slow.asked) - asked_before == pytest.approx(1.0 / (seconds + 0.010), abs=3)


def test_a_drafter_that_takes_longer_than_it_brings_is_not_asked() -> None:
    """Right to the end, and five steps' time for five steps' tokens."""
    bench = Bench(0.060, RIGHT)
    bench.run(3.0)
    asked_before = len(bench.slow.asked)
    bench.run(20.0)
    assert (len(bench.slow.asked) - asked_before) * 0.060 < 0.06 * 20.0


def test_who_has_a_good_draft_already_does_not_wait_for_another() -> None:
    free = Constant("suffix", RIGHT, *[0.95] * 4)
    bench = Bench(0.010, RIGHT, free)
    bench.run(2.0)
    asked_before = len(bench.slow.asked)
    bench.run(10.0)
    assert len(bench.slow.asked) - asked_before < 0.05 * len(free.asked)


def test_requests_are_told_apart() -> None:
    """The slow drafter is right for one of two requests; it is soon asked for that one alone."""
    time = Time()
    gate = DraftGate(StepTimes({1: 0.010, 16: 0.011}), clock=time)
    batch = batch_of("good", "bad")
    for _ in range(60):
        places = gate.choose(batch, [0, 1], [0.0, 0.0])
        asked = ScheduledBatch([batch.entries[place] for place in places])
        gate.observe(asked, [2.0 if place == 0 else 0.0 for place in places], 0.002)
        time.now += 0.012
    assert gate.choose(batch, [0, 1], [0.0, 0.0]) == [0]


@pytest.mark.parametrize("num_streams", [1, 4, 8, 16])
def test_a_drafter_that_is_right_now_and_then_and_does_not_pay_stays_rare(num_streams: int) -> None:
    """Two of five first tokens right, and a draft takes nearly as long as a step."""
    time, rng = Time(), random.Random(1)
    slow = SlowDrafter(time, 0.012, RIGHT, 0.4, 0.4)
    gate = DraftGate(StepTimes({1: 0.014, 64: 0.014}), clock=time)
    auto = AutoDrafter([Source(slow, gate=gate)], Survival(), clock=time)
    batch, num_tokens = batch_of(*map(str, range(num_streams))), 0
    for _ in range(1500):
        drafts = auto.propose(batch)
        verdicts = []
        for proposed in drafts:
            num_right = 0
            while num_right < len(proposed.token_ids) and rng.random() < 0.4:
                num_right += 1
            verdicts.append(Verdict((*[RIGHT] * num_right, WRONG), num_right))
        auto.observe(batch, drafts, verdicts)
        num_tokens += sum(len(verdict.token_ids) for verdict in verdicts)
        time.now += 0.014
    plain = 1500 * num_streams / (1500 * 0.014)
    assert num_tokens / time.now > 0.97 * plain


def test_a_drafter_that_would_miss_a_target_is_not_asked() -> None:
    bench = Bench(0.010, RIGHT)
    bench.run(1.0)
    assert bench.slow.asked
    bench.batch.entries[0].sequence.speculation = SpeculationParams(itl_slo_ms=15)
    asked_before = len(bench.slow.asked)
    bench.run(5.0)
    assert len(bench.slow.asked) == asked_before


def test_a_sequence_that_waits_for_its_first_token_says_nothing_of_a_drafter() -> None:
    bench = Bench(0.010, RIGHT)
    new = make_sequence("new", [1], num_speculative_tokens=4)
    batch = ScheduledBatch([ScheduledSequence(new, 1, 4)])
    drafts = bench.auto.propose(batch)
    bench.auto.observe(batch, drafts, [Verdict((RIGHT,), 0)])
    assert bench.slow.asked == []
    assert bench.gate._worth is None
