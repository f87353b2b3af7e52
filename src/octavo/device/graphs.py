"""A launch sequence, recorded once and replayed: a CUDA graph, or on a CPU the sequence itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

log = logging.getLogger("octavo.device")


class GraphMemory:
    """Shared by graphs that never run at once: memory for intermediate results, and a stream for trial
    launches."""

    def __init__(self, device: torch.device) -> None:
        self.handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None


class Replay:
    """`body` reads and writes tensors at fixed addresses; a replay computes them again."""

    def __init__(
        self, body: Callable[[], Tensor], device: torch.device, memory: GraphMemory, label: str = "step"
    ) -> None:
        """Capture the body. If that fails, a replay launches kernel by kernel, which is slower, and a warning
        is logged."""
        self._body = body
        self._graph: torch.cuda.CUDAGraph | None = None
        self.has_failed = False
        if memory.stream is None:
            return
        before = torch.cuda.current_stream(device)
        try:
            self._result = self._captured(memory, before)
            log.info("captured: %s", label)
        except RuntimeError as error:
            self._graph, self.has_failed = None, True
            log.warning("%s is launched kernel by kernel, because its capture failed: %s", label, error)
        finally:
            torch.cuda.set_stream(before)

    def __call__(self) -> Tensor:
        """The body's result: of a graph always the same tensor, until the next call."""
        if self._graph is None:
            return self._body()
        self._graph.replay()
        return self._result

    def _captured(self, memory: GraphMemory, current: torch.cuda.Stream) -> Tensor:
        # Compile kernels and allocate scratch before the capture: neither is allowed during it.
        assert memory.stream is not None
        memory.stream.wait_stream(current)
        with torch.cuda.stream(memory.stream):
            self._body()
        current.wait_stream(memory.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory.handle, capture_error_mode="thread_local"):
            result = self._body()
        self._graph = graph
        return result
