"""Puts native modules in the place of those of a loaded CPU model; its code stays the library's.

Linear layers become native ones; queries, keys and values share one product, and so do gate and up. A module that is
more than a product of its weights (a gated layer, a normalisation) is replaced only if the native one gives the same
numbers on random rows: names alone prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import nn

from engine.model.native_linear import DTYPES, JointPart, JointProjection, NativeLinear
from engine.model.native_norm import LANES, NativeNorm
from engine.model.native_rotary import nativise_rotary
from engine.model.quantisation import BLOCK, QuantisedType
from engine.native.functions import NativeLibrary

_JOINT_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_GATED_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# What rounding explains: of a number itself, and of the largest one where numbers cancel.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def nativise(model: nn.Module, library: NativeLibrary, to: QuantisedType | None = None) -> None:
    """Replace what can be replaced, in place; what cannot stays as it is.

    Args:
        to: the type to quantise weights to, which must be float32; the rest of the model becomes bfloat16. With
            ``int4`` the output layer is kept in 8 bits, as is the custom: it is the one whose errors are seen.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    nativise_rotary(model, library)
    _Nativiser(library, to, head).replace_in(model)
    if to is not None:
        for parameter in model.parameters():  # not the buffers: frequencies of positions need all their digits
            parameter.data = parameter.data.to(torch.bfloat16)


class _Nativiser:
    def __init__(self, library: NativeLibrary, to: QuantisedType | None, head: nn.Module | None) -> None:
        self._library = library
        self._to = to
        self._head = head
        # By class: what one module computes, all of its class do.
        self._is_gated_as_usual: dict[type, bool] = {}
        self._norm_distances: dict[type, float | None] = {}

    def replace_in(self, parent: nn.Module) -> None:
        for name, child in list(parent.named_children()):
            native = self._native(child)
            if native is not None:
                setattr(parent, name, native)
                continue
            self._join_projections(child)
            self.replace_in(child)

    def _native(self, module: nn.Module) -> nn.Module | None:
        if (linear := _servable(module)) is not None:
            to = "int8" if self._to and module is self._head else self._to
            return self._linear([linear.weight], linear.bias, to)
        if type(module).__name__.endswith("RMSNorm"):
            return self._norm(module)
        return self._gated(module)

    def _linear(self, weights: Seq[torch.Tensor], bias: torch.Tensor | None, to: QuantisedType | None) -> NativeLinear:
        if to is not None and weights[0].shape[1] % BLOCK:  # such a weight is not cut into blocks
            return NativeLinear(self._library, [weight.to(torch.bfloat16) for weight in weights], bias)
        return NativeLinear(self._library, weights, bias, to=to)

    def _gated(self, module: nn.Module) -> nn.Module | None:
        """``down(silu(gate(x)) * up(x))``; None if the module is something else."""
        linears = _servable_children(module, _GATED_PROJECTIONS)
        if not linears or any(linear.bias is not None for linear in linears[:2]):
            return None
        if type(module) not in self._is_gated_as_usual:
            self._is_gated_as_usual[type(module)] = _agree(
                module, self._gate(linears, None), linears[0].weight, cancels=True
            )
        return self._gate(linears, self._to) if self._is_gated_as_usual[type(module)] else None

    def _gate(self, linears: Seq[nn.Linear], to: QuantisedType | None) -> nn.Module:
        gate, up, down = linears
        return nn.Sequential(
            self._linear([gate.weight, up.weight], None, to), self._linear([down.weight], down.bias, to)
        )

    def _norm(self, module: nn.Module) -> nn.Module | None:
        """Some models keep the weight itself, some its distance from 1."""
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        weight = getattr(module, "weight", None)
        if not isinstance(epsilon, float) or not isinstance(weight, torch.Tensor):
            return None
        if weight.dim() != 1 or len(weight) % LANES or weight.dtype not in DTYPES:
            return None

        def native(distance: float, dtype: torch.dtype) -> NativeNorm:
            return NativeNorm(self._library, weight.float() + distance, epsilon, dtype)

        if type(module) not in self._norm_distances:
            right = (d for d in (0.0, 1.0) if _agree(module, native(d, weight.dtype), weight, cancels=False))
            self._norm_distances[type(module)] = next(right, None)
        distance = self._norm_distances[type(module)]
        return None if distance is None else native(distance, torch.bfloat16 if self._to else weight.dtype)

    def _join_projections(self, parent: nn.Module) -> None:
        """Let the projections of an attention layer share one product, if it has just these."""
        linears = _servable_children(parent, _JOINT_PROJECTIONS)
        biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        if len({linear.in_features for linear in linears}) != 1 or len(biases) not in (0, len(linears)):
            return
        weight = torch.cat([linear.weight.detach() for linear in linears])
        joint = JointProjection(
            self._linear([weight], torch.cat(biases) if biases else None, self._to),
            [linear.out_features for linear in linears],
        )
        for index, name in enumerate(_JOINT_PROJECTIONS):
            setattr(parent, name, JointPart(joint, index))


def _servable(module: object) -> nn.Linear | None:
    """The module if it is a linear layer that a native one can stand in for."""
    if type(module) is nn.Linear and module.weight.dtype in DTYPES and module.in_features % 2 == 0:
        return module
    return None


def _servable_children(parent: nn.Module, names: tuple[str, ...]) -> list[nn.Linear]:
    """Those of that name; empty unless all are servable."""
    linears = [linear for name in names if (linear := _servable(getattr(parent, name, None))) is not None]
    return linears if len(linears) == len(names) else []


def _agree(module: nn.Module, native: nn.Module, weight: torch.Tensor, *, cancels: bool) -> bool:
    """Whether both give the same numbers for random rows.

    Args:
        cancels: numbers are sums whose terms cancel, so that their errors are as large as those of the largest.
    """
    rows = torch.randn(3, weight.shape[-1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    try:
        with torch.inference_mode():
            expected, given = module(rows).float(), native(rows).float()
    except Exception:  # a module that is called otherwise is another kind of module
        return False
    scale = expected.abs().max() if cancels else expected.abs()
    is_close = (expected - given).abs() <= _TOLERANCE[weight.dtype] * scale
    return bool(is_close.all() and expected.any())
