"""Where an output ends: inside an accepted run exactly where plain decoding ends it, in everything a client sees."""

from __future__ import annotations

from typing import Any

import pytest

from engine.sequence import Sequence
from engine.types import FinishReason, RequestOutput
from tests.engine.one_request import run_plainly, run_with_oracle, say_on
from tests.scripted import END_TOKEN, continue_plainly
from tests.sequences import tokens_of

PROMPT = [1, 2, 3, 4, 5]
INCLUDED = pytest.mark.parametrize("include", [False, True])


def ending(sequence: Sequence, outputs: list[RequestOutput]) -> dict[str, object]:
    """What a client gets, and that it gets no more: an entry a token, and one last output."""
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    last = outputs[-1]
    assert last.metrics is not None
    assert last.metrics.num_output_tokens == len(tokens_of(outputs)) == sequence.num_output_tokens
    entries = [entry for output in outputs for entry in output.logprobs or []]
    assert [entry.token_id for entry in entries] == tokens_of(outputs)
    return {
        "token_ids": tokens_of(outputs),
        "text": "".join(output.text for output in outputs),
        "logprobs": entries,
        "reasons": (last.finish_reason, last.stop_reason),
    }


def check_same_ending(prompt: list[int], **params: Any) -> dict[str, Any]:
    """The answer, after comparing the drafted with the plain one."""
    drafted, plain = (do(prompt, logprobs=0, **params) for do in (run_with_oracle, run_plainly))
    answer = ending(*drafted)
    assert answer == ending(*plain)
    num_steps, num_accepted = drafted[0].num_steps, drafted[0].stats.num_accepted_tokens
    assert drafted[0].num_output_tokens - num_accepted in (num_steps - 1, num_steps)
    if len(plain[1]) > 2:
        assert num_steps < plain[0].num_steps
    return answer


def spelled(token_ids: list[int]) -> str:
    return "".join(f"{token_id} " for token_id in token_ids)


def prompts_that_end(low: int, high: int) -> list[list[int]]:
    """Prompts whose answers come to an end token after some tokens."""
    answers = {start: continue_plainly([1, 2, start % 6, start // 6], 60) for start in range(400)}
    chosen = [s for s, a in answers.items() if a[-1] == END_TOKEN and low <= len(a) <= high]
    return [[1, 2, start % 6, start // 6] for start in chosen[:12]]


@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_the_token_limit(max_tokens: int) -> None:
    answer = check_same_ending(PROMPT, max_tokens=max_tokens, ignore_eos=True)
    assert len(answer["token_ids"]) == max_tokens
    assert answer["reasons"] == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("prompt", prompts_that_end(2, 20))
@INCLUDED
def test_an_end_token(prompt: list[int], include: bool) -> None:
    answer = check_same_ending(prompt, max_tokens=40, include_stop_str_in_output=include)
    assert answer["token_ids"] == continue_plainly(prompt, 40)
    assert answer["reasons"] == (FinishReason.STOP, None)
    assert answer["text"] == spelled(answer["token_ids"] if include else answer["token_ids"][:-1])


@pytest.mark.parametrize("prompt", prompts_that_end(2, 20)[:4])
def test_an_ignored_end_token_that_is_a_stop_token(prompt: list[int]) -> None:
    answer = check_same_ending(prompt, max_tokens=40, ignore_eos=True, stop_token_ids=frozenset({END_TOKEN}))
    assert answer["token_ids"] == continue_plainly(prompt, 40)
    assert answer["reasons"] == (FinishReason.STOP, END_TOKEN)


@pytest.mark.parametrize("stop_token_ids", [{1}, {2}, {3}, {4}, {5}, {2, 4}])
@pytest.mark.parametrize("prompt", [PROMPT, [1, 2, 3], [2, 2, 5, 1]])
@INCLUDED
def test_a_stop_token(prompt: list[int], stop_token_ids: set[int], include: bool) -> None:
    said = say_on(prompt, 30)
    end = next(index for index, token in enumerate(said) if token in stop_token_ids)
    answer = check_same_ending(
        prompt,
        max_tokens=30,
        ignore_eos=True,
        stop_token_ids=frozenset(stop_token_ids),
        include_stop_str_in_output=include,
    )
    assert answer["token_ids"] == said[: end + 1]
    assert answer["reasons"] == (FinishReason.STOP, said[end])
    assert answer["text"] == spelled(said[: end + include])


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("min_tokens", [0, 6])
@INCLUDED
def test_a_stop_string(at: int, min_tokens: int, include: bool) -> None:
    said = say_on(PROMPT, 30)
    stop = spelled(said[at : at + 2])
    ends = [n for n in range(max(2, min_tokens), 31) if spelled(said[n - 2 : n]) == stop]
    answer = check_same_ending(
        PROMPT,
        max_tokens=30,
        ignore_eos=True,
        min_tokens=min_tokens,
        stop=(stop,),
        include_stop_str_in_output=include,
    )
    if ends:
        assert answer["token_ids"] == said[: ends[0]]
        assert answer["reasons"] == (FinishReason.STOP, stop)
        assert answer["text"] == spelled(said[: ends[0] if include else ends[0] - 2])
    else:
        assert answer["reasons"] == (FinishReason.LENGTH, None)


def test_of_a_stop_token_and_the_stop_string_that_it_completes_the_token_wins() -> None:
    said = say_on(PROMPT, 30)
    answer = check_same_ending(
        PROMPT, max_tokens=30, ignore_eos=True, stop=(spelled(said[:1]),), stop_token_ids=frozenset({said[0]})
    )
    assert (answer["reasons"], answer["text"]) == ((FinishReason.STOP, said[0]), "")


@pytest.mark.parametrize("at", range(1, 12))
def test_a_stop_wins_over_the_limit_that_the_same_token_reaches(at: int) -> None:
    said = say_on(PROMPT, 30)
    if said[at] in said[:at]:
        stop: dict[str, Any] = {"stop": (spelled(said[: at + 1]),)}
    else:
        stop = {"stop_token_ids": frozenset({said[at]})}
    answer = check_same_ending(PROMPT, max_tokens=at + 1, ignore_eos=True, **stop)
    assert answer["token_ids"] == said[: at + 1]
    assert answer["reasons"][0] is FinishReason.STOP
