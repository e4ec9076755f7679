"""A model and a draft model made of it: one that always agrees, and one that often does."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from transformers import PreTrainedModel


def deepened(model: PreTrainedModel, num_more: int = 2) -> PreTrainedModel:
    """A copy with layers behind the last that add exactly nothing: the same logits, bit for bit.

    Args:
        model: of Llama's or Qwen3's architecture, untouched.
    """
    deep = _with_layers(model, model.config.num_hidden_layers + num_more)
    layers = deep.model.layers
    for index in range(len(layers), len(layers) + num_more):
        layer = type(layers[0])(deep.config, index).to(model.dtype)
        with torch.no_grad():
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        layers.append(layer)
    return deep.eval()


def truncated(model: PreTrainedModel, num_layers: int = 1) -> PreTrainedModel:
    """A copy of the first layers with the same embeddings and output layer."""
    short = _with_layers(model, num_layers)
    short.model.layers = nn.ModuleList(short.model.layers[:num_layers])
    return short.eval()


def _with_layers(model: PreTrainedModel, number: int) -> PreTrainedModel:
    """A copy whose configuration, which it shares with nobody, has that number of layers."""
    copy = deepcopy(model)
    copy.config.num_hidden_layers = number
    kinds = getattr(copy.config, "layer_types", None)
    if kinds is not None:
        copy.config.layer_types = (list(kinds) * number)[:number]
    return copy
