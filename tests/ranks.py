"""Ranks as threads of one process: each with its own part of a model, and one place where they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from octavo.kernels.contract import Floats

ResultT = TypeVar("ResultT")
WAIT_S = 60.0


class Meeting:
    """What ranks give, until all have given."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks, self.num_gathers = num_ranks, 0
        self._given: list[Floats | None] = [None] * num_ranks
        self._barrier = threading.Barrier(num_ranks, timeout=WAIT_S)

    def gather(self, rank: int, x: Floats) -> Floats:
        self._given[rank] = x
        self._barrier.wait()
        self.num_gathers += rank == 0
        pieces = np.stack([piece for piece in self._given if piece is not None])
        self._barrier.wait()
        return pieces

    def abort(self) -> None:
        self._barrier.abort()


class ThreadRank:
    """`RankGather` of one of them."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self._meeting = rank, meeting

    def gather(self, x: Floats) -> Floats:
        return self._meeting.gather(self.rank, x)


def on_all_ranks(num_ranks: int, body: Callable[[ThreadRank], ResultT]) -> list[ResultT]:
    """What `body` comes to on each rank. Raises what the first failing one raised."""
    meeting = Meeting(num_ranks)

    def run(rank: int) -> ResultT:
        try:
            return body(ThreadRank(rank, meeting))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(num_ranks)]
        failures = [future.exception() for future in futures]
        for failure in failures:
            if failure is not None and not isinstance(failure, threading.BrokenBarrierError):
                raise failure
        return [future.result() for future in futures]
