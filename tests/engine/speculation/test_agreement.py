"""What a margin is worth."""

from __future__ import annotations

import random

import pytest

from engine.speculation.agreement import AgreementCurve

MARGINS = [0.0, 0.2, 0.4, 0.6, 0.9, 1.2, 1.9, 2.5, 3.5, 5.0, 7.0, 30.0, float("inf")]


def test_at_first_an_even_chance_without_margin_and_near_certainty_with_a_large_one() -> None:
    chances = [AgreementCurve().probability(margin) for margin in MARGINS]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(0.5, abs=0.03)
    assert chances[-1] > 0.99


@pytest.mark.parametrize("margin", [0.05, 1.2, 20.0, float("inf")])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_it_learns_what_it_sees_and_forgets_what_was(margin: float, rate: float) -> None:
    curve, rng = AgreementCurve(), random.Random(0)
    others = [curve.probability(other) for other in (0.2, 0.6, 2.5)]
    for _ in range(3000):
        curve.learn(margin, agreed=True)
    assert curve.probability(margin) > 0.97
    for _ in range(3000):
        curve.learn(margin, agreed=rng.random() < rate)
    assert curve.probability(margin) == pytest.approx(rate, abs=0.08)
    assert [curve.probability(other) for other in (0.2, 0.6, 2.5)] == others
