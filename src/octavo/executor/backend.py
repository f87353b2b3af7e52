"""A backend computes steps and owns the bytes of KV blocks. Other packages see no more of it.

    native    C++ kernels on the processor                        HostBackend(NativeOps)
    reference the same in NumPy: the executable specification      HostBackend(ReferenceOps)
    torch     tensors on a device, torch's own "cpu" included      octavo.device.backend

`engine/backends.py` chooses. Plans, rows and the ledger are the same over all of them. The exactness contract
holds within one `arithmetic_id`, never between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.executor.executor import Executor, InlineExecutor, ThreadedExecutor
from octavo.executor.forward import HostForward
from octavo.executor.runner import Runner, RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import KvShape, Ops, WeightOps
from octavo.kernels.pool import bytes_per_block, bytes_per_layer
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import LoadedModel, load_model
from octavo.model.packed_cache import PackedFolder
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars

EXACT = "the exactness contract holds (a request's bits do not depend on what else runs)"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The KV blocks that a runner owns."""

    shape: KvShape
    num_blocks: int
    ready_blocks: int = 0  # blocks whose memory is requested at the start


class Backend(Protocol):
    """Owns weights, pools and its own kind of `Forward`, which computes over them.

    The default bodies are for a backend whose weights are all in this process.
    """

    name: str  # "native" | "reference" | "torch"
    device: str  # where it computes, in words
    arithmetic_id: str  # bits are equal within one id
    layout_id: str = ""  # names what else decides the layout of a block's bytes
    weights: WeightOps
    is_host: bool  # blocks are host memory: its pages are allocated when first written, and can be freed
    pads_steps: bool  # small steps are padded to the next of few sizes (`padded_positions`)
    exactness: str  # how far the contract holds, in words
    notes: Sequence[tuple[str, str]]  # further lines of `octavo doctor` about it

    def load(
        self,
        path: ModelPath,
        context_length: int | None,
        progress: Callable[[str], None],
        packed: PackedFolder | None,
    ) -> LoadedModel:
        """A model, with this backend's weights. Raises as `load_model`."""
        return load_model(path, self.weights, context_length, progress, packed)

    def close(self) -> None:
        """Release what loading has begun, if nothing was built over it. Idempotent."""
        return

    def memory_available(self) -> int:
        """Bytes available for blocks now."""

    def measure_steps(
        self,
        model: Model,
        config: RunnerConfig,
        shape: KvShape,
        step_tokens: int,
        progress: Callable[[str], None],
    ) -> int | None:
        """Bytes that steps of up to so many tokens need besides weights and pool, found by running them;
        None: not measured. Raises ConfigError where they do not fit."""

    def bytes_per_block(self, shape: KvShape) -> int:
        """Bytes of a block. Raises ConfigError for a shape or a kind of KV that it does not support."""

    def bytes_per_layer(self, shape: KvShape) -> int | None:
        """Bytes of each layer of a block, layer after layer from its beginning; None: blocks have another
        layout."""

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None,
        grammars: Grammars | None,
    ) -> Runner:
        """A runner with a pool of its own, over weights that this backend has loaded."""

    def new_executor(self, runner: Runner, overlap: int) -> Executor:
        """The executor for plans; `runner` is one of this backend's own."""


class HostBackend(Backend):
    """The processor: native kernels, or their specification."""

    is_host = True
    pads_steps = False
    device = "cpu"
    exactness = EXACT
    notes: Sequence[tuple[str, str]] = ()

    def __init__(self, name: str, ops: Ops, memory_available: Callable[[], int]) -> None:
        self.name = name
        self.ops = ops
        self.weights: WeightOps = ops
        self.arithmetic_id = ops.arithmetic_id
        self._memory_available = memory_available

    def memory_available(self) -> int:
        """Bytes available for blocks now."""
        return self._memory_available()

    def measure_steps(
        self,
        model: Model,
        config: RunnerConfig,
        shape: KvShape,
        step_tokens: int,
        progress: Callable[[str], None],
    ) -> int | None:
        """Not measured: the default pool leaves three quarters of the memory free for steps."""
        return None

    def bytes_per_block(self, shape: KvShape) -> int:
        """Bytes of a block."""
        return bytes_per_block(shape)

    def bytes_per_layer(self, shape: KvShape) -> int:
        """Bytes of a layer of a block."""
        return bytes_per_layer(shape)

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> Runner:
        """A runner with a pool of its own."""
        forward = HostForward(model, self.ops, size.shape, size.num_blocks, size.ready_blocks)
        return Runner(forward, config, transfers, grammars)

    def new_executor(self, runner: Runner, overlap: int) -> Executor:
        """An executor that runs plans in turn, or ahead on a thread."""
        return ThreadedExecutor(runner) if overlap else InlineExecutor(runner)
