"""How far a draft model has come: the account alone, against a block manager."""

from __future__ import annotations

from engine.scheduling.block_manager import BlockManager
from engine.sequence import Sequence
from engine.speculation.draft_cache import DraftCache
from tests.sequences import make_sequence

TEXT = list(range(1, 15))


def begin(manager: BlockManager, name: str, text: list[int] = TEXT) -> Sequence:
    """A sequence with blocks for its text and four tokens more, all but the last token computed by the target."""
    sequence = make_sequence(name, text)
    manager.adopt_prefix(sequence, manager.find_prefix(sequence))
    assert manager.grow(sequence, len(text) + 4)
    before, sequence.num_computed_tokens = sequence.num_computed_tokens, len(text) - 1
    manager.settle(sequence, num_published_before=before)
    assert manager.grow(sequence, len(text) + 4)
    return sequence


def test_it_counts_what_is_computed_and_the_drafted_tokens_that_were_right() -> None:
    manager, cache = BlockManager(32, 4), DraftCache(4)
    sequence = begin(manager, "a")
    assert cache.num_computed(sequence) == 0
    cache.compute(sequence, 10)
    assert cache.num_computed(sequence) == 10
    cache.compute(sequence, 4)
    cache.compute_draft(sequence, [7, 8, 9])
    for token in (7, 8, 5):
        sequence.append(token, frozenset())
    assert cache.num_computed(sequence) == 16
    assert cache.num_computed(sequence) == 16


def test_the_last_token_is_always_left() -> None:
    manager, cache = BlockManager(32, 4), DraftCache(4)
    sequence = begin(manager, "a")
    cache.num_computed(sequence)
    cache.compute(sequence, len(TEXT))
    cache.compute_draft(sequence, [7, 8, 9])
    for token in (7, 8):
        sequence.append(token, frozenset())
    assert cache.num_computed(sequence) == len(TEXT) + 1


def test_shared_blocks_are_known_by_what_is_in_them() -> None:
    manager, cache = BlockManager(32, 4), DraftCache(4)
    first = begin(manager, "a")
    cache.num_computed(first)
    cache.compute(first, 9)  # two blocks and a part of the third
    cache.num_computed(first)
    second = begin(manager, "b")
    assert len(second.block_table) == 5
    assert cache.num_computed(second) == 8
    third = begin(manager, "c", [*TEXT[:4], 99, *TEXT[5:]])
    assert cache.num_computed(third) == 4


def placed(name: str, block_table: list[int], block_hashes: list[bytes]) -> Sequence:
    sequence = make_sequence(name, TEXT)
    sequence.block_table, sequence.block_hashes = block_table, block_hashes
    return sequence


def test_a_block_that_is_written_to_holds_what_it_held_no_longer() -> None:
    """Also where the target alone has put the old text back into it."""
    cache = DraftCache(4)
    first = placed("a", [3, 4, 5, 6], [b"x", b"y", b"z"])
    cache.num_computed(first)
    cache.compute(first, 13)
    assert cache.num_computed(first) == 13
    assert cache.num_computed(placed("b", [3, 4, 5, 6], [b"x", b"y", b"z"])) == 12
    other = placed("c", [4, 7, 8, 9], [b"p"])
    assert cache.num_computed(other) == 0
    cache.compute(other, 3)
    assert cache.num_computed(placed("d", [3, 4, 5, 6], [b"x", b"y", b"z"])) == 4


def test_after_a_preemption_it_begins_again() -> None:
    manager, cache = BlockManager(32, 4, enable_prefix_caching=False), DraftCache(4)
    sequence = begin(manager, "a")
    cache.num_computed(sequence)
    cache.compute(sequence, 13)
    cache.compute_draft(sequence, [])
    manager.release(sequence)
    sequence.num_preemptions += 1
    assert manager.grow(sequence, len(TEXT))
    assert cache.num_computed(sequence) == 0
