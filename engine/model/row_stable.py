"""Layers whose rows do not depend on how many other rows there are, made of the library's own.

A matrix library picks its kernel, and with it the order of its sums, by the number of rows. Two steps with different
batches may then differ in the last bit of the same row, and a near-tie between two tokens falls the other way. Which
row counts agree with each other depends on library, type and processor, so it is measured on the real weights at
start: the row counts that agree form the layer's buckets, and every call is padded up to one or split at the largest.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from engine.errors import ConfigError

# Tried at start. 1 is worth having, as plain decoding of one stream has one row; the rest is a grid for padding.
CANDIDATE_ROW_COUNTS = (1, 4, 8, 16, 32, 64, 128, 256)
# A small row count is repeated over at least so many rows.
_LEAST_ROWS = 16
# Numbers that the library leaves to one thread, and a multiple of those that it handles at once.
_UNSHARED_NUMBERS = 16_384
_NUMBERS_IN_VECTORS = 64
_HOMES_OF_ACTIVATIONS = frozenset({"torch.nn.modules.activation", "transformers.activations"})
# A product larger than this gains nothing from more rows, and trying them would take seconds.
_MOST_RESULTS = 1 << 22


class RowStableLinear(nn.Module):
    """A linear layer that is called only with row counts known to agree bit for bit.

    Args:
        linear: the layer to stand in for; its parameters are shared.
        buckets: row counts that agree, ascending.
    """

    def __init__(self, linear: nn.Linear, buckets: Seq[int]) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.buckets = tuple(buckets)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input: ``[..., in_features]``.
        """
        rows = input.reshape(-1, self.in_features)
        parts = [self._multiply(part) for part in rows.split(self.buckets[-1])]
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.view(*input.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        num_rows = len(rows)
        bucket = next(bucket for bucket in self.buckets if bucket >= num_rows)
        if bucket > num_rows:
            rows = functional.pad(rows, (0, 0, 0, bucket - num_rows))
        return functional.linear(rows, self.weight, self.bias)[:num_rows]


class RowStableActivation(nn.Module):
    """A function of single numbers, applied to so few rows at once that no thread gets only part of a vector.

    The library shares out the numbers among threads, and computes what is left over at the end of a share with other
    code than the rest, which rounds otherwise. What is too small to be shared out has no end but its own.

    Args:
        function: the module to stand in for.
    """

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self._function = function

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Args:
            input: ``[..., width]``.
        """
        width = input.shape[-1]
        rows = input.reshape(-1, width)
        # A width that fills no whole number of vectors would leave rows at other places in them.
        num_rows = max(_UNSHARED_NUMBERS // width, 1) if width % _NUMBERS_IN_VECTORS == 0 else 1
        if len(rows) <= num_rows:
            return self._function(input)  # type: ignore[no-any-return]
        return torch.cat([self._function(part) for part in rows.split(num_rows)]).view(input.shape)


def stabilise(model: nn.Module) -> None:
    """Replace every linear layer and activation of a CPU model, in place.

    Raises:
        ConfigError: the model multiplies by a weight that is in no linear layer, so its rows cannot be kept stable.
    """
    buckets: dict[tuple[int, int, bool], tuple[int, ...]] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__module__ in _HOMES_OF_ACTIVATIONS:
                setattr(parent, name, RowStableActivation(child))
            linear = _as_linear(child)
            if linear is not None:
                shape = (linear.in_features, linear.out_features, linear.bias is not None)
                if shape not in buckets:
                    buckets[shape] = agreeing_row_counts(linear)
                setattr(parent, name, RowStableLinear(linear, buckets[shape]))
    _refuse_other_products(model)


def _as_linear(module: nn.Module) -> nn.Linear | None:
    """The module as a linear layer; None if it is none. GPT-2's convolution of width 1 is one, transposed."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return module
    if type(module) is not Conv1D:
        return None
    weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
    with torch.device("meta"):
        linear = nn.Linear(*weight.shape)
    linear.weight, linear.bias = nn.Parameter(weight.T.contiguous(), requires_grad=False), bias
    return linear


def _refuse_other_products(model: nn.Module) -> None:
    """Experts, convolutions and the like hold matrices of their own and multiply by them in ways of their own."""
    for path, module in model.named_modules():
        if isinstance(module, RowStableLinear | nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.squeeze().dim() > 1:
                raise ConfigError(
                    f"the weight {path}.{name} of this model is in a {type(module).__name__}, "
                    "whose results on the CPU may depend on what else is in the batch"
                )


def agreeing_row_counts(linear: nn.Linear) -> tuple[int, ...]:
    """The largest set of candidate row counts whose results agree bit for bit, wherever in the batch a row stands.

    Raises:
        ConfigError: not even one row count agrees with itself, so the library is not deterministic.
    """
    rows, weight = _cancelling_operands(linear)
    classes: list[tuple[list[int], torch.Tensor]] = []
    for count in CANDIDATE_ROW_COUNTS:
        if classes and count * linear.out_features > _MOST_RESULTS:
            break
        result = _multiply_by(count, rows[: max(count, _LEAST_ROWS)], weight, linear.bias)
        if result is None:
            continue
        for index, (members, longest) in enumerate(classes):
            if torch.equal(longest[: len(result)], result[: len(longest)]):
                classes[index] = ([*members, count], max(longest, result, key=len))
                break
        else:
            classes.append(([count], result))
    if not classes:
        raise ConfigError(
            f"matrix products of {linear.in_features} x {linear.out_features} in {linear.weight.dtype} "
            "are not reproducible on this machine"
        )
    largest, _ = max(classes, key=lambda entry: len(entry[0]))
    return tuple(largest)


def _cancelling_operands(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and a weight of the layer's shape and type whose every product is exactly 0.

    With ordinary numbers two orders of summing nearly always round to the same bfloat16. Where everything cancels, the
    rounding of the sums is all that is left, and any other order shows at once.
    """
    generator = torch.Generator().manual_seed(0)
    num_pairs = linear.in_features // 2
    order = torch.randperm(linear.in_features, generator=generator)
    rows = torch.zeros(CANDIDATE_ROW_COUNTS[-1], linear.in_features)
    weight = torch.zeros(linear.out_features, linear.in_features)
    half_rows = torch.randn(len(rows), num_pairs, generator=generator)
    half_weight = torch.randn(len(weight), num_pairs, generator=generator)
    rows[:, order[: 2 * num_pairs]] = half_rows.repeat(1, 2)
    weight[:, order[: 2 * num_pairs]] = torch.cat([half_weight, -half_weight], dim=1)
    return rows.to(linear.weight), weight.to(linear.weight)


def _multiply_by(
    count: int, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """All rows multiplied, ``count`` at a time; None if a row's bits depend on its place among them."""
    straight, shifted = (
        torch.cat([functional.linear(part, weight, bias) for part in operand.split(count)])
        for operand in (rows, rows.roll(1, 0))
    )
    return straight if torch.equal(straight, shifted.roll(-1, 0)) else None
