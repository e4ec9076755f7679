"""Draft lengths by price: the best of all choices, none where none pays, and back again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.params import SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.speculation.goodput import GoodputController
from engine.speculation.step_times import StepTimes
from engine.speculation.survival import Survival
from engine.step_stats import StepStats
from engine.types import Draft, DraftDecision, DraftReason, Verdict
from tests.sequences import make_sequence

FLAT = {1: 1.0, 64: 1.0}
STEEP = {1: 1.0, 64: 64.0}


def batch_of(number: int, *, num_tokens: int = 1) -> ScheduledBatch:
    entries = []
    for place in range(number):
        sequence = make_sequence(str(place), [1] * num_tokens, num_speculative_tokens=8)
        entries.append(ScheduledSequence(sequence, num_tokens=num_tokens, max_draft_length=8))
    return ScheduledBatch(entries)


def draft(*confidences: float) -> Draft:
    return Draft(tuple(range(len(confidences))), confidences, "suffix")


def controller_with(times: StepTimes, *, survival: Survival | None = None, **options: Any) -> GoodputController:
    return GoodputController(times, survival or Survival(), **({"clock": lambda: 0.0} | options))


def lengths(decisions: list[DraftDecision]) -> list[int]:
    for decision in decisions:
        assert decision.draft.token_ids == decision.proposed.token_ids[: decision.length]
        assert decision.draft.probabilities == decision.proposed.probabilities[: decision.length]
    return [decision.length for decision in decisions]


def reasons(decisions: list[DraftDecision]) -> list[DraftReason | None]:
    return [decision.reason for decision in decisions]


def step_of(
    controller: GoodputController, batch: ScheduledBatch, drafts: list[Draft], *, accepted: int = 0, **stats: Any
) -> StepStats:
    """One step, of which the controller is told as the core does."""
    decisions = controller.trim(batch, drafts)
    num_drafted = sum(lengths(decisions))
    verdicts = [Verdict((0,) * (accepted + 1), min(accepted, decision.length)) for decision in decisions]
    account = StepStats(
        **{
            "num_rows": batch.num_rows + num_drafted,
            "num_draft_tokens": num_drafted,
            "num_generated_tokens": sum(verdict.num_accepted + 1 for verdict in verdicts),
            "forward_seconds": 1.0,
        }
        | stats
    )
    controller.observe(batch, decisions, verdicts, account)
    return account


def test_rows_that_cost_nothing_are_all_taken() -> None:
    drafts = [draft(0.5, 0.1), draft(0.9)]
    assert lengths(controller_with(StepTimes(FLAT)).trim(batch_of(2), drafts)) == [2, 1]


def test_rows_that_cost_what_a_step_costs_are_not() -> None:
    assert lengths(controller_with(StepTimes(STEEP)).trim(batch_of(2), [draft(0.9, 0.9), draft(0.9)])) == [0, 0]


def test_without_a_price_everything_is_verified() -> None:
    assert lengths(controller_with(StepTimes()).trim(batch_of(1), [draft(0.1, 0.1)])) == [2]


def test_the_surest_tokens_of_all_requests_come_first() -> None:
    controller = controller_with(StepTimes({1: 1.0, 6: 1.0, 8: 30.0}))
    assert lengths(controller.trim(batch_of(3), [draft(0.9, 0.3), draft(0.2), draft(0.8, 0.9)])) == [1, 0, 2]


def test_beside_a_long_prompt_rows_are_cheap() -> None:
    times = StepTimes({1: 1.0, 2: 1.9, 64: 30.0, 128: 62.0})
    entries = [*batch_of(1), *batch_of(1, num_tokens=64)]
    drafts = [draft(0.7), draft()]
    assert lengths(controller_with(times).trim(batch_of(1), drafts[:1])) == [0]
    assert lengths(controller_with(times).trim(ScheduledBatch(entries), drafts)) == [1, 0]


@given(
    st.lists(st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), max_size=3), min_size=1, max_size=3),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
)
def test_no_other_lengths_bring_more(confidences: list[list[float]], seconds: list[float]) -> None:
    times = StepTimes(dict(zip((1, 4, 12), sorted(seconds), strict=True)))
    drafts = [draft(*each) for each in confidences]
    batch = batch_of(len(drafts))
    prices = times.predict(len(drafts), sum(map(len, confidences)))

    def goodput(chosen: tuple[int, ...]) -> float:
        gain = float(len(drafts))
        for each, length in zip(confidences, chosen, strict=True):
            survival = 1.0
            for confidence in each[:length]:
                survival *= confidence
                gain += survival
        return gain / prices[sum(chosen)]

    chosen = tuple(lengths(controller_with(times).trim(batch, drafts)))
    best = max(map(goodput, itertools.product(*(range(len(each) + 1) for each in confidences))))
    assert goodput(chosen) == pytest.approx(best)


def test_a_bad_drafter_is_dropped_and_taken_back() -> None:
    """A proposal that is not verified is judged all the same, by the token that the target says."""
    survival = Survival()
    controller = controller_with(StepTimes({1: 1.0, 2: 1.5, 8: 4.5}), survival=survival)
    batch, history = batch_of(1), []
    proposed = draft(0.9, 0.9, 0.9, 0.9)
    for step in range(400):
        (decision,) = controller.trim(batch, [proposed])
        said = [9] if step < 200 else proposed.token_ids[: decision.length + 1]
        survival.observe(batch.entries[0].sequence, proposed, said)
        history.append(decision.length)
    assert history[0] == 3
    assert not any(history[30:200])
    assert min(history[260:]) >= 3


def test_reasons_are_told() -> None:
    cheap, steep = controller_with(StepTimes(FLAT)), controller_with(StepTimes(STEEP))
    drafts = [draft(0.9, 0.9), draft()]
    assert reasons(cheap.trim(batch_of(2), drafts)) == [DraftReason.WHOLE, DraftReason.NO_GUESS]
    assert reasons(steep.trim(batch_of(2), drafts)) == [DraftReason.PRICE, DraftReason.NO_GUESS]


RISING = {1: 1.0, 4: 1.2, 8: 1.6}


@pytest.mark.parametrize(("target", "length"), [(None, 7), (1.6, 7), (1.3, 4), (1.2, 3), (1.05, 0), (0.5, 0)])
@pytest.mark.parametrize("is_the_requests", [False, True])
def test_no_step_is_longer_than_a_target(target: float | None, length: int, is_the_requests: bool) -> None:
    controller = controller_with(StepTimes(RISING), itl_slo=100.0 if is_the_requests and target else target)
    batch = batch_of(1)
    if is_the_requests and target:
        batch.entries[0].sequence.speculation = SpeculationParams(itl_slo_ms=target * 1000)
    decisions = controller.trim(batch, [draft(*[0.99] * 7)])
    assert lengths(decisions) == [length]
    assert reasons(decisions) == [DraftReason.WHOLE if length == 7 else DraftReason.LATENCY]


def test_the_strictest_request_of_a_step_counts() -> None:
    batch = batch_of(2)
    batch.entries[1].sequence.speculation = SpeculationParams(itl_slo_ms=1210.0)
    decisions = controller_with(StepTimes(RISING)).trim(batch, [draft(*[0.99] * 6), draft()])
    assert lengths(decisions) == [2, 0]


def test_steps_that_vary_keep_further_from_a_target() -> None:
    times = StepTimes(RISING)
    for step in range(200):
        times.observe(4, 1.2 * (1.1 if step % 2 else 0.9))
    (length,) = lengths(controller_with(times, itl_slo=1.5).trim(batch_of(1), [draft(*[0.99] * 7)]))
    assert (
        length
        <= 2
        < lengths(controller_with(StepTimes(RISING), itl_slo=1.5).trim(batch_of(1), [draft(*[0.99] * 7)]))[0]
    )


def test_now_and_then_a_step_is_plain_and_the_speed_up_is_told() -> None:
    controller = controller_with(StepTimes(FLAT))
    batch = batch_of(2)
    sequences = [entry.sequence for entry in batch]
    plain, last = 0, StepStats()
    for _ in range(700):
        limits = controller.plan(sequences, max_rows=100)
        if limits[0].reason is DraftReason.PLAIN:
            plain += 1
            assert [limit.length for limit in limits] == [0, 0]
            for entry in batch:
                entry.max_draft_length = 0
            last = step_of(controller, batch, [draft(), draft()], forward_seconds=1.0)
        else:
            for entry in batch:
                entry.max_draft_length = 8
            last = step_of(controller, batch, [draft(0.9, 0.9)] * 2, accepted=2, forward_seconds=1.5)
    assert plain == 700 // 65
    assert last.speedup is not None
    assert last.speedup.ratio == pytest.approx(2.0)
    assert last.speedup.error == pytest.approx(0.0, abs=1e-6)


def test_steps_without_a_guess_stand_in_for_plain_ones() -> None:
    controller = controller_with(StepTimes(FLAT))
    batch = batch_of(1)
    for step in range(400):
        (limit,) = controller.plan([batch.entries[0].sequence], max_rows=100)
        assert limit.length
        step_of(controller, batch, [draft(0.9) if step % 2 else draft()], accepted=1)


def test_a_request_that_wants_no_draft_is_no_plain_step() -> None:
    controller = controller_with(StepTimes(FLAT))
    off = make_sequence("off", [1])
    assert {controller.plan([off], max_rows=9)[0].reason for _ in range(200)} == {DraftReason.OFF}


def test_what_was_expected_is_told() -> None:
    controller = controller_with(StepTimes({1: 1.0, 4: 1.3}))
    stats = step_of(controller, batch_of(1), [draft(0.5, 0.5)], accepted=1)
    assert stats.predicted_seconds == pytest.approx(1.2)
    assert stats.expected_accepted_tokens == pytest.approx(0.75)
    assert stats.calibration_error == pytest.approx((0.5 + 0.25) / 2, rel=0.01)


def test_steps_of_requests_that_want_no_draft_tell_nothing_of_drafts() -> None:
    controller, last = controller_with(StepTimes(FLAT)), StepStats()
    drafted, off = batch_of(1), batch_of(1)
    off.entries[0].max_draft_length, off.entries[0].limited_by = 0, DraftReason.OFF
    for step in range(200):
        if step % 2:
            last = step_of(controller, off, [draft()])
        else:
            last = step_of(controller, drafted, [draft(0.9, 0.9)], accepted=2)
    assert last.speedup is not None
    assert last.speedup.ratio == pytest.approx(3.0)


def test_beside_a_prompt_not_every_step_is_plain() -> None:
    """A plain step is due and cannot be compared: the next one is drafted."""
    controller = controller_with(StepTimes(FLAT))
    decoding = batch_of(1)
    for _ in range(64):
        step_of(controller, decoding, [draft(0.9)], accepted=1)
    reading = ScheduledSequence(make_sequence("r", [1] * 99), num_tokens=50)
    mixed, plain = ScheduledBatch([*decoding, reading]), 0
    for _ in range(40):
        limits = controller.plan([decoding.entries[0].sequence], max_rows=99)
        decoding.entries[0].max_draft_length = limits[0].length
        plain += limits[0].reason is DraftReason.PLAIN
        step_of(controller, mixed, [draft(), draft()])
    assert plain == 1


def test_drafting_time_counts_against_a_target() -> None:
    now = [0.0]
    controller = controller_with(StepTimes(RISING), itl_slo=1.6, clock=lambda: now[0])
    batch = batch_of(1)
    controller.plan([batch.entries[0].sequence], max_rows=99)
    now[0] += 0.4
    assert lengths(controller.trim(batch, [draft(*[0.99] * 7)])) == [3]
