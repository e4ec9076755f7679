"""One step of the engine: what is committed, what is counted, and where an output ends inside an accepted run."""

from __future__ import annotations

from typing import Any

import pytest

from engine.sequence import Sequence
from engine.types import FinishReason, RequestOutput, StepStats
from tests.drafters import RandomDrafter, ReplayDrafter, SometimesRightDrafter
from tests.scripted import END_TOKEN, VOCAB_SIZE, ScriptedEngine, continue_plainly, next_token
from tests.sequences import make_sequence, run, tokens_of

PROMPT = [1, 2, 3, 4, 5]


def say_on(prompt: list[int], num_tokens: int) -> list[int]:
    """What the target says if end tokens do not stop it."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def run_with_oracle(prompt: list[int], *, length: int = 8, **params: Any) -> tuple[Sequence, list[RequestOutput]]:
    """One request whose drafter knows every token, beyond the end of the answer too."""
    engine = ScriptedEngine(drafter=ReplayDrafter({"a": say_on(prompt, 60)}))
    sequence = make_sequence("a", prompt, num_speculative_tokens=length, **params)
    outputs = run(engine.core, [sequence])["a"]
    engine.block_manager.check_integrity([])
    assert engine.block_manager.usage == 0
    return sequence, outputs


def run_plainly(prompt: list[int], **params: Any) -> tuple[Sequence, list[RequestOutput]]:
    sequence = make_sequence("a", prompt, **params)
    return sequence, run(ScriptedEngine().core, [sequence])["a"]


def ending(sequence: Sequence, outputs: list[RequestOutput]) -> tuple[object, ...]:
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    last = outputs[-1]
    text = "".join(output.text for output in outputs)
    return sequence.token_ids, tokens_of(outputs), text, last.finish_reason, last.stop_reason


def test_an_accepted_run_and_its_bonus_come_in_one_output() -> None:
    sequence, outputs = run_with_oracle(PROMPT, length=4, max_tokens=10, ignore_eos=True)
    assert [len(output.token_ids) for output in outputs] == [5, 5]
    assert sequence.num_steps == 2
    assert sequence.stats.acceptance_histogram == [0, 0, 0, 0, 2]


@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_the_token_limit_inside_an_accepted_run(max_tokens: int) -> None:
    options: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True}
    drafted, plain = run_with_oracle(PROMPT, **options), run_plainly(PROMPT, **options)
    assert ending(*drafted) == ending(*plain)
    assert drafted[0].num_output_tokens == max_tokens


def prompts_that_end(low: int, high: int) -> list[list[int]]:
    """Prompts whose answers come to an end token after some tokens."""
    answers = {start: continue_plainly([1, 2, start % 6, start // 6], 60) for start in range(400)}
    chosen = [s for s, a in answers.items() if a[-1] == END_TOKEN and low <= len(a) <= high]
    return [[1, 2, start % 6, start // 6] for start in chosen[:12]]


@pytest.mark.parametrize("prompt", prompts_that_end(2, 20))
def test_an_end_token_inside_an_accepted_run(prompt: list[int]) -> None:
    drafted, plain = (do(prompt, max_tokens=40, logprobs=0) for do in (run_with_oracle, run_plainly))
    assert ending(*drafted) == ending(*plain)
    assert drafted[1][-1].finish_reason is FinishReason.STOP
    assert drafted[1][-1].stop_reason == END_TOKEN
    assert drafted[0].num_steps < plain[0].num_steps
    num_accepted = drafted[0].stats.num_accepted_tokens
    assert drafted[0].num_output_tokens - num_accepted in (drafted[0].num_steps - 1, drafted[0].num_steps)


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("min_tokens", [0, 6])
def test_a_stop_string_inside_an_accepted_run(at: int, min_tokens: int) -> None:
    answer = say_on(PROMPT, 30)
    pair = answer[at : at + 2]
    lengths = [n for n in range(max(2, min_tokens), 31) if answer[n - 2 : n] == pair]
    options: dict[str, Any] = {"max_tokens": 30, "stop": (f"{pair[0]} {pair[1]} ",), "min_tokens": min_tokens}
    drafted, plain = (do(PROMPT, ignore_eos=True, **options) for do in (run_with_oracle, run_plainly))
    assert ending(*drafted) == ending(*plain)
    assert drafted[0].num_output_tokens == (lengths or [30])[0]
    assert drafted[1][-1].stop_reason == (options["stop"][0] if lengths else None)
    assert drafted[0].num_steps < plain[0].num_steps


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


@pytest.mark.parametrize("prompt", prompts_that_end(2, 20))
def test_logprobs_come_with_every_token_that_is_given_and_no_other(prompt: list[int]) -> None:
    """Not with those that were accepted behind the end."""
    sequence, outputs = run_with_oracle(prompt, max_tokens=40, logprobs=0)
    assert sequence.finish_reason is FinishReason.STOP
    for output in outputs:
        assert output.logprobs is not None
        assert [entry.token_id for entry in output.logprobs] == output.token_ids


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
    for s in steps:
        assert sum(s.drafted_per_position) == s.num_draft_tokens
        assert sum(s.accepted_per_position) == s.num_accepted_tokens
        assert sorted(s.drafted_per_position, reverse=True) == s.drafted_per_position
