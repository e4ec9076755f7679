"""Inter-token targets: how long a step may be for those who take part in it."""

from __future__ import annotations

from engine.scheduling.scheduler import ScheduledBatch


def strictest_target(batch: ScheduledBatch, default: float | None) -> float | None:
    """Seconds that the most hurried request which draws a token allows the step; None if none has a target.

    Args:
        default: of a request that does not say otherwise.
    """
    targets = [entry.sequence.speculation.itl_slo or default for entry in batch if entry.samples]
    return min((target for target in targets if target is not None), default=None)
