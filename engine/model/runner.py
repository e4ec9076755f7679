"""Runs the target: one forward a step for prefill, decode and verify rows together."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from transformers import PreTrainedModel

from engine.errors import ConfigError
from engine.model.attention import ATTENTION_NAME, AttentionBackend, AttentionShape, PagedAttention, register_attention
from engine.model.flat_batch import NULL_BATCH, FlatBatch, flatten
from engine.model.forward_batch import ForwardBatch, send
from engine.model.kv_pool import KVPool
from engine.scheduling.scheduler import ScheduledBatch
from engine.types import Draft


class ModelRunner:
    """Owns the loaded model and the KV pool.

    Raises:
        ConfigError: the model does not send every layer through the paged attention, or asks for more than it computes.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool, backend: AttentionBackend) -> None:
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model
        self._pool = pool
        self._backend = backend
        self._device = model.device
        self._try_out()

    @property
    def block_size(self) -> int:
        return self._pool.block_size

    @property
    def num_slots(self) -> int:
        return self._pool.num_blocks * self._pool.block_size

    def forward(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> torch.Tensor:
        """Compute the scheduled rows, and store their keys and values.

        Returns:
            Logits ``[num_logit_rows, vocab_size]`` in the verifier's order, in the model's type.
        """
        return self.forward_flat(self.flatten(batch, drafts))

    def forward_flat(self, flat: FlatBatch, input_ids: torch.Tensor | None = None) -> torch.Tensor:
        """As ``forward``, of rows that are laid out already.

        Args:
            input_ids: int64 ``[num_rows]`` on the model's device, in the place of those in ``flat``.
        """
        batch = self.send(flat)
        if input_ids is not None:
            batch.input_ids.copy_(input_ids)
        return self.run(batch)

    def flatten(self, batch: ScheduledBatch, drafts: Seq[Draft]) -> FlatBatch:
        return flatten(batch, drafts, self._pool.block_size)

    def send(self, flat: FlatBatch) -> ForwardBatch:
        return send(flat, self._device)

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """As ``forward``, of a step that is on the device already. Asks nothing of the device on the way."""
        attention = PagedAttention(batch, self._pool, self._backend)
        torch.get_num_threads()  # makes the number known to OpenMP in this thread too, should it be a new one
        with torch.inference_mode():
            output = self._model(
                input_ids=batch.input_ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=batch.logit_rows,
                paged_attention=attention,
            )
        logits: torch.Tensor = output.logits[0]
        num_layers = self._model.config.get_text_config().num_hidden_layers
        assert attention.num_calls == num_layers, "a layer went around the paged attention"
        return logits

    def empty_logits(self, num_rows: int) -> torch.Tensor:
        """Room for logits that stay: float32 ``[num_rows, vocab_size]``."""
        vocab_size = self.run(self.send(NULL_BATCH)).shape[1]
        return torch.empty(num_rows, vocab_size, device=self._device)

    def forward_nothing(self) -> None:
        """One row into the null block: a step of plain decoding as far as its time goes."""
        self.run(self.send(NULL_BATCH))

    def _try_out(self) -> None:
        """So that an unsupported model fails at start and not at the first request."""
        try:
            self.forward_nothing()
        except Exception as error:  # whatever foreign code does not like about the way it is called
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ConfigError(
                f"model class {type(self._model).__name__} does not run on paged attention: {reason}"
            ) from error


def attention_shape(model: PreTrainedModel, block_size: int) -> AttentionShape:
    """What attention has to serve to serve this model. Raises as ``kv_shape``."""
    config = model.config.get_text_config()
    _, num_kv_heads, head_dim = kv_shape(model)
    return AttentionShape(
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=model.dtype,
        softcap=getattr(config, "attn_logit_softcapping", None),
    )


def kv_shape(model: PreTrainedModel) -> tuple[int, int, int]:
    """(layers, key-value heads, head dimension) of a model.

    Raises:
        ConfigError: its layers differ in these, so that one pool cannot hold them.
    """
    config = model.config.get_text_config()
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    dims = {m.head_dim for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "head_dim")}
    if dims - {head_dim}:
        raise ConfigError(f"the layers of this model have different head dimensions: {sorted(dims)}")
    return config.num_hidden_layers, num_kv_heads, head_dim
