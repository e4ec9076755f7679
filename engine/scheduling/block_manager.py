"""Who owns which KV block. Pure bookkeeping over block ids; the tensors are in ``engine.model.kv_pool``.

Every block but the null block is in exactly one state:

    free        content is garbage
    referenced  in the block table of at least one sequence; may be cached at the same time
    cached      in no block table, but its content is a known prefix and may be taken up again, until it is evicted
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

from engine.sequence import Sequence

NULL_BLOCK = 0  # absorbs the writes of padding rows; owned by nobody


class BlockManager:
    """Allocates blocks, shares equal prefixes, and evicts the least recently used cached block first.

    Args:
        num_blocks: blocks in the pool, the null block among them.
        block_size: tokens in a block.
        enable_prefix_caching: whether full blocks are published for reuse.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._num_references = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        # Blocks in no table, next to be taken first: never-published ones are put at the front, cached at the back.
        self._available: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_available_blocks(self) -> int:
        """Blocks in no block table (free or cached)."""
        return len(self._available)

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are referenced, 0..1."""
        return 1 - self.num_available_blocks / self.num_usable_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the block table cover ``num_tokens`` tokens; False, with nothing changed, if the pool cannot."""
        num_missing = self.num_blocks_for(num_tokens) - len(sequence.block_table)
        if num_missing > self.num_available_blocks:
            return False
        for _ in range(num_missing):
            sequence.block_table.append(self._take_block())
        return True

    def room_behind(self, sequence: Sequence, *, num_reserved: int) -> int:
        """Tokens behind its confirmed ones for which a sequence has or can get blocks, if some are left to others."""
        num_free = max(self.num_available_blocks - num_reserved, 0)
        return (len(sequence.block_table) + num_free) * self.block_size - len(sequence.token_ids)

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """Cached or shared blocks that hold the beginning of a sequence which has none yet.

        At least the last token is left to compute: its logits are what the request is waiting for.
        """
        if not self._enable_prefix_caching or sequence.needs_prompt_logprobs:
            return []
        blocks = []
        for block_hash in self._hashes(sequence, (len(sequence.token_ids) - 1) // self.block_size):
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_available_without(self, blocks: Seq[int]) -> int:
        """Blocks that would be available if ``blocks`` were referenced."""
        return self.num_available_blocks - sum(block in self._available for block in blocks)

    def adopt_prefix(self, sequence: Sequence, blocks: list[int]) -> None:
        """Start a sequence from what ``find_prefix`` gave."""
        assert not sequence.block_table
        for block in blocks:
            self._num_references[block] += 1
            self._available.pop(block, None)
        sequence.block_table = list(blocks)
        sequence.num_computed_tokens = len(blocks) * self.block_size

    def settle(self, sequence: Sequence, *, num_published_before: int) -> None:
        """After a step: publish the blocks that became final, give back those that only a rejected draft needed.

        Args:
            num_published_before: ``num_computed_tokens`` before the step.
        """
        if self._enable_prefix_caching:
            first = num_published_before // self.block_size
            last = sequence.num_computed_tokens // self.block_size
            hashes = self._hashes(sequence, last) if last > first else []
            for index in range(first, last):
                self._publish(sequence.block_table[index], hashes[index])
        self._trim(sequence, self.num_blocks_for(len(sequence.token_ids)))

    def release(self, sequence: Sequence) -> None:
        """Take all blocks from a sequence; what was published stays cached until it is evicted."""
        self._trim(sequence, 0)
        sequence.num_computed_tokens = 0

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Assert that free + referenced + cached blocks are all blocks, each counted once."""
        references = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                references[block] += 1
        assert references == self._num_references, "reference counts differ from the block tables"
        assert references[NULL_BLOCK] == 0, "the null block is in a block table"
        available = {block for block in range(1, self.num_blocks) if not references[block]}
        assert available == set(self._available), "a block is lost, or both referenced and available"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "prefix index out of step"

    def _take_block(self) -> int:
        block, _ = self._available.popitem(last=False)
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]
        self._num_references[block] = 1
        return block

    def _publish(self, block: int, block_hash: bytes) -> None:
        # Of two sequences that computed the same block side by side the first one's is kept for reuse.
        if block not in self._hash_of and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block

    def _trim(self, sequence: Sequence, num_blocks: int) -> None:
        # From the end, so that the tail of a prefix is evicted before its head.
        while len(sequence.block_table) > num_blocks:
            block = sequence.block_table.pop()
            self._num_references[block] -= 1
            if self._num_references[block] == 0:
                self._available[block] = None
                if block not in self._hash_of:
                    self._available.move_to_end(block, last=False)

    def _hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of the first ``num_blocks`` blocks, each over its tokens and the hash before it, or the salt."""
        hashes = sequence.block_hashes
        while len(hashes) < num_blocks:
            start = len(hashes) * self.block_size
            tokens = array("q", sequence.token_ids[start : start + self.block_size])
            parent = hashes[-1] if hashes else _digest(sequence.cache_salt.encode())
            hashes.append(_digest(parent + tokens.tobytes()))
        return hashes[:num_blocks]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
