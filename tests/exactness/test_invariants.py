"""The invariants of the house under anything that can happen: add, abort, preempt, finish, drafts right and wrong.

The target is scripted (``tests.scripted``): what it says depends on every slot it reads, so a wrong block shows.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduling.scheduler import ScheduledBatch
from engine.sequence import Sequence
from engine.speculation.drafter import Drafter
from engine.types import Draft, RequestOutput
from tests.drafters import RandomDrafter, SometimesRightDrafter, draft_model
from tests.scripted import VOCAB_SIZE, ScriptedDraftRunner, ScriptedEngine, continue_plainly, digests_of, next_token
from tests.sequences import make_sequence, run, tokens_of

LONGEST_PROMPT, LONGEST_OUTPUT = 24, 16
BLOCK_SIZE = 4
# One request of the longest kind must fit into the smallest pool.
FEWEST_BLOCKS = 1 + (LONGEST_PROMPT + LONGEST_OUTPUT) // BLOCK_SIZE

prompts = st.builds(
    lambda shared, own: ([1, 2, 3, 1, 2, 3, 4, 5] * 2)[:shared] + own,
    st.integers(0, 16),
    st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=LONGEST_PROMPT - 16),
)


class EngineMachine(RuleBasedStateMachine):
    """Every request in flight, and every one that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: dict[str, Sequence] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.aborted: set[str] = set()

    @initialize(
        spare_blocks=st.integers(0, 8),
        budget=st.integers(4, 40),
        accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        caching=st.booleans(),
    )
    def build(self, spare_blocks: int, budget: int, accuracy: float, caching: bool) -> None:
        num_blocks = FEWEST_BLOCKS + spare_blocks
        self.engine = ScriptedEngine(
            drafter=self.make_drafter(accuracy, num_blocks, budget),
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=4,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
        )

    def make_drafter(self, accuracy: float, num_blocks: int, budget: int) -> Drafter:
        return SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=accuracy)

    @rule(
        prompt=prompts,
        max_tokens=st.integers(0, LONGEST_OUTPUT),
        length=st.integers(0, 8),
        scored=st.booleans(),
        salt=st.sampled_from(["", "salt"]),
    )
    def add(self, prompt: list[int], max_tokens: int, length: int, scored: bool, salt: str) -> None:
        name = f"r{len(self.sequences)}"
        options: dict[str, Any] = {"prompt_logprobs": 0} if scored else {}
        sequence = make_sequence(
            name, prompt, num_speculative_tokens=length, cache_salt=salt, max_tokens=max_tokens, **options
        )
        self.sequences[name] = sequence
        self.engine.core.add(sequence)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        was_running = not self.sequences[name].is_finished
        output = self.engine.core.abort(name)
        assert (output is not None) == was_running
        if output is not None:
            self.aborted.add(name)
            self.outputs.setdefault(name, []).append(output)

    @precondition(lambda self: self.engine.core.has_unfinished)
    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            if self.engine.core.has_unfinished:
                self._step()

    def _step(self) -> None:
        result = self.engine.core.step()
        check_batch(self.engine, self.engine.runner.batches[-1][0])
        for output in result.outputs:
            sequence = self.sequences[output.request_id]
            self.outputs.setdefault(output.request_id, []).append(output)
            if not sequence.is_finished:  # invariant 2
                assert sequence.num_computed_tokens == len(sequence.token_ids) - 1
        self._check()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            self._check()

    def _check(self) -> None:
        scheduler = self.engine.scheduler
        self.engine.block_manager.check_integrity(scheduler.running)  # invariant 4
        assert all(not s.block_table and s.num_computed_tokens == 0 for s in scheduler.waiting)
        for sequence in scheduler.running:
            assert 0 <= sequence.num_computed_tokens <= len(sequence.token_ids)  # invariant 1
            true = digests_of(sequence.token_ids[: sequence.num_computed_tokens])
            assert self.engine.runner.read(sequence.block_table, len(true)) == true

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.core.has_unfinished:
            self._step()
        assert self.engine.block_manager.usage == 0
        for name, sequence in self.sequences.items():
            answer = continue_plainly(sequence.token_ids[: sequence.num_prompt_tokens], sequence.params.max_tokens)
            said = tokens_of(self.outputs[name])
            ends = [output.finish_reason for output in self.outputs[name] if output.finish_reason is not None]
            assert len(ends) == 1  # invariant 9, the engine's half of it
            assert said == answer or (name in self.aborted and said == answer[: len(said)])  # invariants 3 and 8
            check_cache(self.engine, sequence)


def check_batch(engine: ScriptedEngine, batch: ScheduledBatch) -> None:
    """The budget holds, and those who came earlier were not passed over."""
    assert batch.num_rows + sum(entry.max_draft_length for entry in batch) <= engine.max_num_batched_tokens
    assert all(entry.num_tokens > 0 for entry in batch)
    order = [int(entry.sequence.request_id[1:]) for entry in batch]
    assert order == sorted(order)
    assert all(int(s.request_id[1:]) > max(order) for s in engine.scheduler.waiting if order)


def check_cache(engine: ScriptedEngine, sequence: Sequence) -> None:
    """Invariant 5: what the cache offers for a text is what the target computes for that text."""
    probe = make_sequence("probe", [*sequence.token_ids, 1], cache_salt=sequence.cache_salt)
    blocks = engine.block_manager.find_prefix(probe)
    true = digests_of(probe.token_ids[: len(blocks) * BLOCK_SIZE])
    assert engine.runner.read(blocks, len(true)) == true


class AlwaysRight:
    """Asserts that a drafter is."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.observe, self.release = drafter.observe, drafter.release

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        drafts = self._drafter.propose(batch)
        for entry, draft in zip(batch, drafts, strict=True):
            text = list(entry.sequence.token_ids)
            for token_id in draft.token_ids:
                assert token_id == next_token(text)
                text.append(token_id)
        return drafts


class DraftModelMachine(EngineMachine):
    """A draft model that is the target: whatever has happened, it finds what it should, so that it is always right."""

    def make_drafter(self, accuracy: float, num_blocks: int, budget: int) -> Drafter:
        drafter = draft_model(
            ScriptedDraftRunner(num_blocks, BLOCK_SIZE),
            vocab_size=VOCAB_SIZE,
            block_size=BLOCK_SIZE,
            max_num_rows=budget,
            looks_at_each=accuracy < 0.5,
        )
        return AlwaysRight(drafter)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestDraftModelMachine = DraftModelMachine.TestCase
TestDraftModelMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("length", [1, 8])
def test_a_rejected_token_never_reaches_the_prefix_cache(length: int) -> None:
    """Heavy wrong drafting, then prompts that continue with what was rejected, each against a cold engine."""
    engine = ScriptedEngine(drafter=RandomDrafter(VOCAB_SIZE), num_blocks=200)
    prompt = [1, 2, 3, 4, 5, 1, 2]
    talkers = [make_sequence(f"t{i}", [*prompt, 1 + i], num_speculative_tokens=length) for i in range(5)]
    run(engine.core, talkers)
    rejected = [
        (entry.sequence, draft.token_ids)
        for batch, drafts in engine.runner.batches
        for entry, draft in zip(batch, drafts, strict=True)
        if draft.token_ids
    ]
    assert sum(t.stats.num_draft_tokens - t.stats.num_accepted_tokens for t in talkers) > 50 * min(length, 2)
    hits = 0
    for number, (sequence, draft) in enumerate(rejected):
        for kept in range(sequence.num_prompt_tokens, len(sequence.token_ids), 3):
            later = [*sequence.token_ids[:kept], *draft, 1, 2, 3]
            again = make_sequence(f"a{number}.{kept}", later, max_tokens=4)
            outputs = run(engine.core, [again])[again.request_id]
            hits += again.num_cached_tokens or 0
            assert tokens_of(outputs) == continue_plainly(later, 4)
    assert hits > 0
