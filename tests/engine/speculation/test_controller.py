"""How long a draft may be."""

from __future__ import annotations

import pytest

from engine.params import SpeculationMode, SpeculationParams
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.speculation.controller import PAUSED, FixedDraftLength, longest_useful_draft
from engine.types import Draft, DraftReason
from tests.sequences import make_sequence


@pytest.mark.parametrize(("asked", "max_tokens", "length"), [(4, 24, 4), (8, 4, 3), (8, 1, 0), (0, 24, 0)])
def test_a_draft_is_as_long_as_asked_and_as_useful(asked: int, max_tokens: int, length: int) -> None:
    sequence = make_sequence("a", [1], num_speculative_tokens=asked, max_tokens=max_tokens)
    assert longest_useful_draft(sequence) == length


def test_what_is_useful_shrinks_with_every_token() -> None:
    sequence = make_sequence("a", [1], num_speculative_tokens=8, max_tokens=4)
    lengths = []
    for token in (5, 6, 7):
        lengths.append(longest_useful_draft(sequence))
        sequence.append(token, frozenset())
    assert [*lengths, longest_useful_draft(sequence)] == [3, 2, 1, 0]


def test_a_request_without_speculation_gets_none() -> None:
    sequence = make_sequence("a", [1])
    assert sequence.speculation.mode is SpeculationMode.OFF
    sequence.stats.num_speculative_tokens = 8
    assert longest_useful_draft(sequence) == 0


@pytest.mark.parametrize(
    ("max_rows", "lengths"), [(100, [4, 8, 4]), (16, [4, 8, 4]), (13, [4, 8, 1]), (5, [4, 1, 0]), (0, [0, 0, 0])]
)
def test_the_first_come_are_served_first(max_rows: int, lengths: list[int]) -> None:
    sequences = [make_sequence(f"{n}", [1], num_speculative_tokens=n) for n in (4, 8, 4)]
    limits = FixedDraftLength().plan(sequences, max_rows=max_rows)
    assert [limit.length for limit in limits] == lengths
    for limit, wanted in zip(limits, [4, 8, 4], strict=True):
        assert limit.reason == (DraftReason.BUDGET if limit.length < wanted else None)


def test_the_reason_for_a_length_is_told() -> None:
    controller = FixedDraftLength()
    drafted, ended, off = (make_sequence(name, [1], num_speculative_tokens=4) for name in "abc")
    off.speculation = SpeculationParams(SpeculationMode.OFF)
    limits = controller.plan([drafted, ended, off], max_rows=100)
    assert limits == [(4, None), (4, None), (0, DraftReason.OFF)]
    entries = [
        ScheduledSequence(drafted, 1, 4),
        ScheduledSequence(drafted, 1, 2, DraftReason.MEMORY),
        ScheduledSequence(ended, 1, 4),
        ScheduledSequence(ended, 1, 4),
        ScheduledSequence(off, 1, 0, DraftReason.OFF),
        ScheduledSequence(make_sequence("d", [1, 2, 3]), 2),
    ]
    drafts = [Draft((5, 6), (0.5, 0.5)), Draft((5, 6), (0.5, 0.5)), Draft(), PAUSED, Draft(), Draft()]
    decisions = controller.trim(ScheduledBatch(entries), drafts)
    assert [(decision.length, decision.reason) for decision in decisions] == [
        (2, DraftReason.WHOLE),
        (2, DraftReason.MEMORY),
        (0, DraftReason.NO_GUESS),
        (0, DraftReason.PAUSED),
        (0, DraftReason.OFF),
        (0, None),
    ]
    assert [decision.draft for decision in decisions[:2]] == drafts[:2]
