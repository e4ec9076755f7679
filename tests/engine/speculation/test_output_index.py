"""The index of finished outputs against a reference that looks through all of them."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.guess import Guess, expected_accepted, take_likely
from engine.speculation.output_index import CONTEXT_LENGTH, OutputIndex
from engine.speculation.shared_suffix import SharedSuffixIndex

outputs_of = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=5)


def guesses(outputs: list[list[int]], text: list[int]) -> Guess | None:
    """The first guess, by hand; None if there is none. Of equally frequent tokens any may be it."""
    best: dict[int, Counter[int]] = {}
    for output in outputs:
        for end in range(CONTEXT_LENGTH, len(output)):
            length = 0
            while length < min(end, len(text)) and output[end - 1 - length] == text[-1 - length]:
                length += 1
            if length >= CONTEXT_LENGTH:
                best.setdefault(length, Counter())[output[end]] += 1
    if not best:
        return None
    longest = max(best)
    ((token, count),) = best[longest].most_common(1)
    return Guess(token, count / best[longest].total(), longest)


@settings(deadline=None, max_examples=400)
@given(outputs_of, st.lists(st.integers(0, 2), max_size=8), st.integers(0, 4))
def test_the_first_guess_is_the_one_found_by_hand(outputs: list[list[int]], text: list[int], num_dropped: int) -> None:
    index = OutputIndex()
    for output in outputs:
        index.add(output)
    num_dropped = min(num_dropped, len(outputs) - 1)
    assert [index.drop_oldest() for _ in range(num_dropped)] == [len(output) for output in outputs[:num_dropped]]
    left = outputs[num_dropped:]
    assert index.num_tokens == sum(map(len, left))
    expected, found = guesses(left, text), next(index.continuation(text), None)
    if expected is None or found is None:
        assert found == expected
    else:
        assert found[1:] == expected[1:]


@settings(deadline=None, max_examples=200)
@given(outputs_of, st.lists(st.integers(0, 2), min_size=3, max_size=8))
def test_guesses_continue_one_another(outputs: list[list[int]], text: list[int]) -> None:
    """What is guessed lies somewhere in the outputs as it is, behind the end of the text."""
    index = OutputIndex()
    for output in outputs:
        index.add(output)
    run = list(islice(index.continuation(text), 6))
    path = [*text, *(guess.token_id for guess in run)]
    for number, guess in enumerate(run, start=1):
        seen = path[len(text) + number - 1 - guess.context_length : len(text) + number]
        assert any(output[i : i + len(seen)] == seen for output in outputs for i in range(len(output)))


def test_the_more_frequent_continuation_wins_and_the_share_is_its_probability() -> None:
    index = OutputIndex()
    for output in ([1, 2, 3, 7, 8], [1, 2, 3, 9], [0, 1, 2, 3, 9, 4]):
        index.add(output)
    assert list(index.continuation([5, 1, 2, 3])) == [Guess(9, 2 / 3, 3), Guess(4, 1.0, 4)]
    assert list(index.continuation([0, 1, 2, 3])) == [Guess(9, 1.0, 4), Guess(4, 1.0, 5)]  # the longer context
    assert list(index.continuation([2, 3])) == []


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    shared = SharedSuffixIndex(max_tokens=100)
    for number in range(500):
        shared.add("", [number, number + 1, number + 2, 5000 + number] * 2)
        assert shared.num_tokens <= 100
    (tenant,) = shared._tenants.values()
    assert len(tenant._tokens) == len(tenant._earlier) <= 2 * (100 + 100 // 8) + 9
    assert len(tenant._newest) <= 100
    assert next(shared.continuation("", [499, 500, 501]), None) == Guess(5499, 1.0, 3)
    assert next(shared.continuation("", [487, 488, 489]), None) is None


def test_an_output_longer_than_the_memory_leaves_its_end() -> None:
    shared = SharedSuffixIndex(max_tokens=5)
    shared.add("", [1, 2, 3, 4, 5, 6, 7])
    assert shared.num_tokens == 5
    assert next(shared.continuation("", [3, 4, 5]), None) == Guess(6, 1.0, 3)
    assert next(shared.continuation("", [1, 2, 3]), None) is None
    shared.add("", [])
    assert shared.num_tokens == 5


def test_tenants_do_not_see_each_other_and_share_the_memory() -> None:
    shared = SharedSuffixIndex(max_tokens=10)
    shared.add("a", [1, 2, 3, 4, 5])
    shared.add("b", [1, 2, 3, 9])
    assert next(shared.continuation("a", [1, 2, 3]), None) == Guess(4, 1.0, 3)
    assert next(shared.continuation("b", [1, 2, 3]), None) == Guess(9, 1.0, 3)
    assert next(shared.continuation("", [1, 2, 3]), None) is None
    shared.add("b", [6, 6])  # the oldest is another's
    assert next(shared.continuation("a", [1, 2, 3]), None) is None
    assert set(shared._tenants) == {"b"}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ([], 0.0),
        ([Guess(1, 1.0, 2)], 3 / 4),
        ([Guess(1, 1.0, 8), Guess(1, 0.5, 9)], 9 / 10 + 9 / 10 * 5 / 11),
    ],
)
def test_what_a_run_is_worth(run: list[Guess], expected: float) -> None:
    assert expected_accepted(run) == pytest.approx(expected)


def test_a_run_ends_where_it_is_too_unlikely_or_long_enough() -> None:
    run = [Guess(token, 0.6, 3) for token in range(5)]
    assert take_likely(run, max_length=9, min_survival=0.3) == run[:2]
    assert take_likely(run, max_length=1, min_survival=0.3) == run[:1]
    assert take_likely(run, max_length=9, min_survival=0.0) == run
