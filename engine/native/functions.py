"""How our compiled functions are called: one structure for each call, which begins with the number of rows.

So a call can be kept and repeated for other rows. Knows nothing of what the functions compute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch


class Arguments(ctypes.Structure):
    """What a function is given: mirrors a structure of the C++, field by field.

    Subclasses add fields. Those that are addresses by the row must not depend on the number of rows.
    """

    _fields_: ClassVar[Any] = (("num_rows", ctypes.c_int64),)
    num_rows: int


class Recorder(Protocol):
    """Sees the calls of a while, and says where their results lie."""

    def add(self, function: NativeFunction, arguments: Arguments) -> None:
        """A call that was made."""

    def empty(self, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Room for a result, ``[num_rows, width]``, contiguous."""


class NativeLibrary:
    """The compiled library.

    Args:
        path: of the shared object.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.recorder: Recorder | None = None

    def function(self, name: str) -> NativeFunction:
        return NativeFunction(self, getattr(self._library, f"draftahead_{name}"))

    def function_for(self, name: str, dtype: torch.dtype) -> NativeFunction:
        """The one of several that serves ``dtype``."""
        return self.function(f"{name}_{str(dtype).removeprefix('torch.')}")

    def empty(self, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Room for a result, ``[num_rows, width]``, contiguous."""
        if self.recorder is not None:
            return self.recorder.empty(num_rows, width, dtype)
        return torch.empty(num_rows, width, dtype=dtype)

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Let ``recorder`` see the calls made within, of all threads."""
        self.recorder = recorder
        try:
            yield
        finally:
            self.recorder = None


class NativeFunction:
    """One function of the library. Called with its arguments, it leaves its result where they say."""

    def __init__(self, library: NativeLibrary, run: Any) -> None:
        run.restype = None
        self._library = library
        self._run = run

    @property
    def address(self) -> int:
        return ctypes.cast(self._run, ctypes.c_void_p).value or 0

    def __call__(self, arguments: Arguments) -> None:
        self._run(ctypes.byref(arguments))
        if self._library.recorder is not None:
            self._library.recorder.add(self, arguments)
