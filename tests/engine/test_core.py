"""One step of the engine: what is committed, and what is counted."""

from __future__ import annotations

import pytest

from engine.sequence import Sequence
from engine.step_stats import StepStats
from engine.types import FinishReason, RequestOutput
from tests.drafters import RandomDrafter, SometimesRightDrafter
from tests.engine.one_request import run_plainly, run_with_oracle
from tests.scripted import VOCAB_SIZE, ScriptedEngine, next_token
from tests.sequences import make_sequence, run, tokens_of

PROMPT = [1, 2, 3, 4, 5]


def test_an_accepted_run_and_its_bonus_come_in_one_output() -> None:
    sequence, outputs = run_with_oracle(PROMPT, length=4, max_tokens=10, ignore_eos=True)
    assert [len(output.token_ids) for output in outputs] == [5, 5]
    assert sequence.num_steps == 2
    assert sequence.stats.acceptance_histogram == [0, 0, 0, 0, 2]


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs_come_once_with_the_first_output(max_tokens: int) -> None:
    engine = ScriptedEngine(max_num_batched_tokens=8, max_num_seqs=2)
    prompt = [1, 2, 3] * 7
    outputs = run(engine.core, [make_sequence("a", prompt, prompt_logprobs=0, max_tokens=max_tokens, ignore_eos=True)])[
        "a"
    ]
    scored = outputs[0].prompt_logprobs
    assert scored is not None
    assert scored[0] is None
    entries = [entry for entry in scored if entry is not None]
    assert [entry.token_id for entry in entries] == prompt[1:]
    assert [entry.logprob for entry in entries] == [next_token(prompt[:n]) for n in range(1, len(prompt))]
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt() -> None:
    engine = ScriptedEngine(num_blocks=12, max_num_batched_tokens=8, max_num_seqs=2)
    prompt = [1, 2, 3] * 7
    older = make_sequence("a", [4], max_tokens=20, ignore_eos=True)
    scored = make_sequence("b", prompt, prompt_logprobs=0, max_tokens=2, ignore_eos=True)
    engine.core.add(older)
    engine.core.add(scored)
    engine.core.step()
    engine.core.step()
    assert 1 < len(scored.prompt_logprobs) < len(prompt)
    thief = make_sequence("thief", [1] * 8)
    assert engine.block_manager.grow(thief, 4 * engine.block_manager.num_available_blocks)
    while not scored.num_preemptions:
        engine.core.step()
    engine.block_manager.release(thief)
    outputs = run(engine.core, [])
    entries = [entry for entry in outputs["b"][0].prompt_logprobs or [] if entry is not None]
    assert [entry.token_id for entry in entries] == prompt[1:]
    assert [entry.logprob for entry in entries] == [next_token(prompt[:n]) for n in range(1, len(prompt))]


def test_abort_gives_one_last_output_and_frees_everything() -> None:
    engine = ScriptedEngine()
    engine.core.add(make_sequence("a", PROMPT, ignore_eos=True))
    engine.core.add(make_sequence("b", PROMPT, ignore_eos=True))
    engine.core.step()
    output = engine.core.abort("a")
    assert output is not None
    assert output.finish_reason is FinishReason.ABORT
    assert output.metrics is not None
    assert output.metrics.num_output_tokens == 1
    assert engine.core.abort("a") is None
    assert engine.core.abort("never seen") is None
    assert [sequence.request_id for sequence in engine.scheduler.running] == ["b"]
    engine.block_manager.check_integrity(engine.scheduler.running)
    engine.core.abort("b")
    assert not engine.core.has_unfinished
    assert engine.block_manager.usage == 0


def test_an_id_that_is_running_cannot_be_added_again() -> None:
    engine = ScriptedEngine()
    engine.core.add(make_sequence("a", PROMPT))
    with pytest.raises(AssertionError, match="a is already running"):
        engine.core.add(make_sequence("a", PROMPT))


def test_the_drafter_forgets_whoever_ends() -> None:
    released: list[str] = []

    class Noting(RandomDrafter):
        def release(self, sequence: Sequence) -> None:
            released.append(sequence.request_id)

    engine = ScriptedEngine(drafter=Noting(VOCAB_SIZE))
    for name in "ab":
        engine.core.add(make_sequence(name, PROMPT, max_tokens=3, ignore_eos=True))
    engine.core.step()
    engine.core.abort("b")
    run(engine.core, [])
    assert released == ["b", "a"]


def test_steps_without_a_token_are_not_counted() -> None:
    sequence, outputs = run_plainly(PROMPT, max_tokens=3, ignore_eos=True)
    metrics = outputs[-1].metrics
    assert metrics is not None
    assert metrics.num_steps == sequence.num_steps == 3


def test_the_steps_and_the_requests_keep_the_same_accounts() -> None:
    engine = ScriptedEngine(
        drafter=SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=0.7),
        num_blocks=24,
        max_num_batched_tokens=20,
        max_num_seqs=5,
    )
    sequences = [
        make_sequence(f"{i}", [1, 2, 3] * (i % 4) + [1 + i % 5], max_tokens=4 * i, num_speculative_tokens=i % 7)
        for i in range(1, 16)
    ]
    for sequence in sequences:
        engine.core.add(sequence)
    steps: list[StepStats] = []
    outputs: list[RequestOutput] = []
    while engine.core.has_unfinished:
        result = engine.core.step()
        steps.append(result.stats)
        outputs += result.outputs
    check_accounts(sequences, steps, outputs)
    for stats, (batch, drafts) in zip(steps, engine.runner.batches, strict=True):
        assert stats.num_rows == batch.num_rows + sum(len(draft.token_ids) for draft in drafts)
        assert stats.num_draft_tokens == sum(len(draft.token_ids) for draft in drafts)
    assert (steps[-1].num_running, steps[-1].num_waiting, steps[-1].kv_cache_usage) == (0, 0, 0.0)


def check_accounts(sequences: list[Sequence], steps: list[StepStats], outputs: list[RequestOutput]) -> None:
    finals = [output.metrics for output in outputs if output.metrics is not None]
    assert len(finals) == len(sequences)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert sum(getattr(s, name) for s in steps) == sum(getattr(m.speculation, name) for m in finals) > 0
    for final in finals:
        account = final.speculation
        histogram = account.acceptance_histogram
        assert sum(histogram) == account.num_drafts
        assert sum(j * count for j, count in enumerate(histogram)) == account.num_accepted_tokens
        # Each step brings one token of the target's own, but for a last one that ends among the accepted.
        assert final.num_output_tokens - account.num_accepted_tokens in (final.num_steps - 1, final.num_steps)
    assert sum(s.num_generated_tokens for s in steps) == sum(m.num_output_tokens for m in finals)
    assert sum(m.num_output_tokens for m in finals) == len(tokens_of(outputs))
    assert sum(s.num_prompt_tokens for s in steps) == sum(m.num_prompt_tokens for m in finals)
    assert sum(s.num_cached_tokens for s in steps) == sum(m.num_cached_tokens for m in finals) > 0
    assert sum(s.num_preemptions for s in steps) == sum(m.num_preemptions for m in finals) > 0
    num_drafts = sum(s.num_drafts for s in steps)
    num_behind = sum(s.num_recovered_tokens + s.num_bonus_tokens for s in steps)
    # Behind each draft comes a token of the target's, but for the drafts within which a request ended.
    assert num_drafts - len(finals) <= num_behind <= num_drafts
    for s in steps:
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            assert sum(getattr(counts, name) for counts in s.by_drafter.values()) == getattr(s, name)
        assert sum(s.drafted_per_position) == s.num_draft_tokens
        assert sum(s.accepted_per_position) == s.num_accepted_tokens
        assert sorted(s.drafted_per_position, reverse=True) == s.drafted_per_position


def test_behind_a_draft_comes_a_recovered_or_a_bonus_token() -> None:
    engine = ScriptedEngine(drafter=SometimesRightDrafter(next_token, VOCAB_SIZE, accuracy=0.7))
    seen = set()
    for first in range(1, VOCAB_SIZE):
        engine.core.add(make_sequence("a", [first], max_tokens=100, num_speculative_tokens=3))
        while engine.core.has_unfinished:
            stats = engine.core.step().stats
            (draft,) = engine.runner.batches[-1][1]
            is_whole = stats.num_accepted_tokens == len(draft.token_ids)
            num_behind = stats.num_generated_tokens - stats.num_accepted_tokens
            expected = (0, num_behind) if is_whole else (num_behind, 0)
            assert (stats.num_recovered_tokens, stats.num_bonus_tokens) == expected
            seen.add(expected)
    assert seen == {(0, 1), (1, 0), (0, 0)}  # the last: it ended within a draft
