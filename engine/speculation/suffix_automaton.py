"""An online index of every substring of a growing token sequence. Knows tokens only, nothing of drafts or requests.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). For drafting: Hu et al.,
SAM-Decoding (arXiv 2411.10666); frequencies as in SuffixDecoding (arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.speculation.guess import Guess

ROOT = 0
_NO_STATE = -1

# Counting an occurrence walks the suffix links. In ordinary text that takes a few steps; a text that repeats itself
# without end would make it as long as the text. States cut off here are shorter contexts than any that is followed.
_MAX_COUNT_WALK = 48


class SuffixAutomaton:
    """All substrings of the tokens so far, each state being a set of substrings with the same occurrences.

    Appending a token takes amortised constant time: a text of ``n`` tokens has at most ``2 n`` states and ``3 n``
    transitions, and those that splitting a state copies are among them. ``match_state`` is always the longest suffix of
    the text that has occurred before, because that is the suffix link of the state of the whole text.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._transitions: list[dict[int, int]] = [{}]
        self._link = [_NO_STATE]
        self._length = [0]
        self._count = [0]
        self._last = ROOT

    @property
    def match_state(self) -> int:
        return max(self._link[self._last], ROOT)

    def length(self, state: int) -> int:
        """Tokens in the longest substring of ``state``."""
        return self._length[state]

    def link(self, state: int) -> int:
        """The state of the longest suffix of ``state`` with more occurrences; ``ROOT`` for ``ROOT``."""
        return max(self._link[state], ROOT)

    def most_frequent(self, state: int) -> tuple[int, int, float] | None:
        """What followed ``state`` most often: token, the state with it, and its share of all that followed.

        Of equally frequent tokens the one seen first wins. None if nothing ever followed.
        """
        best_token, best_state, best_count, total = -1, ROOT, 0, 0
        for token, following in self._transitions[state].items():
            count = self._count[following]
            total += count
            if count > best_count:
                best_token, best_state, best_count = token, following, count
        return (best_token, best_state, best_count / total) if total else None

    def continuation(self, min_length: int) -> Iterator[Guess]:
        """Guess after guess, each the most frequent token behind the longest suffix of text and guesses seen before.

        Args:
            min_length: there is no guess behind a shorter suffix; at least 1.
        """
        state = self.match_state
        length = self._length[state]
        while length >= min_length:
            following = self.most_frequent(state)
            if following is None:
                # The match has run into the end of the text; a shorter suffix of it may go on elsewhere.
                state = self.link(state)
                length = self._length[state]
                continue
            token, state, probability = following
            yield Guess(token, probability, length)
            length += 1

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        self.num_tokens += 1
        new = self._new_state(self._length[self._last] + 1, {}, 0)
        state = self._last
        while state != _NO_STATE and token not in self._transitions[state]:
            self._transitions[state][token] = new
            state = self._link[state]
        if state == _NO_STATE:
            self._link[new] = ROOT
        else:
            self._link[new] = self._split(state, token)
        self._last = new
        self._count_occurrence(new)

    def _split(self, state: int, token: int) -> int:
        """The state of exactly ``state`` + ``token``, cloned out of a longer one if need be."""
        following = self._transitions[state][token]
        if self._length[following] == self._length[state] + 1:
            return following
        clone = self._new_state(self._length[state] + 1, dict(self._transitions[following]), self._count[following])
        self._link[clone] = self._link[following]
        self._link[following] = clone
        while state != _NO_STATE and self._transitions[state].get(token) == following:
            self._transitions[state][token] = clone
            state = self._link[state]
        return clone

    def _count_occurrence(self, state: int) -> None:
        for _ in range(_MAX_COUNT_WALK):
            if state == ROOT:
                return
            self._count[state] += 1
            state = self._link[state]

    def _new_state(self, length: int, transitions: dict[int, int], count: int) -> int:
        self._transitions.append(transitions)
        self._link.append(_NO_STATE)
        self._length.append(length)
        self._count.append(count)
        return len(self._length) - 1
