"""Where memory is short drafts get shorter, and whoever is preempted would have been without them."""

from __future__ import annotations

import pytest

from engine.types import DraftReason
from tests.drafters import SometimesRightDrafter
from tests.scripted import VOCAB_SIZE, ScriptedEngine, next_token
from tests.sequences import make_sequence

NUM_STREAMS = 6


def crowded(num_blocks: int) -> ScriptedEngine:
    """Streams whose drafts are nearly always right, and long."""
    drafter = SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=0.9)
    engine = ScriptedEngine(drafter=drafter, num_blocks=num_blocks, enable_prefix_caching=False)
    for number in range(NUM_STREAMS):
        prompt = [number + 1] * (5 + number)
        engine.core.add(
            make_sequence(f"{number}", prompt, num_speculative_tokens=8, max_tokens=40 + 3 * number, ignore_eos=True)
        )
    return engine


@pytest.mark.parametrize("num_blocks", [20, 24, 30, 40, 60, 120])
def test_who_is_preempted_would_have_been_without_drafts(num_blocks: int) -> None:
    """A step preempts only if the confirmed tokens alone do not fit."""
    engine = crowded(num_blocks)
    manager, num_preemptions, num_short = engine.block_manager, 0, 0
    while engine.core.has_unfinished:
        running = engine.scheduler.running
        needed = sum(manager.num_blocks_for(len(sequence.token_ids)) for sequence in running)
        stats = engine.core.step().stats
        if stats.num_preemptions:
            assert needed > manager.num_usable_blocks
        num_preemptions += stats.num_preemptions
        num_short += stats.decisions.get(DraftReason.MEMORY, 0)
        for sequence in engine.scheduler.running:
            assert len(sequence.block_table) <= manager.num_blocks_for(len(sequence.token_ids))
    assert (num_preemptions > 0) == (num_blocks < 120)
    assert (num_short > 0) == (num_blocks < 120), "drafts are shorter before anybody has to go"


def test_drafts_are_cut_before_anybody_is_preempted() -> None:
    engine, num_cut = crowded(40), [0]
    while not (stats := engine.core.step().stats).num_preemptions:
        num_cut.append(stats.decisions.get(DraftReason.MEMORY, 0))
    assert num_cut[-1] > 0
