"""What ranks exchange while they compute: torch's process groups, gloo on processors and NCCL on GPUs.

Nothing is added up: pieces are gathered in the order of ranks, or rank 0's bytes are copied to all. Ranks
find each other by a file in a private folder, and sockets are the loopback's alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from octavo.kernels.contract import Floats

INTERFACE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # of the environment, before a group


class _Work(Protocol):
    def wait(self) -> object: ...


class _Group(Protocol):
    """What torch's process groups have, and its stubs do not say."""

    def _allgather_base(self, out: Tensor, x: Tensor) -> _Work: ...

    def broadcast(self, tensors: list[Tensor]) -> _Work: ...


class RankGroup:
    """The ranks of one model, as one of them sees them. All make the same calls in the same order."""

    def __init__(
        self, rendezvous: Path, rank: int, num_ranks: int, timeout_s: float, device: torch.device
    ) -> None:
        """Waits for the others. Raises RuntimeError where they do not come in time."""
        self.rank, self.num_ranks = rank, num_ranks
        self.waited_s = 0.0  # for others, what the exchange took included; on a GPU: to start it
        self.is_waiting = False
        store = dist.FileStore(str(rendezvous), num_ranks)  # type: ignore[attr-defined]
        timeout = timedelta(seconds=timeout_s)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            made: object = dist.ProcessGroupNCCL(store, rank, num_ranks, options)
        else:
            made = dist.ProcessGroupGloo(store, rank, num_ranks, timeout)
        self._group = cast(_Group, made)
        self.broadcast(torch.zeros(1, device=device))  # all are connected: the file is needed no more

    def gather_columns(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """(T, own width) -> (T, sum of widths). Pieces of one size travel; what fills them up is cut off."""
        widest = max(widths)
        if x.shape[1] < widest:
            x = torch.nn.functional.pad(x, (0, widest - x.shape[1]))
        pieces = self.gather_pieces(x)
        if min(widths) == widest:
            return pieces.transpose(0, 1).reshape(x.shape[0], -1)
        return torch.cat([piece[:, :width] for piece, width in zip(pieces, widths, strict=True)], dim=1)

    def gather_pieces(self, x: Tensor) -> Tensor:
        """(...) -> (ranks, ...): what each rank gave."""
        x = x.contiguous()
        out = x.new_empty((self.num_ranks, *x.shape))
        self._wait(self._group._allgather_base(out.view(-1), x.view(-1)))
        return out

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's bytes, in every rank's tensor."""
        self._wait(self._group.broadcast([x]))
        return x

    def _wait(self, work: _Work) -> None:
        begun, self.is_waiting = time.perf_counter(), True
        work.wait()
        self.waited_s, self.is_waiting = self.waited_s + time.perf_counter() - begun, False

    def gather(self, x: Floats) -> Floats:
        """(...) -> (ranks, ...), of host arrays."""
        pieces: Floats = self.gather_pieces(torch.from_numpy(x)).numpy()
        return pieces
