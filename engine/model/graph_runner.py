"""Runs the target through forwards that were captured once and are replayed, and everything else through the runner.

A captured forward has one shape, reads its step from one tensor and leaves its logits in another. Which steps it
serves is the buckets' affair; how a device captures is behind ``Capture``. The numbers are those that the runner gives
for the same padded step: the bounds that a capture fixes (most rows, longest context) only size what is launched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from engine.model.flat_batch import FlatBatch
from engine.model.forward_batch import unpack
from engine.model.row_buckets import RowBucket, find_bucket
from engine.model.runner import ModelRunner
from engine.model.upload import upload, upload_into
from engine.scheduling.scheduler import ScheduledBatch
from engine.types import Draft, Progress

logger = logging.getLogger(__name__)

Replay = Callable[[], None]
# Records what a function does on the device; what it returns does it again, on whatever the same tensors then hold.
Capture = Callable[[Callable[[], None]], Replay]


class CapturedForward:
    """One bucket's forward.

    Args:
        logits: float32 ``[at least num_rows, vocab_size]``, where the replayed forward leaves its result.
    """

    def __init__(self, bucket: RowBucket, runner: ModelRunner, capture: Capture, logits: torch.Tensor) -> None:
        self._bucket = bucket
        self._logits = logits[: bucket.num_rows]
        null_step = bucket.null_step()
        self._packed = upload(null_step.pack(), logits.device)

        def forward() -> None:
            batch = unpack(
                self._packed, null_step, max_rows=bucket.max_rows, max_context=bucket.table_width * runner.block_size
            )
            with torch.inference_mode():
                self._logits.copy_(runner.run(batch))

        self._replay = capture(forward)

    def __call__(self, flat: FlatBatch, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """float32 ``[num_logit_rows, vocab_size]``; the next replay of any bucket overwrites them.

        Args:
            input_ids: see ``ModelRunner.forward_flat``.
        """
        upload_into(self._packed, flat.pad(self._bucket.shape).pack())
        if input_ids is not None:
            self._packed[: len(input_ids)] = input_ids  # they come first
        self._replay()
        return self._logits[: len(flat.logit_rows)]


class GraphRunner:
    """``forward`` and ``forward_flat`` as ``ModelRunner`` has them; ``capture_forwards`` makes one."""

    def __init__(self, runner: ModelRunner, forwards: dict[RowBucket, CapturedForward]) -> None:
        self._runner = runner
        self._forwards = forwards
        self._buckets = sorted(forwards, key=lambda bucket: bucket.num_rows)

    def forward(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> torch.Tensor:
        """As ``ModelRunner.forward``, but the logits may be float32, and live until the next forward only."""
        return self.forward_flat(self._runner.flatten(batch, drafts))

    def forward_flat(self, flat: FlatBatch, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """As ``forward``, of rows that are laid out already; see ``ModelRunner.forward_flat``."""
        bucket = find_bucket(self._buckets, flat)
        if bucket is None:
            return self._runner.forward_flat(flat, input_ids)
        return self._forwards[bucket](flat, input_ids)


def capture_forwards(
    runner: ModelRunner, buckets: Seq[RowBucket], capture: Capture, progress: Progress
) -> GraphRunner | None:
    """Capture every bucket, or none: None, with one line in the log that says why, where that fails.

    The largest comes first, so that the others find room in the memory that it has left behind.

    Args:
        buckets: at least one.
        progress: told the stage and the fraction done.
    """
    began = time.monotonic()
    forwards: dict[RowBucket, CapturedForward] = {}
    try:
        logits = runner.empty_logits(max(bucket.num_rows for bucket in buckets))
        for bucket in sorted(buckets, key=lambda bucket: -bucket.num_rows):
            progress("capturing CUDA graphs", len(forwards) / len(buckets))
            forwards[bucket] = CapturedForward(bucket, runner, capture, logits)
    except Exception as error:  # out of memory, or whatever a model, a kernel or a driver does not allow in a capture
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        logger.warning("steps run without CUDA graphs, which is slower, as capturing failed: %s", reason)
        return None
    seconds = time.monotonic() - began
    logger.info("captured %d CUDA graphs for up to %d rows in %.1f s", len(buckets), len(logits), seconds)
    return GraphRunner(runner, forwards)
