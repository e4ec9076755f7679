"""Token sequences that a text must not complete. Knows neither how a word is spelled nor who masks logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq


class BadWords:
    """An index that finds, after any text, the tokens that would complete a forbidden sequence.

    Args:
        words: token sequences, none empty.
    """

    def __init__(self, words: Iterable[Seq[int]]) -> None:
        self._always: set[int] = set()
        # By the token before the last, so that a text is compared with few words however many there are.
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        self.longest = 0
        for word in words:
            *beginning, last = word
            self.longest = max(self.longest, len(word))
            if beginning:
                self._after.setdefault(beginning[-1], []).append((beginning, last))
            else:
                self._always.add(last)

    def after(self, text: list[int]) -> set[int]:
        """The tokens that may not follow ``text``, of which the last ``longest - 1`` tokens are enough."""
        if not text:
            return self._always
        completed = (last for beginning, last in self._after.get(text[-1], ()) if text[-len(beginning) :] == beginning)
        return self._always.union(completed)
