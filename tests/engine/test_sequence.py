"""The one noun: its two integers, and how an output ends."""

from __future__ import annotations

import pytest

from engine.sequence import Sequence
from engine.types import FinishReason, TokenLogprob
from tests.sequences import make_sequence

END = frozenset({0})


def append_all(sequence: Sequence, token_ids: list[int]) -> None:
    for token_id in token_ids:
        assert not sequence.is_finished
        sequence.append(token_id, END)


def test_the_prompt_is_copied() -> None:
    prompt = [1, 2]
    sequence = make_sequence("a", prompt)
    sequence.append(3, END)
    assert prompt == [1, 2]
    assert sequence.token_ids == [1, 2, 3]


def test_counts_follow_from_two_integers() -> None:
    sequence = make_sequence("a", [1, 2, 3], max_tokens=5)
    assert (sequence.num_uncomputed_tokens, sequence.num_output_tokens, sequence.num_remaining_tokens) == (3, 0, 5)
    sequence.num_computed_tokens = 3
    append_all(sequence, [4, 4])
    assert (sequence.num_uncomputed_tokens, sequence.num_output_tokens, sequence.num_remaining_tokens) == (2, 2, 3)
    assert sequence.output_counts == {4: 2}
    assert sequence.prompt_token_set == {1, 2, 3}


def test_the_token_limit_ends_the_output() -> None:
    sequence = make_sequence("a", [1], max_tokens=2)
    append_all(sequence, [5, 6])
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, None)


def test_an_end_token_ends_the_output_and_wins_over_the_limit() -> None:
    sequence = make_sequence("a", [1], max_tokens=2)
    append_all(sequence, [5, 0])
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, None)
    assert sequence.text.take(final=True) == "5 "


@pytest.mark.parametrize(("include", "text"), [(False, "5 "), (True, "5 6 ")])
def test_a_stop_token_ends_the_output_and_is_text_if_included(include: bool, text: str) -> None:
    stop = {"stop_token_ids": frozenset({6, 9}), "include_stop_str_in_output": include}
    sequence = make_sequence("a", [1], max_tokens=2, **stop)
    append_all(sequence, [5, 6])
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, 6)
    assert sequence.text.take(final=True) == text


def test_an_ignored_end_token_is_a_token_like_any_other() -> None:
    sequence = make_sequence("a", [1], max_tokens=3, ignore_eos=True)
    append_all(sequence, [0, 5, 0])
    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.text.take(final=True) == "0 5 0 "


def test_a_stop_string_ends_the_output_and_wins_over_the_limit() -> None:
    sequence = make_sequence("a", [1], max_tokens=2, stop=("5 6",))
    append_all(sequence, [5, 6])
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "5 6")


@pytest.mark.parametrize(("min_tokens", "num_appended"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_stop_strings_wait_for_min_tokens(min_tokens: int, num_appended: int) -> None:
    sequence = make_sequence("a", [1], max_tokens=9, min_tokens=min_tokens, stop=("5",))
    append_all(sequence, [5] * num_appended)
    assert sequence.stop_reason == "5"


def test_prompt_logprobs_are_needed_until_every_prompt_token_but_the_first_has_one() -> None:
    assert not make_sequence("a", [1, 2]).needs_prompt_logprobs
    assert not make_sequence("a", [1], prompt_logprobs=0).needs_prompt_logprobs
    sequence = make_sequence("a", [1, 2, 3], prompt_logprobs=0)
    sequence.prompt_logprobs += [TokenLogprob(2, -1.0)]
    assert sequence.needs_prompt_logprobs
    sequence.prompt_logprobs += [TokenLogprob(3, -1.0)]
    assert not sequence.needs_prompt_logprobs


def test_finishing_twice_is_a_mistake_of_ours() -> None:
    sequence = make_sequence("a", [1])
    sequence.finish(FinishReason.ABORT)
    with pytest.raises(AssertionError, match="a finished twice"):
        sequence.finish(FinishReason.LENGTH)


def test_metrics_are_the_account() -> None:
    sequence = make_sequence("a", [1, 2], max_tokens=1, num_speculative_tokens=3)
    sequence.num_cached_tokens = 1
    sequence.stats.record(3, 2)
    append_all(sequence, [4])
    metrics = sequence.metrics()
    assert (metrics.num_prompt_tokens, metrics.num_cached_tokens, metrics.num_output_tokens) == (2, 1, 1)
    assert metrics.speculation.acceptance_histogram == [0, 0, 1, 0]
