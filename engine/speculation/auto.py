"""The best of several drafters, for each request and at each step. Knows none of them by name.

Every proposal, taken or not, is compared with what the target said, so that each drafter is judged by all that it would
have got right (full information in the place of a bandit, as in "Not-a-Bandit", ICLR 2026).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from engine.params import SpeculationMode
from engine.scheduling.scheduler import ScheduledBatch, ScheduledSequence
from engine.sequence import Sequence
from engine.speculation.controller import PAUSED
from engine.speculation.draft_gate import DraftGate
from engine.speculation.drafter import NO_DRAFT, Drafter
from engine.speculation.survival import Survival
from engine.types import Draft, Verdict


class Source(NamedTuple):
    """One drafter among several.

    Attributes:
        mode: the requests that ask for this drafter alone; None if none can.
        gate: says when it is asked; None for a drafter that takes no time to speak of.
    """

    drafter: Drafter
    mode: SpeculationMode | None = None
    gate: DraftGate | None = None

    def serves(self, entry: ScheduledSequence) -> bool:
        if self.gate is not None and not entry.sequence.num_output_tokens:
            return False  # the first token waits for no drafter
        mode = entry.sequence.speculation.mode
        return entry.max_draft_length > 0 and mode in (SpeculationMode.AUTO, self.mode)


class _Proposal(NamedTuple):
    draft: Draft
    expected: float
    gate: DraftGate | None


class AutoDrafter:
    """Takes of all proposals for a sequence the one of which most tokens should be accepted.

    Args:
        sources: in order of preference where they promise as much; those that take time behind all others.
        clock: seconds that never go back.
    """

    def __init__(
        self, sources: Seq[Source], survival: Survival, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._sources = sources
        self._survival = survival
        self._clock = clock
        self._proposals: list[list[_Proposal]] = []

    def propose(self, batch: ScheduledBatch) -> list[Draft]:
        self._proposals = [[] for _ in batch]
        is_paused = [False] * len(batch)
        for source in self._sources:
            places = [place for place, entry in enumerate(batch) if source.serves(entry)]
            if source.gate is not None and places:
                wanted = places
                places = source.gate.choose(batch, places, [self._expected(place) for place in places])
                for place in wanted:
                    is_paused[place] = place not in places
            if places:
                self._ask(source, batch, places)
        return [
            max(proposals, key=lambda proposal: proposal.expected).draft
            if proposals
            else PAUSED
            if paused
            else NO_DRAFT
            for proposals, paused in zip(self._proposals, is_paused, strict=True)
        ]

    def observe(self, batch: ScheduledBatch, drafts: Seq[Draft], verdicts: Seq[Verdict]) -> None:
        for entry, proposals, verdict in zip(batch, self._proposals, verdicts, strict=True):
            for draft, _, _ in proposals:
                self._survival.observe(entry.sequence, draft, verdict.token_ids)
        for source in self._sources:
            source.drafter.observe(batch, drafts, verdicts)
            if source.gate is not None:
                self._judge(source.gate, batch, verdicts)

    def release(self, sequence: Sequence) -> None:
        self._survival.release(sequence)
        for source in self._sources:
            source.drafter.release(sequence)
            if source.gate is not None:
                source.gate.release(sequence)

    def _judge(self, gate: DraftGate, batch: ScheduledBatch, verdicts: Seq[Verdict]) -> None:
        drafts: list[Draft] = []
        num_right, others = 0, 0.0
        for proposals, verdict in zip(self._proposals, verdicts, strict=True):
            own = [proposal.draft for proposal in proposals if proposal.gate is gate]
            if own:
                drafts += own
                num_right += own[0].token_ids[0] == verdict.token_ids[0]
                others += max((each.expected for each in proposals if each.gate is not gate), default=0.0)
        if drafts:
            gate.judge(batch, drafts, num_right, others)

    def _expected(self, place: int) -> float:
        return max((proposal.expected for proposal in self._proposals[place]), default=0.0)

    def _ask(self, source: Source, batch: ScheduledBatch, places: Seq[int]) -> None:
        asked = ScheduledBatch([batch.entries[place] for place in places])
        began = self._clock()
        drafts = source.drafter.propose(asked)
        seconds = self._clock() - began
        served: list[ScheduledSequence] = []
        expected: list[float] = []
        for place, entry, draft in zip(places, asked, drafts, strict=True):
            if draft is NO_DRAFT:  # it is still reading, or this is not for it: that tells nothing of its drafts
                continue
            served.append(entry)
            expected.append(sum(self._survival.of(entry.sequence, draft)))
            if draft.token_ids:
                self._proposals[place].append(_Proposal(draft, expected[-1], source.gate))
        if source.gate is not None and served:
            source.gate.observe(ScheduledBatch(served), expected, seconds)
