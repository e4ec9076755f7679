"""Draft lengths by price: the best of all choices, none where none pays, and back again."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.speculation.goodput import GoodputController
from engine.speculation.step_times import StepTimes
from engine.types import Draft, Verdict
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


def lengths(drafts: list[Draft]) -> list[int]:
    assert all(len(draft.token_ids) == len(draft.probabilities) for draft in drafts)
    return [len(draft.token_ids) for draft in drafts]


def test_rows_that_cost_nothing_are_all_taken() -> None:
    drafts = [draft(0.5, 0.1), draft(0.9)]
    assert lengths(GoodputController(StepTimes(FLAT)).trim(batch_of(2), drafts)) == [2, 1]


def test_rows_that_cost_what_a_step_costs_are_not() -> None:
    assert lengths(GoodputController(StepTimes(STEEP)).trim(batch_of(2), [draft(0.9, 0.9), draft(0.9)])) == [0, 0]


def test_without_a_price_everything_is_verified() -> None:
    assert lengths(GoodputController(StepTimes()).trim(batch_of(1), [draft(0.1, 0.1)])) == [2]


def test_the_surest_tokens_of_all_requests_come_first() -> None:
    controller = GoodputController(StepTimes({1: 1.0, 6: 1.0, 8: 30.0}))
    assert lengths(controller.trim(batch_of(3), [draft(0.9, 0.3), draft(0.2), draft(0.8, 0.9)])) == [1, 0, 2]


def test_beside_a_long_prompt_rows_are_cheap() -> None:
    times = StepTimes({1: 1.0, 2: 1.9, 64: 30.0, 128: 62.0})
    entries = [*batch_of(1), *batch_of(1, num_tokens=64)]
    drafts = [draft(0.7), draft()]
    assert lengths(GoodputController(times).trim(batch_of(1), drafts[:1])) == [0]
    assert lengths(GoodputController(times).trim(ScheduledBatch(entries), drafts)) == [1, 0]


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

    chosen = tuple(lengths(GoodputController(times).trim(batch, drafts)))
    best = max(map(goodput, itertools.product(*(range(len(each) + 1) for each in confidences))))
    assert goodput(chosen) == pytest.approx(best)


def test_a_bad_drafter_is_dropped_and_taken_back() -> None:
    controller = GoodputController(StepTimes({1: 1.0, 2: 1.5, 8: 4.5}))
    batch, rng = batch_of(1), random.Random(3)
    accuracy, history = 0.02, []
    for step in range(600):
        if step == 200:
            accuracy = 0.95
        (kept,) = controller.trim(batch, [draft(0.9, 0.9, 0.9, 0.9)])
        accepted = 0
        while accepted < len(kept.token_ids) and rng.random() < accuracy:
            accepted += 1
        controller.observe(batch, [kept], [Verdict((1,) * (accepted + 1), accepted)], num_rows=0, seconds=0.0)
        history.append(len(kept.token_ids))
    assert sum(history[60:200]) <= 140 / 16 + 1, "a probe now and then"
    assert min(history[-50:]) >= 3


def test_an_ended_request_leaves_nothing() -> None:
    controller = GoodputController(StepTimes(STEEP))
    batch = batch_of(1)
    controller.trim(batch, [draft(0.9)])
    controller.observe(batch, [draft(0.9)], [Verdict((1,), 0)], num_rows=2, seconds=1.0)
    for entry in batch:
        controller.release(entry.sequence)
        controller.release(entry.sequence)
    assert controller._steps_without == {}
