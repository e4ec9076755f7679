"""Captures work on a CUDA device as graphs that share one memory pool.

Knows torch's graphs. Refuses to know what is captured.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class CudaCapture:
    """A ``Capture``: call it with the work, largest first.

    Graphs share the memory in which they compute, so none may be replayed before the result of the last is read, or
    ordered behind the reading in the same stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """
        Raises:
            RuntimeError: the work waits for the device, or does something else that a capture cannot hold.
        """
        graph = torch.cuda.CUDAGraph()
        # A capture that fails would leave its stream as the current one.
        with torch.cuda.stream(torch.cuda.current_stream()):
            self._warm_up(work)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        return graph.replay

    def _warm_up(self, work: Callable[[], None]) -> None:
        """Libraries choose kernels and take work space at their first call, which a capture must not hold."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream().wait_stream(self._stream)
