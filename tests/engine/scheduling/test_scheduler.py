"""Who runs next, with how many tokens, and what a draft may take: only what nobody else wants."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from engine.errors import InvalidRequest
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import ScheduledBatch, Scheduler
from engine.sequence import Sequence
from engine.speculation.controller import FixedDraftLength
from engine.types import DraftLimit, DraftReason
from tests.sequences import make_sequence

CONTROLLER = FixedDraftLength()


def make_scheduler(
    *, num_blocks: int = 64, block_size: int = 4, max_num_seqs: int = 8, max_num_batched_tokens: int = 32
) -> Scheduler:
    return Scheduler(
        BlockManager(num_blocks, block_size), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )


def add(scheduler: Scheduler, name: str, num_tokens: int, *, draft: int = 0, max_tokens: int = 24) -> Sequence:
    sequence = make_sequence(
        name, [ord(name)] * num_tokens, num_speculative_tokens=draft, max_tokens=max_tokens, ignore_eos=True
    )
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler) -> ScheduledBatch:
    """Schedule, then commit as if every draft had been rejected."""
    batch = scheduler.schedule(CONTROLLER)
    for entry in batch:
        sequence, samples = entry.sequence, entry.samples
        before = sequence.num_computed_tokens
        sequence.num_computed_tokens += entry.num_tokens
        if samples:
            sequence.append(7, frozenset())
        scheduler.block_manager.settle(sequence, num_published_before=before)
        if sequence.is_finished:
            scheduler.remove(sequence)
    scheduler.block_manager.check_integrity(scheduler.running)
    return batch


def shares(batch: ScheduledBatch) -> list[tuple[str, int, int]]:
    return [(entry.sequence.request_id, entry.num_tokens, entry.max_draft_length) for entry in batch]


def test_first_come_first_served() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, 3, max_tokens=2)
    assert shares(step(scheduler)) == [("a", 3, 0), ("b", 3, 0)]
    assert shares(step(scheduler)) == [("a", 1, 0), ("b", 1, 0)]
    assert shares(step(scheduler)) == [("c", 3, 0)]


def test_nobody_overtakes_a_prompt_that_does_not_fit_yet() -> None:
    scheduler = make_scheduler(num_blocks=9)
    add(scheduler, "a", 16)
    step(scheduler)
    add(scheduler, "b", 16)
    add(scheduler, "c", 1)
    assert shares(step(scheduler)) == [("a", 1, 0)]
    assert [sequence.request_id for sequence in scheduler.waiting] == ["b", "c"]


def test_a_long_prompt_comes_in_chunks_and_draws_only_at_its_end() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    sequence = add(scheduler, "a", 25)
    batches = [step(scheduler) for _ in range(3)]
    assert [shares(batch) for batch in batches] == [[("a", 10, 0)], [("a", 10, 0)], [("a", 5, 0)]]
    assert sequence.num_output_tokens == 1


def test_a_long_prompt_leaves_a_row_for_each_sequence_behind_it() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    long = add(scheduler, "a", 3)
    for name in "bc":
        add(scheduler, name, 3)
    step(scheduler)
    long.num_computed_tokens = 0
    long.token_ids[:0] = [1] * 40
    assert shares(step(scheduler)) == [("a", 8, 0), ("b", 1, 0), ("c", 1, 0)]


def test_rows_never_exceed_the_budget_drafts_included() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12)
    for name, length in (("a", 3), ("b", 20), ("c", 2)):
        add(scheduler, name, length, draft=8)
    for _ in range(12):
        batch = step(scheduler)
        assert 0 < batch.num_rows + sum(entry.max_draft_length for entry in batch) <= 12


def test_drafts_get_what_confirmed_tokens_left_over() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12)
    add(scheduler, "a", 3, draft=8)
    assert shares(step(scheduler)) == [("a", 3, 8)]
    add(scheduler, "b", 9, draft=8)
    assert shares(step(scheduler)) == [("a", 1, 2), ("b", 9, 0)]
    assert shares(step(scheduler)) == [("a", 1, 8), ("b", 1, 2)]


def test_a_draft_is_allowed_only_where_the_next_token_is_drawn() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    add(scheduler, "a", 12, draft=4)
    assert shares(step(scheduler)) == [("a", 10, 0)]
    assert shares(step(scheduler)) == [("a", 2, 4)]


def test_a_draft_is_never_longer_than_what_can_be_used() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 3, draft=8, max_tokens=4)
    assert [shares(step(scheduler)) for _ in range(4)] == [
        [("a", 3, 3)],
        [("a", 1, 2)],
        [("a", 1, 1)],
        [("a", 1, 0)],
    ]


def test_a_request_that_only_scores_draws_nothing() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 3, draft=8, max_tokens=0)
    (entry,) = scheduler.schedule(CONTROLLER)
    assert entry.catches_up
    assert not entry.samples
    assert entry.max_draft_length == 0


def test_the_last_to_come_is_preempted_first_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=7)
    first, second = add(scheduler, "a", 8), add(scheduler, "b", 8)
    for _ in range(4):
        step(scheduler)
    third = add(scheduler, "c", 1)
    batch = step(scheduler)
    assert shares(batch) == [("a", 1, 0), ("b", 1, 0)]
    while not batch.num_preemptions:
        batch = step(scheduler)
    assert list(scheduler.waiting) == [second, third]
    assert (second.num_preemptions, second.num_computed_tokens, second.block_table) == (1, 0, [])
    assert first.num_preemptions == 0
    assert [entry.sequence for entry in batch] == [first]


def test_a_preempted_sequence_computes_everything_again_and_is_no_second_admission() -> None:
    scheduler = make_scheduler(num_blocks=7)
    add(scheduler, "a", 8, max_tokens=8)
    second = add(scheduler, "b", 8, max_tokens=8)
    admitted, preempted = 0, 0
    while scheduler.has_unfinished:
        batch = step(scheduler)
        admitted += batch.num_admitted_tokens
        preempted += batch.num_preemptions
    assert preempted == second.num_preemptions > 0
    assert admitted == 16
    assert second.num_output_tokens == 8


def test_drafts_preempt_nobody() -> None:
    """Two blocks stay free: one for the next tokens of each."""
    scheduler = make_scheduler(num_blocks=9)
    add(scheduler, "a", 8, draft=8)
    add(scheduler, "b", 8, draft=8)
    first = step(scheduler)
    assert first.num_preemptions == 0
    assert shares(first) == [("a", 8, 8), ("b", 8, 0)]
    assert shares(step(scheduler)) == [("a", 1, 3), ("b", 1, 3)]


def test_drafts_delay_no_admission() -> None:
    """The same requests are admitted at the same steps with drafts and without, if every draft is wrong."""

    def admissions(draft: int) -> list[list[tuple[str, int]]]:
        scheduler = make_scheduler(num_blocks=12, max_num_batched_tokens=16, max_num_seqs=4)
        for name in "abcdef":
            add(scheduler, name, 9, draft=draft, max_tokens=6)
        seen = []
        while scheduler.has_unfinished:
            seen.append([(name, num_tokens) for name, num_tokens, _ in shares(step(scheduler))])
        return seen

    assert admissions(8) == admissions(0)


def test_a_new_sequence_waits_until_every_running_one_could_still_take_a_block() -> None:
    scheduler = make_scheduler(num_blocks=7)
    add(scheduler, "a", 8)
    step(scheduler)
    add(scheduler, "b", 8)
    assert shares(step(scheduler)) == [("a", 1, 0)]
    roomier = make_scheduler(num_blocks=8)
    add(roomier, "a", 8)
    step(roomier)
    add(roomier, "b", 8)
    assert shares(step(roomier)) == [("a", 1, 0), ("b", 8, 0)]


def test_a_prefix_hit_is_counted_once_and_leaves_a_token_to_compute() -> None:
    scheduler = make_scheduler()
    add(scheduler, "a", 8, max_tokens=1)
    step(scheduler)
    again = add(scheduler, "a", 8, max_tokens=1)
    batch = step(scheduler)
    assert shares(batch) == [("a", 4, 0)]
    assert (batch.num_admitted_tokens, batch.num_cached_tokens, again.num_cached_tokens) == (8, 4, 4)


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(num_blocks=5)
    scheduler.check_fits(16)
    with pytest.raises(InvalidRequest, match=r"17 tokens .* holds 16") as refusal:
        scheduler.check_fits(17)
    assert refusal.value.code == "context_length_exceeded"


def test_a_request_as_large_as_the_pool_runs_alone_to_its_last_token() -> None:
    scheduler = make_scheduler(num_blocks=5)
    sequence = add(scheduler, "a", 8, max_tokens=8, draft=8)
    while scheduler.has_unfinished:
        assert step(scheduler).num_preemptions == 0
    assert sequence.num_output_tokens == 8


def test_removing_a_waiting_or_running_sequence_frees_all_it_has() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    first, second = add(scheduler, "a", 8), add(scheduler, "b", 8)
    step(scheduler)
    scheduler.remove(second)
    scheduler.remove(first)
    assert not scheduler.has_unfinished
    assert scheduler.block_manager.usage == 0
    scheduler.block_manager.check_integrity([])


class Greedy:
    """A controller that asks for more than there are blocks."""

    def plan(self, sequences: Seq[Sequence], *, max_rows: int) -> list[DraftLimit]:
        return [DraftLimit(min(max_rows, 30))] * len(sequences)


def test_a_draft_is_cut_to_the_blocks_there_are() -> None:
    scheduler = make_scheduler(num_blocks=5, max_num_batched_tokens=64)
    add(scheduler, "a", 8)
    batch = scheduler.schedule(Greedy())
    assert shares(batch) == [("a", 8, 4)]
    assert [entry.limited_by for entry in batch] == [DraftReason.MEMORY]
