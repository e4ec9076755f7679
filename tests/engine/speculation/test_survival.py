"""Chances of drafted tokens, learnt from what the target said."""

from __future__ import annotations

import random

import pytest

from engine.speculation.survival import Survival
from engine.types import Draft
from tests.sequences import make_sequence

WRONG = -1


def draft(*confidences: float, source: str = "suffix") -> Draft:
    return Draft(tuple(range(len(confidences))), confidences, source)


def teach(survival: Survival, name: str, accuracy: float, *, confidence: float = 0.6, number: int = 400) -> None:
    rng = random.Random(1)
    sequence = make_sequence(name, [1])
    for _ in range(number):
        accepted = 0
        while accepted < 4 and rng.random() < accuracy:
            accepted += 1
        survival.observe(sequence, draft(*[confidence] * 4), [*range(accepted), WRONG])


def test_before_any_verdict_the_drafter_is_believed() -> None:
    assert Survival().of(make_sequence("a", [1]), draft(0.5, 0.8, 0.5)) == pytest.approx([0.5, 0.4, 0.2])


@pytest.mark.parametrize("accuracy", [0.05, 0.3, 0.6, 0.9])
def test_it_learns_what_a_confidence_is_worth(accuracy: float) -> None:
    survival = Survival()
    teach(survival, "a", accuracy)
    first, second = survival.of(make_sequence("other", [1]), draft(0.6, 0.6))
    assert first == pytest.approx(accuracy, abs=0.12)
    assert second == pytest.approx(first**2)


def test_sources_and_confidences_are_told_apart() -> None:
    survival = Survival()
    teach(survival, "a", 0.05)
    fresh = make_sequence("other", [1])
    assert survival.of(fresh, draft(0.6, source="head"))[0] == pytest.approx(0.6)
    assert survival.of(fresh, draft(0.95))[0] == pytest.approx(0.95)


def test_requests_are_told_apart_and_forgotten() -> None:
    survival = Survival()
    for _ in range(30):
        teach(survival, "good", 0.95, number=1)
        teach(survival, "bad", 0.05, number=1)
    good, bad = make_sequence("good", [1]), make_sequence("bad", [1])
    assert survival.of(good, draft(0.6))[0] > survival.of(bad, draft(0.6))[0] + 0.2
    survival.release(good)
    survival.release(bad)
    assert survival.of(good, draft(0.6)) == survival.of(bad, draft(0.6))


def test_what_was_true_long_ago_fades() -> None:
    survival = Survival()
    teach(survival, "a", 0.05)
    teach(survival, "a", 0.9)
    assert survival.of(make_sequence("a", [1]), draft(0.6))[0] > 0.75


def test_nothing_is_learnt_of_tokens_behind_a_rejected_one() -> None:
    survival = Survival()
    sequence = make_sequence("a", [1])
    survival.observe(sequence, draft(0.95, 0.35, 0.35), [WRONG])
    assert survival.of(make_sequence("b", [1]), draft(0.35))[0] == pytest.approx(0.35)


def test_a_proposal_is_judged_as_far_as_the_target_spoke() -> None:
    """Whether or not it was verified: one token is known of every step."""
    survival = Survival()
    sequence = make_sequence("a", [1])
    for _ in range(40):
        survival.observe(sequence, draft(0.9, 0.5), [0])
    assert survival.of(make_sequence("b", [1]), draft(0.9))[0] > 0.95
    assert survival.of(make_sequence("b", [1]), draft(0.5))[0] == pytest.approx(0.5)


def test_a_request_may_be_good_for_one_drafter_alone() -> None:
    survival = Survival()
    sequence = make_sequence("a", [1])
    for _ in range(40):
        survival.observe(sequence, draft(0.6, source="suffix"), [0])
        survival.observe(sequence, draft(0.6, source="model"), [WRONG])
    assert survival.of(sequence, draft(0.6, source="suffix"))[0] > 0.9
    assert survival.of(sequence, draft(0.6, source="model"))[0] < 0.1
