"""The finished outputs of all requests, each tenant's apart, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from engine.speculation.guess import Guess
from engine.speculation.output_index import OutputIndex


class SharedSuffixIndex:
    """Outputs by salt. A text is only ever continued from outputs with the same salt.

    Args:
        max_tokens: of all outputs together; the oldest make room, whoever's they are.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tenants: dict[str, OutputIndex] = {}
        self._salts: deque[str] = deque()  # of each output, oldest first
        self.num_tokens = 0

    def add(self, salt: str, output: Seq[int]) -> None:
        """Of an output that is too long for the whole memory its end is kept."""
        output = output[-self._max_tokens :]
        if not output:
            return
        while self.num_tokens + len(output) > self._max_tokens:
            self._drop_oldest()
        self._tenants.setdefault(salt, OutputIndex()).add(output)
        self._salts.append(salt)
        self.num_tokens += len(output)

    def continuation(self, salt: str, text: Seq[int]) -> Iterator[Guess]:
        """See ``OutputIndex.continuation``."""
        tenant = self._tenants.get(salt)
        return tenant.continuation(text) if tenant is not None else iter(())

    def _drop_oldest(self) -> None:
        salt = self._salts.popleft()
        tenant = self._tenants[salt]
        self.num_tokens -= tenant.drop_oldest()
        if not tenant.num_tokens:
            del self._tenants[salt]
