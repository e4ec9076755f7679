"""Requests as a trace has recorded them: how long they were, and what became of a draft at every place.

Knows what can be read off a trace. Refuses to know how it is played again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import ConfigError
from engine.speculation.trace import TracedRequest, TracedStep


@dataclass(slots=True)
class RecordedRequest:
    """One request that was drafted at fixed length.

    Attributes:
        num_prompt_tokens, num_output_tokens: how long it was.
    """

    num_prompt_tokens: int
    num_output_tokens: int = 0
    _positions: list[int] = field(default_factory=list)
    _drafts: list[TracedRequest] = field(default_factory=list)

    def add(self, part: TracedRequest) -> None:
        """Its part in the next step in which a token was drawn for it."""
        self._positions.append(part.position)
        self._drafts.append(part)
        self.num_output_tokens = part.position + part.accepted + 1  # one more where it ended within its draft

    def draft_at(self, position: int) -> tuple[list[float], int]:
        """The confidences of a draft there, and how many of its tokens are right.

        Inside a run of accepted tokens it is what was left of the draft that they came from.
        """
        index = bisect_right(self._positions, position) - 1
        draft = self._drafts[index]
        offset = position - draft.position
        return draft.confidences[offset:], max(draft.accepted - offset, 0)


def recorded_requests(steps: Iterable[TracedStep]) -> list[RecordedRequest]:
    """The requests that were drafted and whose every output token is in the trace, in order of arrival.

    Raises:
        ConfigError: not all of a draft was verified, so that nobody knows what became of the rest.
    """
    requests: dict[str, RecordedRequest] = {}
    drafted: set[str] = set()
    for step in steps:
        for part in step.requests:
            if part.reason is None:
                continue
            if part.length < len(part.confidences):
                raise ConfigError(
                    f"of {len(part.confidences)} tokens drafted for request {part.id} at token {part.position} "
                    f"{part.length} were verified: record with --draft-length fixed"
                )
            request = requests.setdefault(part.id, RecordedRequest(part.num_prompt_tokens))
            request.add(part)
            if part.confidences:
                drafted.add(part.id)
    return [request for name, request in requests.items() if name in drafted and request._positions[0] == 0]
