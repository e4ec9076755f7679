"""The index of substrings against a reference that looks for everything by hand."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.suffix_automaton import ROOT, SuffixAutomaton

# Short enough that no occurrence is counted over more suffix links than the automaton is willing to walk.
texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=40))


def index_of(text: list[int]) -> SuffixAutomaton:
    index = SuffixAutomaton()
    index.extend(text)
    return index


def occurrences(text: list[int], part: list[int]) -> list[int]:
    """Where each occurrence of ``part`` ends."""
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


def longest_match(text: list[int]) -> int:
    """Length of the longest proper suffix that has occurred before."""
    return next(n for n in range(max(len(text) - 1, 0), -1, -1) if n == 0 or len(occurrences(text, text[-n:])) > 1)


def followers(text: list[int], part: list[int]) -> Counter[int]:
    return Counter(text[end] for end in occurrences(text, part) if end < len(text))


@settings(deadline=None, max_examples=300)
@given(texts)
def test_the_match_is_the_longest_suffix_seen_before(text: list[int]) -> None:
    index = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        index.extend([token])
        assert index.num_tokens == end
        assert index.length(index.match_state) == longest_match(text[:end])


@settings(deadline=None, max_examples=300)
@given(texts)
def test_the_most_frequent_continuation_is_the_one_counted_by_hand(text: list[int]) -> None:
    index = index_of(text)
    state = index.match_state
    while state != ROOT:
        counts = followers(text, text[len(text) - index.length(state) :])
        following = index.most_frequent(state)
        if following is None:
            assert not counts
        else:
            token, _, share = following
            assert counts[token] == max(counts.values())
            assert share == pytest.approx(counts[token] / counts.total())
        state = index.link(state)


@settings(deadline=None, max_examples=300)
@given(texts, st.integers(1, 6))
def test_following_the_most_frequent_walks_through_real_substrings(text: list[int], num_steps: int) -> None:
    index = index_of(text)
    state = index.match_state
    path = text[len(text) - index.length(state) :] if state != ROOT else []
    for _ in range(num_steps):
        following = index.most_frequent(state)
        if following is None:
            break
        counts = followers(text, path)
        token, state, share = following
        assert share == pytest.approx(counts[token] / counts.total())
        assert counts[token] == max(counts.values())
        path.append(token)
        assert occurrences(text, path)
        assert index.length(state) >= len(path)


@settings(deadline=None, max_examples=100)
@given(texts)
def test_links_lead_to_shorter_suffixes_with_more_occurrences(text: list[int]) -> None:
    index = index_of(text)
    state = index.match_state
    while state != ROOT:
        shorter = index.link(state)
        assert index.length(shorter) < index.length(state)
        suffix = text[len(text) - index.length(state) :]
        rest = suffix[len(suffix) - index.length(shorter) :] if shorter != ROOT else []
        assert len(occurrences(text, rest)) > len(occurrences(text, suffix))
        state = shorter


def test_of_equally_frequent_tokens_the_first_seen_wins() -> None:
    index = index_of([1, 2, 5, 1, 2, 4, 1, 2])
    following = index.most_frequent(index.match_state)
    assert following is not None
    assert (following[0], following[2]) == (5, 0.5)


def test_an_empty_text_has_no_match() -> None:
    index = SuffixAutomaton()
    assert index.match_state == ROOT
    assert index.length(ROOT) == 0
    assert index.link(ROOT) == ROOT
    assert index.most_frequent(ROOT) is None


class Counted(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("period", [1, 2, 7, 100])
def test_a_text_that_repeats_itself_without_end_stays_linear(period: int) -> None:
    """Suffix links followed a token, counted and not timed: all walks go along links."""
    index, num_tokens = SuffixAutomaton(), 4000
    index._link = links = Counted(index._link)
    index.extend(i % period for i in range(num_tokens))
    assert index.length(index.match_state) == num_tokens - period
    assert len(index._length) <= 2 * num_tokens
    assert links.reads <= 60 * num_tokens


def test_random_text_stays_linear() -> None:
    rng = random.Random(0)
    index, num_tokens = SuffixAutomaton(), 4000
    index._link = links = Counted(index._link)
    index.extend(rng.randrange(3) for _ in range(num_tokens))
    assert len(index._length) <= 2 * num_tokens
    assert links.reads <= 60 * num_tokens
