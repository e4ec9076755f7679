"""What followed a context in earlier outputs of one tenant. Knows tokens; nothing of tenants, requests or drafts.

Outputs lie one behind the other in one array, oldest first. Positions with the same last few tokens before them are
chained from the newest to the oldest (hash chains, as in LZ77: RFC 1951, section 4), so adding a token and dropping one
are each a few operations, whatever lies there. A suffix automaton would find longer matches sooner, but it cannot
forget its oldest text, and takes several times the memory for each token.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from engine.speculation.guess import Guess

# Tokens that a match has at least; fewer prove little in a large text.
CONTEXT_LENGTH = 3
# Longer matches than this are equally good.
LONGEST_MATCH = 32
# Earlier occurrences that are looked at, newest first.
_MOST_OCCURRENCES = 32
_END = -1  # between outputs; no token
_NONE = -1


class OutputIndex:
    """Outputs, in the order in which they were added.

    Attributes:
        num_tokens: of all outputs in it.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._lengths: deque[int] = deque()
        self._tokens = array("i")
        # For each position the one before with the same context.
        self._earlier = array("q")
        self._newest: dict[int, int] = {}
        # Positions count from the first output that ever was; ``_origin`` is the one of ``_tokens[0]``.
        self._origin = 0
        self._first = 0

    def add(self, output: Seq[int]) -> None:
        self._lengths.append(len(output))
        self.num_tokens += len(output)
        for token_id in output:
            self._append(token_id)
        self._tokens.append(_END)
        self._earlier.append(_NONE)

    def drop_oldest(self) -> int:
        """Forget the output that was added first; its length."""
        length = self._lengths.popleft()
        self.num_tokens -= length
        for position in range(self._first, self._first + length):
            context = self._context(position)
            if context is not None and self._newest[context] == position:
                del self._newest[context]
        self._first += length + 1
        num_dropped = self._first - self._origin
        if 2 * num_dropped >= len(self._tokens):  # so that each token is moved once, on average
            del self._tokens[:num_dropped], self._earlier[:num_dropped]
            self._origin = self._first
        return length

    def continuation(self, text: Seq[int]) -> Iterator[Guess]:
        """Guess after guess, each the most frequent token behind the longest contexts that end like ``text``.

        Of equally frequent tokens the one seen last wins.

        Args:
            text: its last ``LONGEST_MATCH`` tokens suffice.
        """
        places = self._matches(text)
        while places:
            longest = max(length for length, _ in places)
            counts = Counter(
                token
                for length, position in places
                if length == longest and (token := self._tokens[position - self._origin]) != _END
            )
            if not counts:  # these outputs end here; a shorter context may go on
                places = [(length, position) for length, position in places if length < longest]
                continue
            ((best, count),) = counts.most_common(1)
            yield Guess(best, count / counts.total(), longest)
            places = [
                (length + 1, position + 1)
                for length, position in places
                if self._tokens[position - self._origin] == best
            ]

    def _append(self, token_id: int) -> None:
        position = self._origin + len(self._tokens)
        self._tokens.append(token_id)
        context = self._context(position)
        self._earlier.append(_NONE if context is None else self._newest.get(context, _NONE))
        if context is not None:
            self._newest[context] = position

    def _context(self, position: int) -> int | None:
        """Names the tokens up to and with ``position``; None if its output has too few. Others may have the name."""
        end = position + 1 - self._origin
        tokens = self._tokens[max(end - CONTEXT_LENGTH, 0) : end]
        return hash(tuple(tokens)) if len(tokens) == CONTEXT_LENGTH and _END not in tokens else None

    def _matches(self, text: Seq[int]) -> list[tuple[int, int]]:
        """Length of each match, and the position behind it; newest first."""
        if len(text) < CONTEXT_LENGTH:
            return []
        found = []
        position = self._newest.get(hash(tuple(text[-CONTEXT_LENGTH:])), _NONE)
        for _ in range(_MOST_OCCURRENCES):
            if position < self._first:
                break
            length = self._match_length(position, text)
            if length >= CONTEXT_LENGTH:
                found.append((length, position + 1))
            position = self._earlier[position - self._origin]
        return found

    def _match_length(self, position: int, text: Seq[int]) -> int:
        """Tokens up to and with ``position`` that are the last ones of ``text``."""
        end = position - self._origin
        most = min(end - (self._first - self._origin) + 1, len(text), LONGEST_MATCH)
        length = 0
        while length < most and self._tokens[end - length] == text[-1 - length]:
            length += 1
        return length
