"""Puts native modules in the place of those of a loaded CPU model; its code stays the library's.

Linear layers become native ones; queries, keys and values share one product, and so do gate and up. A module that is
more than a product of its weights (a gated layer, a normalisation) is replaced only if the native one gives the same
numbers on random rows: names alone prove nothing.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from engine.model.native_linear import DTYPES, NativeLinear
from engine.model.native_norm import LANES, NativeNorm

_JOINT_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_GATED_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# Largest difference, as a share of the largest number, that rounding explains.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def nativise(model: nn.Module, library: ctypes.CDLL) -> None:
    """Replace what can be replaced, in place; what cannot stays as it is."""
    for name, child in list(model.named_children()):
        native = _native(child, library)
        if native is not None:
            setattr(model, name, native)
            continue
        _join_projections(child, library)
        nativise(child, library)


def _native(module: nn.Module, library: ctypes.CDLL) -> nn.Module | None:
    if (linear := _servable(module)) is not None:
        return NativeLinear(library, [linear.weight], linear.bias)
    if type(module).__name__.endswith("RMSNorm"):
        return _native_norm(module, library)
    return _native_gated(module, library)


def _servable(module: object) -> nn.Linear | None:
    """The module if it is a linear layer that a native one can stand in for."""
    if type(module) is nn.Linear and module.weight.dtype in DTYPES and module.in_features % 2 == 0:
        return module
    return None


def _servable_children(parent: nn.Module, names: tuple[str, ...]) -> list[nn.Linear]:
    """Those of that name; empty unless all are servable."""
    linears = [linear for name in names if (linear := _servable(getattr(parent, name, None))) is not None]
    return linears if len(linears) == len(names) else []


def _native_gated(module: nn.Module, library: ctypes.CDLL) -> nn.Module | None:
    """``down(silu(gate(x)) * up(x))``; None if the module is something else."""
    linears = _servable_children(module, _GATED_PROJECTIONS)
    if not linears or any(linear.bias is not None for linear in linears[:2]):
        return None
    gate, up, down = linears
    native = nn.Sequential(
        NativeLinear(library, [gate.weight, up.weight]), NativeLinear(library, [down.weight], down.bias)
    )
    return native if _agree(module, native, gate.weight) else None


def _native_norm(module: nn.Module, library: ctypes.CDLL) -> nn.Module | None:
    """Some models keep the weight itself, some its distance from 1."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not isinstance(epsilon, float) or not isinstance(weight, torch.Tensor):
        return None
    if weight.dim() != 1 or len(weight) % LANES or weight.dtype not in DTYPES:
        return None
    for scale in (weight, 1 + weight.float()):
        native = NativeNorm(library, scale, epsilon, weight.dtype)
        if _agree(module, native, weight):
            return native
    return None


def _agree(module: nn.Module, native: nn.Module, weight: torch.Tensor) -> bool:
    rows = torch.randn(3, weight.shape[-1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    with torch.inference_mode():
        expected, given = module(rows).float(), native(rows).float()
    return bool((expected - given).abs().max() <= _TOLERANCE[weight.dtype] * expected.abs().max())


class _JointProjection(nn.Module):
    """One product for several layers that are called one after the other with the same rows."""

    def __init__(self, linear: NativeLinear, widths: list[int]) -> None:
        super().__init__()
        self._linear = linear
        self._widths = widths
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, index: int, input: torch.Tensor) -> torch.Tensor:
        if input is not self._input:
            self._parts = self._linear(input).split(self._widths, dim=-1)
            self._input = input
        part = self._parts[index]
        if index == len(self._widths) - 1:  # nobody asks again: the rows need not be kept
            self._input, self._parts = None, ()
        return part


class _Part(nn.Module):
    """A layer of a joint projection."""

    def __init__(self, joint: _JointProjection, index: int) -> None:
        super().__init__()
        self._joint = joint
        self._index = index

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._joint.part(self._index, input)


def _join_projections(parent: nn.Module, library: ctypes.CDLL) -> None:
    """Let the projections of an attention layer share one product, if it has just these."""
    linears = _servable_children(parent, _JOINT_PROJECTIONS)
    biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    if len({linear.in_features for linear in linears}) != 1 or len(biases) not in (0, len(linears)):
        return
    weight = torch.cat([linear.weight.detach() for linear in linears])
    joint = _JointProjection(
        NativeLinear(library, [weight], torch.cat(biases) if biases else None),
        [linear.out_features for linear in linears],
    )
    for index, name in enumerate(_JOINT_PROJECTIONS):
        setattr(parent, name, _Part(joint, index))
