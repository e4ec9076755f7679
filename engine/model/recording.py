"""Native calls kept as they are made, to be made again for other rows by one call.

Python and torch spend longer on finding out what to call next than a small model spends on the call itself. What is
called is the same in every step; only the number of rows differs, and each call's structure begins with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.native.functions import Arguments, NativeFunction, NativeLibrary

_LANES = 16  # numbers that our C++ adds at once


class NotRecordable(Exception):
    """Something was computed that is no native call."""


class _Call(ctypes.Structure):
    """Mirrors ``Call`` of the C++."""

    _fields_ = (("function", ctypes.c_void_p), ("num_rows", ctypes.c_void_p))


class _Replay(Arguments):
    """Mirrors ``Recording`` of the C++."""

    _fields_ = (("num_calls", ctypes.c_int64), ("calls", ctypes.POINTER(_Call)))


class _Sum(Arguments):
    """Mirrors ``Sum`` of the C++."""

    _fields_ = (
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("a", "b", "output")),
    )


class Recording:
    """A list of native calls and the memory that their results lie in.

    Made of steps that follow each other: a step may read what the one before it made, and nothing older.

    Args:
        max_rows: it can be replayed for that many.
    """

    def __init__(self, library: NativeLibrary, *, max_rows: int) -> None:
        self.max_rows = max_rows
        self._library = library
        self._replay = library.function("replay")
        self._calls: list[tuple[NativeFunction, Arguments]] = []
        self._blocks: dict[tuple[int, int, int, torch.dtype], torch.Tensor] = {}
        self._num_rows = 0
        self._num_steps = 0
        self._num_results = 0
        self._program: ctypes.Array[_Call] | None = None

    def record(self, step: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Run ``step`` on ``rows``, ``[1, num_rows, width]``, and keep its calls.

        Raises:
            NotRecordable: it does something else than native calls, views, and sums of equal shapes.
        """
        self._num_rows = rows.shape[1]
        self._num_steps += 1
        self._num_results = 0
        with ExitStack() as stack:
            stack.enter_context(self._library.recording(self))
            stack.enter_context(_NativeOnly(self._library))
            result = step(rows)
        if not isinstance(result, torch.Tensor) or result.shape != rows.shape:
            raise NotRecordable(f"a result that is no tensor of shape {tuple(rows.shape)}")
        return result

    def replay(self, num_rows: int) -> None:
        """Make all calls again, for the rows that now lie where the recorded ones lay."""
        assert num_rows <= self.max_rows
        if self._program is None:
            self._program = (_Call * len(self._calls))(
                *(_Call(function.address, ctypes.addressof(arguments)) for function, arguments in self._calls)
            )
        self._replay(_Replay(num_rows=num_rows, num_calls=len(self._program), calls=self._program))

    def add(self, function: NativeFunction, arguments: Arguments) -> None:
        if arguments.num_rows != self._num_rows:
            raise NotRecordable(f"a call for {arguments.num_rows} rows in a step of {self._num_rows}")
        self._calls.append((function, arguments))

    def empty(self, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the step before the last one, which nobody reads any more, or else new memory."""
        key = self._num_steps % 2, self._num_results, width, dtype
        self._num_results += 1
        if key not in self._blocks:
            self._blocks[key] = torch.empty(self.max_rows, width, dtype=dtype)
        return self._blocks[key][:num_rows]


class _NativeOnly(TorchDispatchMode):
    """Sees to it that torch computes nothing: views pass, sums become native calls, all else is refused."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._library = library
        self._add = {dtype: library.function_for("add", dtype) for dtype in (torch.float32, torch.bfloat16)}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.aten.add.Tensor and not kwargs and self._can_add(*args):
            return self._sum(*args)
        result = function(*args, **(kwargs or {}))
        is_room = function is torch.ops.aten.empty.memory_format  # what is in it comes from a call
        if is_room or (not function._schema.is_mutable and _are_views(result, args)):
            return result
        raise NotRecordable(str(function))

    def _can_add(self, a: Any, b: Any) -> bool:
        return (
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and a.shape == b.shape
            and a.dtype == b.dtype
            and a.dtype in self._add
            and a.is_contiguous()
            and b.is_contiguous()
            and a.shape[-1] % _LANES == 0
        )

    def _sum(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        width = a.shape[-1]
        num_rows = a.numel() // width
        output = self._library.empty(num_rows, width, a.dtype)
        self._add[a.dtype](
            _Sum(num_rows=num_rows, width=width, a=a.data_ptr(), b=b.data_ptr(), output=output.data_ptr())
        )
        return output.view(a.shape)


def _are_views(result: Any, args: tuple[Any, ...]) -> bool:
    """Whether all that came out lies in the memory of what went in."""
    memory = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
    results = result if isinstance(result, list | tuple) else [result]
    return all(isinstance(r, torch.Tensor) and r.untyped_storage().data_ptr() in memory for r in results)
