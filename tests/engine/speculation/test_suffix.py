"""The drafter that looks in the request's own text."""

from __future__ import annotations

from typing import ClassVar

import pytest

from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.shared_suffix import SharedSuffixIndex
from engine.speculation.suffix import SuffixDrafter
from engine.types import Draft, FinishReason
from tests.sequences import make_sequence


def draft_for(drafter: SuffixDrafter, sequence: Sequence, length: int = 8) -> Draft:
    entry = ScheduledSequence(sequence, sequence.num_uncomputed_tokens, max_draft_length=length)
    (draft,) = drafter.propose(ScheduledBatch([entry]))
    return draft


def test_it_continues_the_longest_match() -> None:
    draft = draft_for(SuffixDrafter(), make_sequence("a", [9, 1, 2, 3, 4, 5, 8, 2, 3, 6, 1, 2, 3]), 3)
    assert draft.token_ids == (4, 5, 8)
    assert draft.probabilities == (1.0, 1.0, 1.0)
    assert draft.source == "suffix"


@pytest.mark.parametrize("length", [1, 2, 5])
def test_it_never_goes_over_the_length_it_may_have(length: int) -> None:
    draft = draft_for(SuffixDrafter(), make_sequence("a", [1, 2, 3, 4, 5, 6, 7] * 3), length)
    assert draft.token_ids == (1, 2, 3, 4, 5)[:length]


def test_it_drafts_nothing_without_a_match_or_without_leave() -> None:
    assert draft_for(SuffixDrafter(), make_sequence("a", [1, 2, 3, 4])).token_ids == ()
    assert draft_for(SuffixDrafter(), make_sequence("a", [1, 2, 1, 2]), 0).token_ids == ()


def test_a_match_may_be_too_short_to_mean_anything() -> None:
    sequence = make_sequence("a", [1, 2, 3, 4, 2])
    assert draft_for(SuffixDrafter(min_match_length=2), sequence).token_ids == ()
    assert draft_for(SuffixDrafter(min_match_length=1), sequence, 2).token_ids == (3, 4)


def test_probabilities_are_shares_and_the_draft_stops_where_survival_is_too_small() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]
    draft = draft_for(SuffixDrafter(min_survival=0.5), make_sequence("a", text))
    assert draft.token_ids == (3,)
    assert list(draft.probabilities) == pytest.approx([2 / 3])
    longer = draft_for(SuffixDrafter(min_survival=0.3), make_sequence("a", text), 2)
    assert longer.token_ids == (3, 9)
    assert list(longer.probabilities) == pytest.approx([2 / 3, 0.5])


def test_a_match_that_has_reached_the_end_of_the_text_goes_on_with_a_shorter_one() -> None:
    """``1 2 3`` was last followed by the end of the text; ``2 3`` is followed by 5 elsewhere."""
    text = [7, 2, 3, 5, 1, 2, 3, 1, 2, 3]
    draft = draft_for(SuffixDrafter(), make_sequence("a", text), 6)
    assert draft.token_ids[:3] == (1, 2, 3)
    assert len(draft.token_ids) == len(draft.probabilities) == 6


def test_the_index_follows_the_confirmed_tokens() -> None:
    drafter, sequence = SuffixDrafter(), make_sequence("a", [1, 2, 3])
    assert draft_for(drafter, sequence).token_ids == ()
    for token in (4, 5, 1, 2):
        sequence.append(token, frozenset())
    assert draft_for(drafter, sequence, 3).token_ids == (3, 4, 5)


def test_requests_do_not_see_each_other_and_a_released_id_starts_afresh() -> None:
    drafter = SuffixDrafter()
    first = make_sequence("a", [1, 2, 3, 1, 2])
    assert draft_for(drafter, first, 1).token_ids == (3,)
    assert draft_for(drafter, make_sequence("b", [5, 1, 2])).token_ids == ()
    drafter.release(first)
    drafter.release(make_sequence("never seen", [1]))
    assert draft_for(drafter, make_sequence("a", [4, 1, 2, 6, 1, 2]), 1).token_ids == (6,)


def test_one_draft_an_entry_in_the_order_of_the_batch() -> None:
    sequences = [make_sequence("a", [1, 2, 3, 1, 2]), make_sequence("b", [1]), make_sequence("c", [4, 5, 6, 4, 5])]
    batch = ScheduledBatch(
        [ScheduledSequence(s, 1, max_draft_length=n) for s, n in zip(sequences, (1, 8, 1), strict=True)]
    )
    assert [draft.token_ids for draft in SuffixDrafter().propose(batch)] == [(3,), (), (6,)]


def finish(drafter: SuffixDrafter, sequence: Sequence, output: list[int], reason: FinishReason) -> None:
    for token in output:
        sequence.append(token, frozenset())
    sequence.finish(reason)
    drafter.release(sequence)


def with_output(
    output: list[int], *, salt: str = "", length: int = 4, reason: FinishReason = FinishReason.STOP
) -> SuffixDrafter:
    """A drafter that has seen a request end."""
    drafter = SuffixDrafter(shared=SharedSuffixIndex(1000))
    sequence = make_sequence("old", [70, 71, 72, 73], num_speculative_tokens=length, cache_salt=salt, max_tokens=50)
    finish(drafter, sequence, output, reason)
    return drafter


class TestSharedOutputs:
    TEXT: ClassVar = [30, 31, 32, 33, 34, 35]

    def test_they_draft_where_the_own_text_has_nothing(self) -> None:
        draft = draft_for(with_output(self.TEXT), make_sequence("a", [9, 30, 31, 32]), 2)
        assert draft == Draft((33, 34), (1.0, 1.0), "shared_suffix")

    def test_the_prompt_of_the_old_request_is_no_part_of_them(self) -> None:
        assert draft_for(with_output(self.TEXT), make_sequence("a", [70, 71, 72])).token_ids == ()

    @pytest.mark.parametrize(
        ("own", "source"),
        [
            ([31, 32, 8, 30, 31, 32], "shared_suffix"),  # two tokens of context against three
            ([9, 30, 31, 32, 8, 8, 8, 9, 30, 31, 32], "suffix"),  # four tokens against three
            ([5, 30, 31, 32, 8, 30, 31, 32, 7, 30, 31, 32], "shared_suffix"),  # a half chance against a whole one
        ],
    )
    def test_whoever_is_expected_to_be_right_longer_drafts(self, own: list[int], source: str) -> None:
        draft = draft_for(with_output(self.TEXT), make_sequence("a", own), 3)
        assert draft.source == source
        assert draft.token_ids

    def test_only_the_same_salt_sees_them(self) -> None:
        drafter = with_output(self.TEXT, salt="one")
        prompt = [9, 30, 31, 32]
        assert draft_for(drafter, make_sequence("a", prompt, cache_salt="two")).token_ids == ()
        assert draft_for(drafter, make_sequence("b", prompt)).token_ids == ()
        assert draft_for(drafter, make_sequence("c", prompt, cache_salt="one"), 1).token_ids == (33,)

    @pytest.mark.parametrize(
        ("length", "reason"),
        [(0, FinishReason.STOP), (4, FinishReason.ABORT), (4, FinishReason.ERROR)],
    )
    def test_what_was_not_to_be_drafted_or_did_not_end_leaves_nothing(self, length: int, reason: FinishReason) -> None:
        drafter = with_output(self.TEXT, length=length, reason=reason)
        assert draft_for(drafter, make_sequence("a", [9, 30, 31, 32])).token_ids == ()


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    drafter = SuffixDrafter()
    sequence = make_sequence("a", [1, 2, 3, 4] * 2500)
    assert [len(draft_for(drafter, sequence, 4).token_ids) for _ in range(4)] == [0, 0, 4, 4]
