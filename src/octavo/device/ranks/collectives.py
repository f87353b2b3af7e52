"""Exchanges between ranks during a step: torch's process groups, gloo on CPUs and NCCL on GPUs.

Nothing is summed: pieces are gathered in the order of ranks, or rank 0's bytes are broadcast. Ranks
rendezvous by a file in a private folder, and use only loopback sockets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from octavo.kernels.contract import Floats

# The environment during creation of a group: loopback sockets, and no watchdog of NCCL that ends a process.
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


class ExchangeFailed(RuntimeError):
    """Other ranks did not join an exchange, or are gone; rank 0 finds out which."""


class _Work(Protocol):
    def wait(self) -> object: ...


class _Group(Protocol):
    """The methods of torch's process groups that its stubs lack."""

    def _allgather_base(self, out: Tensor, x: Tensor) -> _Work: ...

    def broadcast(self, tensors: list[Tensor]) -> _Work: ...

    def abort(self) -> None: ...


class RankGroup:
    """One rank's view of the ranks of one model. All ranks make the same calls in the same order."""

    def __init__(
        self, rendezvous: Path, rank: int, num_ranks: int, timeout_s: float, device: torch.device
    ) -> None:
        """Waits for the others. Raises RuntimeError where they do not come in time."""
        self.rank, self.num_ranks, self.timeout_s = rank, num_ranks, timeout_s
        self.is_on_gpu = device.type == "cuda"
        self.waited_s = 0.0  # for other ranks, including the exchange; on a GPU: only to start it
        self.is_waiting = False
        store = dist.FileStore(str(rendezvous), num_ranks)  # type: ignore[attr-defined]
        timeout = timedelta(seconds=timeout_s)
        with _environment():
            if self.is_on_gpu:
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                made: object = dist.ProcessGroupNCCL(store, rank, num_ranks, options)
            else:
                made = dist.ProcessGroupGloo(store, rank, num_ranks, timeout)
            self._group = cast(_Group, made)
            self.broadcast(torch.zeros(1, device=device))  # all are connected

    def gather_columns(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """(T, own width) -> (T, sum of widths). Pieces are padded to one size, and the padding is removed."""
        widest = max(widths)
        if x.shape[1] < widest:
            x = torch.nn.functional.pad(x, (0, widest - x.shape[1]))
        pieces = self.gather_pieces(x)
        if min(widths) == widest:
            return pieces.transpose(0, 1).reshape(x.shape[0], -1)
        return torch.cat([piece[:, :width] for piece, width in zip(pieces, widths, strict=True)], dim=1)

    def gather_pieces(self, x: Tensor) -> Tensor:
        """(...) -> (ranks, ...): each rank's array. Raises ExchangeFailed, like the others."""
        x = x.contiguous()
        out = x.new_empty((self.num_ranks, *x.shape))
        self._wait(self._group._allgather_base(out.view(-1), x.view(-1)))
        return out

    def broadcast(self, x: Tensor) -> Tensor:
        """Copy rank 0's bytes to every rank's tensor."""
        self._wait(self._group.broadcast([x]))
        return x

    def abort(self) -> None:
        """End all waits for other ranks; on a GPU, end kernels that wait. Any thread."""
        if self.is_on_gpu:
            self._group.abort()

    def _wait(self, work: _Work) -> None:
        """Wait for all ranks; on a GPU only the stream waits. Raises ExchangeFailed."""
        started, self.is_waiting = time.perf_counter(), True
        try:
            work.wait()
        except RuntimeError as error:
            raise ExchangeFailed(str(error)) from error
        self.waited_s, self.is_waiting = self.waited_s + time.perf_counter() - started, False

    def gather(self, x: Floats) -> Floats:
        """(...) -> (ranks, ...), of host arrays."""
        pieces: Floats = self.gather_pieces(torch.from_numpy(x)).numpy()
        return pieces


@contextmanager
def _environment() -> Iterator[None]:
    """Set the environment, and restore the process's own afterwards."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
