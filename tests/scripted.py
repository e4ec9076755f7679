"""An engine whose target is a formula over what it really finds in the KV slots it is pointed at.

Each slot holds a digest of the token computed there and of all the digests before it, as keys and values do in a real
model. So a block that is shared wrongly, a rejected token in the prefix cache or a position skipped changes the
next token, and that in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch

from engine.core import EngineCore
from engine.model.flat_batch import FlatBatch
from engine.sampling.logits import SamplingRow
from engine.sampling.logprobs import ScoreRow
from engine.scheduling.block_manager import NULL_BLOCK, BlockManager
from engine.scheduling.scheduler import ScheduledBatch, Scheduler
from engine.speculation.controller import FixedDraftLength
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.trace import NO_RECORDER, StepRecorder
from engine.speculation.verifier import Verifier
from engine.types import Draft, TokenLogprob

VOCAB_SIZE = 6
END_TOKEN = 0


def digests_of(token_ids: Seq[int]) -> list[int]:
    """What the slots of a text hold once it is computed."""
    digests: list[int] = []
    for token_id in token_ids:
        digests.append(hash((*digests, token_id)))
    return digests


def token_after(digest: int) -> int:
    """The target's choice: an end token now and then, otherwise one of the others."""
    return END_TOKEN if digest % 41 == 0 else 1 + digest % (VOCAB_SIZE - 1)


def next_token(token_ids: Seq[int]) -> int:
    return token_after(digests_of(token_ids)[-1])


def continue_plainly(prompt: list[int], max_tokens: int) -> list[int]:
    """The answer to a prompt, without any engine."""
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + max_tokens:
        token_ids.append(next_token(token_ids))
        if token_ids[-1] == END_TOKEN:
            break
    return token_ids[len(prompt) :]


class ScriptedRunner:
    """Writes and reads slots exactly as the paged attention does.

    Attributes:
        slots: the digest in each slot; None where nothing was ever written.
        batches: every step's batch and drafts, in order.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.batches: list[tuple[ScheduledBatch, list[Draft]]] = []
        self._block_size = block_size

    def read(self, block_table: list[int], length: int) -> list[int | None]:
        """The digests of the first ``length`` positions."""
        return [self.slots[self._slot(block_table, position)] for position in range(length)]

    def forward(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> Any:
        """The target's choice at each row whose logits are wanted."""
        self.batches.append((batch, list(drafts)))
        choices: list[int] = []
        for entry, draft in zip(batch, drafts, strict=True):
            sequence, start = entry.sequence, entry.sequence.num_computed_tokens
            assert len(draft.token_ids) <= entry.max_draft_length
            assert entry.samples or not entry.max_draft_length
            rows = sequence.token_ids[start : start + entry.num_tokens] + list(draft.token_ids)
            context = self.read(sequence.block_table, start)
            assert None not in context, "a row reads a slot that was never written"
            for position, token_id in enumerate(rows, start):
                context.append(hash((*context, token_id)))
                self.slots[self._slot(sequence.block_table, position)] = context[-1]
            wanted = list(entry.scored_positions)
            if entry.samples:
                wanted += range(start + entry.num_tokens - 1, start + len(rows))
            choices += [token_after(digest) for position in wanted if (digest := context[position]) is not None]
        return choices

    def _slot(self, block_table: list[int], position: int) -> int:
        block = block_table[position // self._block_size]
        assert block != NULL_BLOCK
        return block * self._block_size + position % self._block_size


class ScriptedDraftRunner:
    """A draft model that says what the target says, if it finds in its own slots what it should.

    Attributes:
        num_rows: rows of each forward, in order.
    """

    def __init__(self, num_blocks: int, block_size: int, *, num_logits: int = VOCAB_SIZE) -> None:
        self.num_rows: list[int] = []
        self._digests: list[int | None] = [None] * (num_blocks * block_size)
        self._block_size = block_size
        self._num_logits = num_logits

    def forward_flat(self, flat: FlatBatch, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """One-hot logits, ``[num_logit_rows, num_logits]``."""
        self.num_rows.append(flat.num_rows)
        token_ids = iter(flat.input_ids if input_ids is None else input_ids.tolist())
        places = iter(zip(flat.positions, flat.slots, strict=True))
        choices: list[int] = []
        for table, num_rows, length in zip(flat.block_tables, flat.row_counts, flat.context_lengths, strict=True):
            context = [self._digests[self._slot(table, position)] for position in range(length - num_rows)]
            assert None not in context, "a row reads a slot that was never written"
            for position in range(length - num_rows, length):
                slot = self._slot(table, position)
                assert next(places) == (position, slot)
                context.append(hash((*context, next(token_ids))))
                self._digests[slot] = context[-1]
                choices.append(token_after(context[-1]))
        logits = torch.zeros(len(flat.logit_rows), self._num_logits)
        logits[range(len(logits)), [choices[row] for row in flat.logit_rows]] = 20.0
        return logits

    def _slot(self, block_table: list[int], position: int) -> int:
        block = block_table[position // self._block_size]
        assert block != NULL_BLOCK
        return block * self._block_size + position % self._block_size


class ScriptedSampler:
    """Takes the runner's choices as they are; the "log-probability" of a token says what the target chose there."""

    def sample(self, logits: Any, rows: Seq[SamplingRow | ScoreRow]) -> tuple[list[int], list[TokenLogprob | None]]:
        assert len(logits) == len(rows)
        tokens = [
            row.token_id if isinstance(row, ScoreRow) else choice for row, choice in zip(rows, logits, strict=True)
        ]
        logprobs = [TokenLogprob(token, float(choice)) for token, choice in zip(tokens, logits, strict=True)]
        return tokens, list(logprobs)


class RecitingSampler:
    """Says a text token by token, whatever the runner found."""

    def __init__(self, token_ids: Seq[int]) -> None:
        self._token_ids = token_ids

    def sample(self, logits: Any, rows: Seq[SamplingRow]) -> tuple[list[int], list[TokenLogprob | None]]:
        tokens = [self._token_ids[row.output_index] if row.output_index < len(self._token_ids) else 0 for row in rows]
        return tokens, [TokenLogprob(token, float(row.output_index)) for token, row in zip(tokens, rows, strict=True)]


class ScriptedEngine:
    """A core over a ``ScriptedRunner``, with its parts in reach."""

    def __init__(
        self,
        *,
        drafter: Drafter | None = None,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        enable_prefix_caching: bool = True,
        sampler: ScriptedSampler | RecitingSampler | None = None,
        recorder: StepRecorder = NO_RECORDER,
    ) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self.block_manager = BlockManager(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching)
        self.scheduler = Scheduler(
            self.block_manager, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.runner = ScriptedRunner(num_blocks, block_size)
        self.core = EngineCore(
            scheduler=self.scheduler,
            controller=FixedDraftLength(),
            drafter=drafter or NullDrafter(),
            runner=self.runner,
            verifier=Verifier(sampler or ScriptedSampler()),  # type: ignore[arg-type]
            end_token_ids=frozenset({END_TOKEN}),
            recorder=recorder,
        )
