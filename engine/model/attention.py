"""Paged attention behind transformers' attention interface: one call a layer for the whole ragged batch.

The model code is transformers', unchanged. It finds ``attend`` by name and hands it the step's ``PagedAttention``,
which writes the new keys and values into the pool and lets each row see the positions up to its own.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from engine.errors import ConfigError
from engine.model.forward_batch import ForwardBatch
from engine.model.kv_pool import KVPool

ATTENTION_NAME = "draftahead"


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer asks for beside its tensors.

    Attributes:
        scale: factor on the scores.
        window: keys a row may look back over, itself included; None is all.
        softcap: scores become ``softcap * tanh(score / softcap)``; None is off.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What all attention layers of a model have in common: decides which backends serve it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    softcap: float | None


class AttentionBackend(Protocol):
    """A way to compute ``softmax(q k^T) v`` over paged keys.

    Attributes:
        name: what logs and fingerprints call it.
        is_capturable: whether it looks at a batch's tensors and bounds alone, never at ``flat``, so that a captured
            call serves every later batch of the same shape.
    """

    name: str
    is_capturable: bool

    def plan(self, batch: ForwardBatch, block_size: int) -> Any:
        """Indices that all layers of a step share."""

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: Any,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """
        Args:
            query: ``[num_rows, num_heads, head_dim]``.
            keys, values: ``[num_slots, num_kv_heads, head_dim]``, the step's own rows already in them.

        Returns:
            ``[num_rows, num_heads, head_dim]`` in the type of ``query``.
        """


class PagedAttention:
    """The pool, a backend and one step's plan: the one keyword that travels through the model.

    Attributes:
        num_calls: layers that have attended through it; the runner checks that all did.
    """

    def __init__(self, batch: ForwardBatch, pool: KVPool, backend: AttentionBackend) -> None:
        self.num_calls = 0
        self._slots = batch.slots
        self._room = batch.slots
        self._pool = pool
        self._backend = backend
        self._plan = backend.plan(batch, pool.block_size)

    def lasting(self, max_rows: int) -> PagedAttention:
        """The same step at addresses at which later ones of up to ``max_rows`` can take its place."""
        attention = copy(self)
        attention.num_calls = 0
        attention._room = torch.zeros(max_rows, dtype=self._slots.dtype)
        attention._slots = attention._room[: len(self._slots)].copy_(self._slots)
        return attention

    def can_become(self, step: PagedAttention) -> bool:
        """Whether the step writes to the same pool, which is what recorded calls do."""
        return step._pool is self._pool

    def become(self, step: PagedAttention) -> None:
        """Let what was recorded with this, which is ``lasting``, see another step."""
        self._room[: len(step._slots)] = step._slots
        self._plan.become(step._plan)

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        self.num_calls += 1
        self._pool.write(layer, self._slots, key, value)
        keys, values = self._pool.layer(layer)
        return self._backend.attend(query, keys, values, self._plan, options)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_attention: PagedAttention,
    is_causal: bool | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **unknown: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer.

    Args:
        query: ``[1, num_heads, num_rows, head_dim]``.
        key, value: ``[1, num_kv_heads, num_rows, head_dim]``.

    Returns:
        ``[1, num_rows, num_heads, head_dim]`` and no attention weights.

    Raises:
        ConfigError: the layer asks for something that this attention does not compute.
    """
    features = sorted(name for name, wanted in unknown.items() if wanted is not None and name not in _HARMLESS)
    if attention_mask is not None:
        features.append("an attention mask")
    if is_causal is False:
        features.append("attention to later tokens")
    if features:
        raise ConfigError(f"unsupported attention feature of this model: {', '.join(features)}")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    options = AttentionOptions(scale, sliding_window, softcap)
    output = paged_attention(
        module.layer_idx,  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        options,
    )
    return output.unsqueeze(0), None


# Keywords that transformers passes on to every attention and that change nothing here.
_HARMLESS = frozenset({"use_cache", "position_ids", "output_attentions", "cache_position"})


def register_attention() -> None:
    """Make ``attn_implementation="draftahead"`` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, attend)
