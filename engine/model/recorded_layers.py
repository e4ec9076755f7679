"""All decoder layers of a CPU model as one recording: a step then costs what is computed, not the Python around it.

What graphs are on CUDA. The layers' own code says once which native calls it makes; it is not rewritten. Steps of more
rows than were recorded for run it as before, and so do steps of another engine over the same model, and models whose
layers compute anything by other means.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from engine.model.attention import PagedAttention
from engine.model.flat_batch import FlatBatch
from engine.model.forward_batch import ForwardBatch
from engine.model.recording import NotRecordable, Recording
from engine.model.runner import ModelRunner
from engine.native.functions import NativeLibrary

logger = logging.getLogger(__name__)

# A step of more rows takes so long that the Python around it no longer shows.
_MAX_ROWS = 256
# Of the trial steps; the first is recorded.
_TRIAL_ROWS = (5, 1, 2, 19)


class RecordedLayers(nn.Module):
    """Stands in for the layers that it was recorded from.

    Args:
        rows: ``[1, num_rows, width]``, what the first layer was given in some step.
        keywords: what all of them were given beside it.
        max_rows: steps of more run the layers themselves.

    Raises:
        NotRecordable: see ``Recording``.
    """

    def __init__(
        self, library: NativeLibrary, layers: nn.ModuleList, rows: torch.Tensor, keywords: dict[str, Any], max_rows: int
    ) -> None:
        super().__init__()
        self.layers = layers
        self._recording = Recording(library, max_rows=max_rows)
        self._attention: PagedAttention = keywords["paged_attention"].lasting(max_rows)
        # Where all replays find what differs from step to step.
        self._inputs = [_room_for(tensor, max_rows) for tensor in (rows, *_angles(keywords))]
        for room, tensor in zip(self._inputs, (rows, *_angles(keywords)), strict=True):
            room[:, : rows.shape[1]] = tensor

        first, *angles = (room[:, : rows.shape[1]] for room in self._inputs)
        lasting = {**keywords, "paged_attention": self._attention}
        if angles:
            lasting["position_embeddings"] = tuple(angles)
        for layer in layers:
            first = self._recording.record(partial(layer, **lasting), first)
        self._output = first.as_strided((1, max_rows, first.shape[2]), (0, first.shape[2], 1))

    def forward(self, rows: torch.Tensor, **keywords: Any) -> torch.Tensor:
        """
        Args:
            rows: ``[1, num_rows, width]``.

        Returns:
            The same behind the last layer; of few rows, to be read before the next step.
        """
        num_rows = rows.shape[1]
        attention: PagedAttention = keywords["paged_attention"]
        if num_rows > self._recording.max_rows or not self._attention.can_become(attention):
            for layer in self.layers:
                rows = layer(rows, **keywords)
            return rows
        for room, tensor in zip(self._inputs, (rows, *_angles(keywords)), strict=True):
            room[:, :num_rows] = tensor
        self._attention.become(attention)
        self._recording.replay(num_rows)
        attention.num_calls += self._attention.num_calls
        return self._output[:, :num_rows]


def record_layers(
    model: PreTrainedModel,
    runner: ModelRunner,
    library: NativeLibrary,
    *,
    max_model_len: int,
    max_rows: int = _MAX_ROWS,
) -> bool:
    """Replace the layers of the model that ``runner`` runs by their recording, if that changes no bit of the logits."""
    found = _find_layers(model)
    if found is None:
        return False
    parent, name, layers = found
    steps = [_trial_step(runner, num_rows, max_model_len) for num_rows in _TRIAL_ROWS]
    expected = [runner.run(step) for step in steps]
    try:
        with torch.inference_mode():
            recorded = RecordedLayers(library, layers, *_first_call(layers, runner, steps[0]), max_rows)
    except NotRecordable as reason:
        logger.info("the layers of this model are run one by one, which is slower: they use %s", reason)
        return False
    setattr(parent, name, nn.ModuleList([recorded]))
    if all(torch.equal(runner.run(step), logits) for step, logits in zip(steps, expected, strict=True)):
        return True
    setattr(parent, name, layers)
    logger.info("the layers of this model are run one by one, which is slower: recorded, they gave other numbers")
    return False


def _angles(keywords: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Cosines and sines of the positions, each ``[1, num_rows, width]``, of models that have them."""
    return keywords.get("position_embeddings") or ()


def _room_for(tensor: torch.Tensor, max_rows: int) -> torch.Tensor:
    return torch.zeros(1, max_rows, tensor.shape[2], dtype=tensor.dtype)


def _find_layers(model: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList] | None:
    """The list of decoder layers, whose it is, and its name there."""
    num_layers = model.config.get_text_config().num_hidden_layers
    found = [
        (parent, name, layers)
        for parent in model.modules()
        for name, child in parent.named_children()
        if (layers := _as_layers(child)) is not None and len(layers) == num_layers
        if not isinstance(parent, RecordedLayers)
    ]
    return found[0] if len(found) == 1 else None


def _as_layers(module: nn.Module) -> nn.ModuleList | None:
    """A list of modules, the original one if it was recorded for another engine."""
    if not isinstance(module, nn.ModuleList):
        return None
    return module[0].layers if len(module) == 1 and isinstance(module[0], RecordedLayers) else module


def _first_call(layers: nn.ModuleList, runner: ModelRunner, step: ForwardBatch) -> tuple[torch.Tensor, dict[str, Any]]:
    """What the first layer is called with in a step."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = layers[0].register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    runner.run(step)
    hook.remove()
    ((rows, *others), keywords) = calls[0]
    if others:
        raise NotRecordable("more than one input without a name")
    return rows, keywords


def _trial_step(runner: ModelRunner, num_rows: int, max_model_len: int) -> ForwardBatch:
    """One sequence of different tokens, at positions far apart, so that no two rows are alike in anything."""
    num_rows = min(num_rows, runner.num_slots, max_model_len)
    num_blocks = -(-num_rows // runner.block_size)
    apart = max((max_model_len - 1) // num_rows, 1)
    flat = FlatBatch(
        input_ids=list(range(num_rows)),
        positions=[row * apart for row in range(num_rows)],
        slots=list(range(num_rows)),
        logit_rows=list(range(num_rows)),
        row_counts=[num_rows],
        context_lengths=[num_rows],
        block_tables=[list(range(num_blocks))],
        table_width=num_blocks,
    )
    return runner.send(flat)
