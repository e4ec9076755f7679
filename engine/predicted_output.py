"""What a client expects a request to say, and where in it the output stands. Knows tokens; nothing of drafts.

The output may leave the prediction and come back: where tokens were put in, left out or replaced, the place is found
again by the run of tokens that both have. Whatever is found is only a guess at what follows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq

# So far behind the place where they parted, one equal token is enough to go on from; elsewhere it takes two.
_NEAR = 32
# Longer runs prove no more, and the places looked at are so many on either side of the parting.
_LONGEST_RUN = 16
_MOST_PLACES = 64


class PredictedOutput:
    """A prediction and a place in it, or none.

    Args:
        token_ids: the whole prediction.

    Attributes:
        num_in_step: tokens that the output has followed without a parting.
    """

    def __init__(self, token_ids: Seq[int]) -> None:
        self._token_ids = tuple(token_ids)
        self._places: dict[int, list[int]] = {}
        for place, token_id in enumerate(self._token_ids):
            self._places.setdefault(token_id, []).append(place)
        self._is_accepted = bytearray(len(self._token_ids))
        self._next: int | None = 0
        self._parting = 0
        self._num_since_parting = 0
        self.num_in_step = 0

    @property
    def num_accepted(self) -> int:
        """Tokens of the prediction that the output has followed."""
        return sum(self._is_accepted)

    @property
    def num_rejected(self) -> int:
        """The others, so far."""
        return len(self._token_ids) - self.num_accepted

    @property
    def is_aligned(self) -> bool:
        """Whether there is a place, with tokens behind it."""
        return self._next is not None and self._next < len(self._token_ids)

    def following(self, length: int) -> tuple[int, ...]:
        """At most ``length`` tokens that the output should go on with; none without a place."""
        return () if self._next is None else self._token_ids[self._next : self._next + length]

    def follow(self, output: Seq[int]) -> None:
        """The output has got one token more.

        Args:
            output: its last tokens, the new one among them; what is before the output does not matter.
        """
        if self.is_aligned and self._next is not None and self._token_ids[self._next] == output[-1]:
            self._is_accepted[self._next] = True
            self._next += 1
            self.num_in_step += 1
            return
        if self.num_in_step and self._next is not None:
            self._parting = self._next
            self._num_since_parting = 0
        self.num_in_step = 0
        self._num_since_parting += 1
        self._next = self._find(output)

    def _find(self, output: Seq[int]) -> int | None:
        """The place behind the longest run that ends where the output ends; of equally long ones the nearest."""
        best: tuple[int, int] | None = None
        found = None
        for place in self._candidates(output[-1]):
            run = self._run_before(place, output)
            is_near = self._parting <= place < self._parting + _NEAR
            if run < 2 and not is_near:
                continue
            distance = place - self._parting
            merit = run, -distance if distance >= 0 else distance - len(self._token_ids)
            if best is None or merit > best:
                best, found = merit, place + 1
        if found is None and self._num_since_parting == 1:
            return self._parting + 1  # one token in the place of another is what changes most often
        return found

    def _candidates(self, token_id: int) -> list[int]:
        """Places of the token around the parting."""
        places = self._places.get(token_id, [])
        middle = bisect_left(places, self._parting)
        return places[max(middle - _MOST_PLACES, 0) : middle + _MOST_PLACES]

    def _run_before(self, place: int, output: Seq[int]) -> int:
        """How many tokens up to and with ``place`` are the output's last ones."""
        most = min(place + 1, len(output), _LONGEST_RUN)
        run = 0
        while run < most and self._token_ids[place - run] == output[-1 - run]:
            run += 1
        return run
