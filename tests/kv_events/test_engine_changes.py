"""The engine hands changes over after a step, and begins again with a new ledger."""

from __future__ import annotations

import itertools

from octavo.engine.core import Engine
from octavo.engine.port import Submit
from octavo.executor.executor import InlineExecutor
from octavo.memory.changes import Change, ChangeRecord
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.step.context import SchedulerConfig
from octavo.types import Request


class Receiver:
    """Notes what it is handed."""

    def __init__(self) -> None:
        self.begun: list[list[Change]] = []
        self.taken: list[Change] = []
        self.num_lost = 0  # at each call

    def begin(self, record: ChangeRecord) -> None:
        self.begun.append(record.whole())

    def hand_over(self, record: ChangeRecord) -> int:
        self.taken += record.take()
        return self.num_lost

    def close(self) -> None:
        """Nothing is open."""


def engine_of(receiver: Receiver, *, records: bool = True) -> Engine:
    def new_scheduler() -> Scheduler:
        ledger = Ledger(8, 4)
        ledger.history.changes = ChangeRecord() if records else None
        return Scheduler(ledger, SchedulerConfig(), lambda tenant: root_name(tenant.encode()))

    oracle, ticks = OracleExecutor(num_blocks=8, block_size=4, vocab_size=50), itertools.count()
    executor = InlineExecutor(oracle)
    clock = lambda: float(next(ticks))  # noqa: E731
    return Engine(new_scheduler, executor, oracle.rows.clear, 0, clock, changes=receiver)


def serve(engine: Engine, request_id: int, prompt: tuple[int, ...]) -> None:
    engine.inbox.post(Submit(Request(request_id, prompt, SamplerParams(ignore_eos=True), 2, 0)))
    engine.step()
    while engine.has_work:
        engine.step()


def test_a_step_hands_over_the_blocks_that_it_filled() -> None:
    receiver = Receiver()
    engine = engine_of(receiver)
    serve(engine, 1, tuple(range(1, 10)))
    assert [len(one.content.tokens) for one in receiver.taken] == [16, 16]
    assert receiver.taken[1].content.parent == receiver.taken[0].name
    taken = len(receiver.taken)
    serve(engine, 2, tuple(range(1, 10)))
    assert len(receiver.taken) == taken, "what is there already is no change"


def test_a_new_ledger_begins_with_nothing() -> None:
    receiver = Receiver()
    engine = engine_of(receiver)
    serve(engine, 1, tuple(range(1, 10)))
    engine.recover(RuntimeError("broken"))
    assert receiver.begun == [[], []]
    serve(engine, 2, tuple(range(1, 10)))
    assert [one.is_added for one in receiver.taken] == [True] * 4


def test_without_a_record_nothing_is_handed_over() -> None:
    receiver = Receiver()
    serve(engine_of(receiver, records=False), 1, tuple(range(1, 10)))
    assert receiver.taken == []
    assert receiver.begun == []


def test_gaps_are_counted_and_what_was_lost_in_them() -> None:
    receiver = Receiver()
    engine = engine_of(receiver)
    serve(engine, 1, (1, 2, 3, 4))
    assert (engine.stats.event_gaps, engine.stats.events_lost) == (0, 0)
    receiver.num_lost = 5
    engine.step()
    engine.step()
    assert (engine.stats.event_gaps, engine.stats.events_lost) == (2, 10)
