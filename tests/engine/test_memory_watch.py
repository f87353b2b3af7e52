"""The engine gives memory back by itself: the process becomes smaller, and no answer changes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from tests.tiny import pool_bytes, random_prompt, request, run, tiny_engine

from octavo.engine.core import Engine
from octavo.engine.memory_watch import LOOK_S, MemoryWatch
from octavo.kernels.native_ops import NativeOps
from octavo.memory.holders import Holder, HolderKind
from octavo.scheduler.pressure import PressureConfig, PressurePolicy
from octavo.step.events import EventKind
from octavo.types import Request

PLENTY = 2**50
BLOCK = 2**20  # bytes of a block, as far as the policy knows
RESERVE = 10 * BLOCK


class Machine:
    """What is available, and what time it is."""

    def __init__(self) -> None:
        self.available = PLENTY
        self.now = 0.0
        self.looks = 0

    def read(self) -> int:
        self.looks += 1
        if self.available < 0:
            raise OSError("no such file")
        return self.available

    def watch(self, idle_return_s: float = 0.0, reserve: int = RESERVE) -> MemoryWatch:
        return MemoryWatch(PressurePolicy(PressureConfig(BLOCK, idle_return_s, reserve)), self.read)

    def engine(self, *, idle_return_s: float = 0.0, reserve: int = RESERVE, **options: object) -> Engine:
        watch = self.watch(idle_return_s, reserve)
        return tiny_engine(NativeOps(), watch=watch, clock=lambda: self.now, **options)  # type: ignore[arg-type]

    def pass_time(self, engine: Engine, seconds: float) -> None:
        """An idle engine wakes up when it said that it would, and not before."""
        end = self.now + seconds
        while (sleeps := engine.seconds_to_next_event()) is not None and self.now + sleeps <= end:
            self.now += sleeps
            engine.step()
            while not engine.idle:
                engine.step()
            engine.scheduler.check()
        self.now = end


def asks(first_id: int, count: int) -> list[Request]:
    rng = np.random.default_rng(3)
    return [request(first_id + i, random_prompt(rng, 100), 20, temperature=1.0, seed=i) for i in range(count)]


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system cannot take memory back here")
def test_an_idle_engine_gives_the_memory_of_free_blocks_back_and_the_process_shrinks() -> None:
    machine = Machine()
    engine = machine.engine(idle_return_s=300.0, reserve=0, num_blocks=12_000)
    pool = engine.scheduler.ledger.pool
    # As after many sequences: every block has been written, none has a name.
    table = engine.scheduler.ledger.open(Holder(HolderKind.SEQUENCE))
    engine.scheduler.ledger.take(table, 12_000)
    data = pool_bytes(engine)
    data[:] = 1
    engine.scheduler.ledger.close(table)
    engine.step()
    full = resident_bytes()
    machine.pass_time(engine, 299.0)
    assert resident_bytes() > full - data.nbytes // 10
    machine.pass_time(engine, 2.0)
    assert resident_bytes() < full - data.nbytes * 9 // 10
    assert pool.backing.count == 0
    assert engine.stats.events[EventKind.RETURNED] == 1
    assert engine.seconds_to_next_event() is None  # nothing is left to do: it sleeps


@pytest.mark.parametrize("depth", [0, 1])
def test_answers_are_equal_after_memory_was_given_back(depth: int) -> None:
    wanted = run(tiny_engine(NativeOps()), asks(1, 6))
    machine = Machine()
    engine = machine.engine(idle_return_s=60.0, depth=depth, num_blocks=40)

    def squeeze(step: int) -> None:
        machine.now += LOOK_S
        machine.available = RESERVE - 5 * BLOCK if step % 3 == 0 else PLENTY

    for first in (1, 101, 201):
        answers = run(engine, asks(first, 6), squeeze)
        assert [answers[first + i, 0].essence for i in range(6)] == [
            wanted[1 + i, 0].essence for i in range(6)
        ]
        machine.available = PLENTY
        machine.pass_time(engine, 61.0)
    assert engine.stats.events[EventKind.MEMORY_PRESSURE] > 5
    assert engine.stats.events[EventKind.RETURNED] > 0
    engine.executor.close()


def test_an_idle_engine_looks_once_a_second_and_steps_back_without_work() -> None:
    machine = Machine()
    engine = machine.engine(num_blocks=40)
    run(engine, asks(1, 3))
    cached = engine.stats.blocks_cached
    assert cached > 10
    machine.available, machine.looks = RESERVE - 4 * BLOCK, 0
    machine.pass_time(engine, 1.5)
    assert 1 <= machine.looks <= 2
    machine.available = 0
    machine.pass_time(engine, 5.0)
    assert (engine.stats.blocks_cached, engine.stats.blocks_resident) == (0, 0)
    assert engine.stats.blocks_total == engine.stats.blocks_wanted // 8 == 5
    machine.available = PLENTY
    machine.pass_time(engine, 100.0)
    assert engine.stats.blocks_total == engine.stats.blocks_wanted == 40


def test_a_machine_that_shows_nothing_is_not_asked_again() -> None:
    machine = Machine()
    engine = machine.engine(idle_return_s=5.0)
    machine.available = -1
    run(engine, asks(1, 1))
    machine.pass_time(engine, 100.0)
    assert machine.looks == 1
    assert engine.stats.events[EventKind.RETURNED] == 1


def test_a_smaller_pool_stays_smaller_after_the_engine_started_again() -> None:
    machine = Machine()
    engine = machine.engine(num_blocks=40)
    run(engine, asks(1, 3))
    machine.available = 0
    machine.pass_time(engine, 5.0)
    resident = engine.stats.blocks_resident
    engine.recover(RuntimeError("broken"))
    assert (engine.stats.blocks_total, engine.stats.blocks_wanted) == (5, 40)
    assert engine.stats.blocks_resident == resident
    engine.scheduler.check()
