"""Drafts from the client's prediction: as long as it deserves, and another drafter's wherever it tells nothing."""

from __future__ import annotations

import pytest

from engine.config import MAX_SPECULATIVE_TOKENS
from engine.params import SpeculationMode, SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.controller import FixedDraftLength
from engine.speculation.drafter import NO_DRAFT
from engine.speculation.prediction import PredictionDrafter
from engine.types import DraftReason
from tests.drafters import RandomDrafter, auto
from tests.sequences import make_sequence

PREDICTION = list(range(100, 300))


def entry(sequence: Sequence, length: int = 4) -> ScheduledSequence:
    return ScheduledSequence(sequence, num_tokens=1, max_draft_length=length)


def predicted(name: str = "p", *, num_followed: int = 0, num_speculative_tokens: int = 6) -> Sequence:
    sequence = make_sequence(
        name, [1], num_speculative_tokens=num_speculative_tokens, prediction=PREDICTION, max_tokens=400
    )
    for token in PREDICTION[:num_followed]:
        sequence.append(token, frozenset())
    return sequence


def test_each_sequence_gets_its_own_drafter() -> None:
    drafter = auto(RandomDrafter(50))
    other = make_sequence("o", [1], num_speculative_tokens=6)
    lost = predicted("l", num_followed=3)
    for token in (7, 8):
        lost.append(token, frozenset())
    batch = ScheduledBatch([entry(other), entry(predicted(num_followed=5), 3), entry(lost), entry(predicted("0"), 0)])
    drafts = drafter.propose(batch)
    assert [draft.source for draft in drafts[:3]] == ["test", "prediction", "test"]
    assert drafts[1].token_ids == (105, 106, 107)
    assert drafts[1].probabilities == pytest.approx((6 / 7,) * 3)
    assert [len(draft.token_ids) for draft in drafts] == [4, 3, 4, 0]


def test_a_prediction_is_trusted_further_the_longer_it_is_right() -> None:
    lengths = [predicted(num_followed=n).longest_draft for n in (0, 3, 4, 10, 16, 40)]
    assert lengths == [6, 6, 8, 20, MAX_SPECULATIVE_TOKENS, MAX_SPECULATIVE_TOKENS]
    sequence = predicted(num_followed=40)
    sequence.append(7, frozenset())
    assert sequence.longest_draft == 6
    assert FixedDraftLength().plan([predicted(num_followed=10)], max_rows=100) == [(20, None)]


def test_a_length_that_the_client_names_is_kept() -> None:
    sequence = predicted(num_followed=40, num_speculative_tokens=3)
    sequence.speculation = SpeculationParams(num_speculative_tokens=3)
    assert sequence.longest_draft == 3


def test_without_drafts_there_is_none_and_it_is_counted_all_the_same() -> None:
    sequence = predicted(num_followed=40, num_speculative_tokens=0)
    assert FixedDraftLength().plan([sequence], max_rows=100) == [(0, DraftReason.OFF)]
    assert PredictionDrafter().propose(ScheduledBatch([entry(sequence, 0)])) == [NO_DRAFT]
    metrics = sequence.metrics()
    assert (metrics.num_accepted_prediction_tokens, metrics.num_rejected_prediction_tokens) == (40, 160)


def test_a_drafter_that_is_named_is_the_one() -> None:
    sequence = predicted(num_followed=5)
    sequence.speculation = SpeculationParams(SpeculationMode.SUFFIX)
    (draft,) = auto(RandomDrafter(50)).propose(ScheduledBatch([entry(sequence)]))
    assert draft.source == "test"
