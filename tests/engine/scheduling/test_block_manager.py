"""Blocks: every one is in exactly one state, equal prefixes are shared, and eviction takes the oldest tail first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.block_manager import NULL_BLOCK, BlockManager
from engine.sequence import Sequence
from tests.sequences import make_sequence

SIZE = 4


def computed(manager: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    """Pretend that the target has computed up to ``num_tokens``."""
    before = sequence.num_computed_tokens
    assert manager.grow(sequence, num_tokens)
    sequence.num_computed_tokens = num_tokens
    manager.settle(sequence, num_published_before=before)


def published(manager: BlockManager, prompt: list[int]) -> list[int]:
    """Compute a prompt, let it go, and say which blocks it had."""
    sequence = make_sequence("first", prompt)
    computed(manager, sequence, len(prompt))
    blocks = list(sequence.block_table)
    manager.release(sequence)
    return blocks


def test_blocks_cover_tokens_exactly() -> None:
    manager = BlockManager(10, SIZE)
    assert [manager.num_blocks_for(n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    sequence = make_sequence("a", [1] * 5)
    assert manager.grow(sequence, 5)
    assert len(sequence.block_table) == 2
    assert manager.grow(sequence, 8)
    assert len(sequence.block_table) == 2
    assert NULL_BLOCK not in sequence.block_table
    assert manager.usage == pytest.approx(2 / 9)


def test_growing_beyond_the_pool_changes_nothing() -> None:
    manager = BlockManager(4, SIZE)
    sequence = make_sequence("a", [1] * 20)
    assert manager.grow(sequence, 5)
    before = list(sequence.block_table)
    assert not manager.grow(sequence, 13)
    assert sequence.block_table == before
    assert manager.num_available_blocks == 1
    assert manager.grow(sequence, 12)
    manager.check_integrity([sequence])


@pytest.mark.parametrize(("first", "second", "is_shared"), [("a", "a", True), ("a", "b", False), ("", "a", False)])
def test_a_prefix_is_shared_under_one_salt_only(first: str, second: str, is_shared: bool) -> None:
    manager = BlockManager(20, SIZE)
    sequence = make_sequence("a", list(range(9)), cache_salt=first)
    computed(manager, sequence, 9)
    found = manager.find_prefix(make_sequence("b", list(range(9)), cache_salt=second))
    assert found == (sequence.block_table[:2] if is_shared else [])


def test_an_equal_prefix_is_found_up_to_the_first_difference() -> None:
    manager = BlockManager(20, SIZE)
    blocks = published(manager, list(range(12)))
    assert manager.find_prefix(make_sequence("b", [*range(12), 99])) == blocks
    assert manager.find_prefix(make_sequence("c", [*range(7), 99, 8, 9, 10, 11, 12])) == blocks[:1]
    assert manager.find_prefix(make_sequence("d", [99, *range(1, 12)])) == []


def test_a_block_is_known_by_all_that_came_before_it() -> None:
    manager = BlockManager(20, SIZE)
    published(manager, [1, 1, 1, 1, 2, 2, 2, 2])
    assert manager.find_prefix(make_sequence("b", [3, 3, 3, 3, 2, 2, 2, 2, 5])) == []
    assert manager.find_prefix(make_sequence("b", [2, 2, 2, 2, 5])) == []


@pytest.mark.parametrize(("num_tokens", "num_found"), [(8, 1), (9, 2), (12, 2), (13, 3)])
def test_a_hit_leaves_at_least_one_token_to_compute(num_tokens: int, num_found: int) -> None:
    manager = BlockManager(20, SIZE)
    published(manager, list(range(16)))
    assert len(manager.find_prefix(make_sequence("b", list(range(num_tokens))))) == num_found


def test_a_prompt_to_be_scored_takes_no_cached_block() -> None:
    manager = BlockManager(20, SIZE)
    published(manager, list(range(12)))
    assert manager.find_prefix(make_sequence("b", list(range(13)), prompt_logprobs=0)) == []


def test_nothing_is_kept_without_prefix_caching() -> None:
    manager = BlockManager(20, SIZE, enable_prefix_caching=False)
    published(manager, list(range(12)))
    assert manager.find_prefix(make_sequence("b", list(range(13)))) == []
    manager.check_integrity([])


def test_a_block_is_published_only_when_wholly_computed() -> None:
    manager = BlockManager(20, SIZE)
    sequence = make_sequence("a", list(range(12)))
    computed(manager, sequence, 7)
    assert manager.find_prefix(make_sequence("b", list(range(13)))) == sequence.block_table[:1]
    computed(manager, sequence, 8)
    assert manager.find_prefix(make_sequence("b", list(range(13)))) == sequence.block_table[:2]


def test_a_referenced_block_is_shared_and_freed_by_the_last() -> None:
    manager = BlockManager(20, SIZE)
    first, second = make_sequence("a", list(range(9))), make_sequence("b", list(range(9)))
    computed(manager, first, 9)
    prefix = manager.find_prefix(second)
    assert manager.num_available_without(prefix) == manager.num_available_blocks
    manager.adopt_prefix(second, prefix)
    assert second.block_table == first.block_table[:2]
    assert second.num_computed_tokens == 8
    manager.check_integrity([first, second])
    manager.release(first)
    assert manager.num_available_blocks == 19 - 2
    manager.check_integrity([second])
    manager.release(second)
    assert manager.num_available_blocks == 19
    assert second.num_computed_tokens == 0


def test_a_cached_block_counts_as_available_until_it_is_adopted() -> None:
    manager = BlockManager(6, SIZE)
    blocks = published(manager, list(range(8)))
    assert manager.num_available_blocks == 5
    assert manager.num_available_without(blocks) == 3


def test_free_blocks_are_taken_before_cached_ones_and_tails_before_heads() -> None:
    manager = BlockManager(7, SIZE)
    old = published(manager, [1] * 8)
    new = published(manager, [2] * 8)
    sequence = make_sequence("a", [3] * 24)
    taken = []
    for num_blocks in range(1, 7):
        assert manager.grow(sequence, num_blocks * SIZE)
        taken.append(sequence.block_table[-1])
    assert set(taken[:2]).isdisjoint(old + new)
    assert taken[2:] == [old[1], old[0], new[1], new[0]]
    assert manager.find_prefix(make_sequence("b", [1] * 9)) == []
    manager.check_integrity([sequence])


def test_using_a_prefix_again_makes_it_the_last_to_go() -> None:
    manager = BlockManager(5, SIZE)
    old, new = published(manager, [1] * 4), published(manager, [2] * 4)
    again = make_sequence("a", [1] * 5)
    manager.adopt_prefix(again, manager.find_prefix(again))
    manager.release(again)
    sequence = make_sequence("b", [3] * 16)
    assert manager.grow(sequence, 16)
    assert sequence.block_table[2:] == new + old


def test_blocks_that_only_a_rejected_draft_needed_are_given_back() -> None:
    manager = BlockManager(20, SIZE)
    sequence = make_sequence("a", [1] * 5)
    assert manager.grow(sequence, 5 + 8)
    assert len(sequence.block_table) == 4
    sequence.num_computed_tokens = 5
    manager.settle(sequence, num_published_before=0)
    assert len(sequence.block_table) == 2
    manager.check_integrity([sequence])


def test_the_integrity_check_notices_a_lost_block() -> None:
    manager = BlockManager(20, SIZE)
    sequence = make_sequence("a", [1] * 5)
    computed(manager, sequence, 5)
    sequence.block_table.pop()
    with pytest.raises(AssertionError, match="reference counts"):
        manager.check_integrity([sequence])


Operation = tuple[str, int, int]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["start", "compute", "draft", "say", "release"]), st.integers(0, 5), st.integers(1, 6)),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(num_blocks=st.integers(2, 12), operations=OPERATIONS)
def test_every_block_is_in_exactly_one_state(num_blocks: int, operations: list[Operation]) -> None:
    """Invariant 4, and no block in two hands unless what is computed in it is the same."""
    manager = BlockManager(num_blocks, 2)
    live: dict[int, Sequence] = {}
    for name, key, amount in operations:
        operate(manager, live, name, key, amount)
        manager.check_integrity(list(live.values()))
        assert 0 <= manager.usage <= 1
        check_sharing(list(live.values()))
    for sequence in live.values():
        manager.release(sequence)
    assert manager.num_available_blocks == manager.num_usable_blocks
    manager.check_integrity([])


def operate(manager: BlockManager, live: dict[int, Sequence], name: str, key: int, amount: int) -> None:
    sequence = live.get(key)
    if name == "start" and sequence is None:
        live[key] = sequence = make_sequence(str(key), [1] * amount + [key % 2], max_tokens=1000)
        manager.adopt_prefix(sequence, manager.find_prefix(sequence))
        assert sequence.num_computed_tokens < len(sequence.token_ids)
    elif sequence is None:
        return
    elif name == "compute":
        goal = min(len(sequence.token_ids), sequence.num_computed_tokens + amount)
        if manager.grow(sequence, goal):
            before, sequence.num_computed_tokens = sequence.num_computed_tokens, goal
            manager.settle(sequence, num_published_before=before)
    elif name == "draft" and manager.grow(sequence, len(sequence.token_ids) + amount):
        manager.settle(sequence, num_published_before=sequence.num_computed_tokens)
        assert len(sequence.block_table) <= manager.num_blocks_for(len(sequence.token_ids))
    elif name == "say":
        sequence.append(amount, frozenset())
    elif name == "release":
        manager.release(live.pop(key))


def check_sharing(sequences: list[Sequence]) -> None:
    content: dict[int, list[int]] = {}
    for sequence in sequences:
        for index, block in enumerate(sequence.block_table):
            is_whole = (index + 1) * 2 <= sequence.num_computed_tokens
            text = sequence.token_ids[: (index + 1) * 2] if is_whole else [id(sequence)]
            assert content.setdefault(block, text) == text, f"block {block} is shared by different texts"
