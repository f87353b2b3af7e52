"""A launch sequence that is recorded once and replayed: a CUDA graph, or on a CPU the sequence itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class GraphMemory:
    """What graphs share for what they compute along the way."""

    def __init__(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None

    def share(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.CUDAGraph | None:
        """The graph whose memory this one takes; None for the first, which brings it."""
        first, self._graph = self._graph, self._graph or graph
        return first


class Replay:
    """`body` reads and writes tensors that stay where they are; a replay computes them anew."""

    def __init__(
        self, body: Callable[[], Tensor], device: torch.device, memory: GraphMemory | None = None
    ) -> None:
        """`memory`: of graphs that never run at once, and whose results are read before another runs."""
        self._body = body
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture(device, memory or GraphMemory())

    def __call__(self) -> Tensor:
        """The body's result: of a graph always the same tensor, until the next call."""
        if self._graph is None:
            return self._body()
        self._graph.replay()
        return self._result

    def _capture(self, device: torch.device, memory: GraphMemory) -> None:
        # Kernels are compiled, and scratch is allocated, before the capture: neither may happen within it.
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._body()
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        first = memory.share(self._graph)
        pool = None if first is None else first.pool()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result = self._body()
