"""How far a draft model has computed each sequence. Knows blocks and tokens; nothing of tensors.

The draft model's keys and values lie in a pool of its own, in the blocks that the sequences' tables name. Those of a
position are there only if the draft model has been run for it. It has not where a sequence was decoded without drafts,
where its beginning came from the prefix cache, or where it was preempted and has got other blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.sequence import Sequence


@dataclass(slots=True)
class _State:
    """Of one sequence between two preemptions.

    Attributes:
        num_computed: leading confirmed tokens that the draft model has computed.
        num_named: leading blocks whose content is written down.
        drafted: tokens that it has computed behind them, confirmed or not.
        drafted_in: the blocks that these lay in when they were computed.
    """

    num_preemptions: int
    num_computed: int
    num_named: int
    drafted: tuple[int, ...] = ()
    drafted_in: tuple[int, ...] = ()


class DraftCache:
    """Keeps account for one pool.

    Args:
        block_size: tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._states: dict[str, _State] = {}
        # By block the hash of the tokens up to its end, if the draft model has computed all of it.
        self._content: dict[int, bytes] = {}

    def num_computed(self, sequence: Sequence) -> int:
        """Leading confirmed tokens that need not be computed again; never the last, whose logits are always wanted."""
        state = self._states.get(sequence.request_id)
        if state is None or state.num_preemptions != sequence.num_preemptions:
            state = self._begin(sequence)
        for drafted, confirmed in zip(state.drafted, sequence.token_ids[state.num_computed : -1], strict=False):
            # Blocks that only a draft needed are given back, and others may have written to them since.
            index = state.num_computed // self._block_size
            if drafted != confirmed or state.drafted_in[index] != sequence.block_table[index]:
                break
            state.num_computed += 1
        state.drafted = ()
        self._name_blocks(sequence, state)
        return state.num_computed

    def compute(self, sequence: Sequence, num_tokens: int) -> None:
        """The next ``num_tokens`` confirmed tokens behind ``num_computed`` are being computed."""
        state = self._states[sequence.request_id]
        self._unname(sequence, state.num_computed, num_tokens)
        state.num_computed += num_tokens

    def compute_draft(self, sequence: Sequence, drafted: Seq[int]) -> None:
        """Behind all confirmed tokens, which are computed, these were."""
        state = self._states[sequence.request_id]
        self._unname(sequence, state.num_computed, len(drafted))
        state.drafted = tuple(drafted)
        state.drafted_in = tuple(sequence.block_table)

    def settle(self, sequence: Sequence) -> None:
        """Nothing is drafted in this step: keep what was right of the last draft. Later its blocks may be another's."""
        if sequence.request_id in self._states:
            self.num_computed(sequence)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence; what its blocks hold is remembered. Unknown sequences are fine."""
        self._states.pop(sequence.request_id, None)

    def _begin(self, sequence: Sequence) -> _State:
        """Blocks from the prefix cache may have been computed by the draft model too."""
        num_known = 0
        for block, block_hash in zip(sequence.block_table, sequence.block_hashes, strict=False):
            if self._content.get(block) != block_hash:
                break
            num_known += 1
        state = _State(sequence.num_preemptions, num_known * self._block_size, num_known)
        self._states[sequence.request_id] = state
        return state

    def _name_blocks(self, sequence: Sequence, state: _State) -> None:
        """Write down what is in the blocks that have been computed whole, as soon as the block manager has a name."""
        num_whole = min(state.num_computed // self._block_size, len(sequence.block_hashes))
        for index in range(state.num_named, num_whole):
            self._content[sequence.block_table[index]] = sequence.block_hashes[index]
        state.num_named = max(state.num_named, num_whole)

    def _unname(self, sequence: Sequence, start: int, num_tokens: int) -> None:
        """Blocks that are written to hold what they held no longer."""
        if num_tokens:
            last = (start + num_tokens - 1) // self._block_size
            for block in sequence.block_table[start // self._block_size : last + 1]:
                self._content.pop(block, None)
