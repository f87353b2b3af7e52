"""Sessions in the simulator: turns that extend or rewrite what was said, stop in the middle, fail; forking;
suspending and resuming over a tier whose transfers fail; deletes, expiries, restarts. All at random, by the
seed.

What must hold beside the scheduler's own invariants: one turn of a session at a time; a suspended session
holds nothing in the pool, and all of it is below; what is kept below is there after a restart; an idle
session does not outlive its time.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Protocol

from tests.simulator.books import Books
from tests.simulator.outcome import Outcome
from tests.simulator.tenants import unsalted_seed

from octavo.errors import InvalidRequest, PinRefused, RequestTooLarge, SessionBusy, SessionRefused
from octavo.params import SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import Session, SessionState, StoredSession
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.types import FinishReason, Request

_SESSIONS_MAX = 6
_MOVING = (SessionState.SUSPENDING, SessionState.RESUMING)


class World(Protocol):
    """The simulation in which the sessions live."""

    random: random.Random
    scheduler: Scheduler
    executor: OracleExecutor
    clock: float
    books: Books
    outcome: Outcome
    block_size: int

    def some_prompt(self) -> list[int]:
        """Tokens that others may share."""

    def cancel_request(self, request_id: int) -> None:
        """All of it."""


@dataclass(slots=True)
class _Life:
    """What a client knows of its session."""

    tenant: int
    ttl_s: float
    tokens: list[int]  # said so far
    turn: int | None = None  # id of the request that runs
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left of a session when its process ends."""

    below: set[bytes]
    names: list[bytes]
    num_shared: int
    num_suspended: int


class SessionLives:
    """The sessions of one simulation."""

    def __init__(self, simulation: World) -> None:
        self._simulation = simulation
        self._lives: dict[str, _Life] = {}
        self._num_made = 0

    def act(self) -> None:
        """One thing that a client may do with a session."""
        r = self._simulation.random
        known = self.known()
        if len(known) < _SESSIONS_MAX and (not known or r.random() < 0.2):
            if known and r.random() < 0.3:
                self.fork(r.choice(known))
            else:
                self.make()
            return
        session_id = r.choice(known)
        acts = [self.say, self.say, self.say, self.suspend, self.suspend, self.resume]
        acts += [self.stop, self._lose_perhaps, self._delete_perhaps]
        r.choice(acts)(session_id)

    def check(self) -> None:
        """What must hold between two steps."""
        simulation = self._simulation
        scheduler, below = simulation.scheduler, simulation.executor.tier_slots
        tier = scheduler.transfers.tier
        for session in scheduler.session_table:
            state = session.state
            is_bound = state is SessionState.ACTIVE or state in _MOVING
            assert is_bound or session.expires > simulation.clock, "a session outlived its time"
            if state is SessionState.SUSPENDED:
                assert not any(pin.holder.blocks for pin in session.pins), "suspended, and it holds blocks"
                for slot, name in scheduler.session_holds.slots(session.session_id):
                    assert below[slot][0] == name, "suspended, and its block is not below"
            is_stuck = session.hold is not None and scheduler.warm_pins.is_stuck(session.hold)
            if state is SessionState.SUSPENDING and is_stuck:
                scheduler.session_holds.give_up_suspending(session.session_id)
        for slot, name in self._kept_slots() if tier is not None else ():
            assert below[slot][0] == name, "a kept block is not below"

    def suspend_all(self) -> None:
        """The life ends: what can be is sent below."""
        for session_id in self.known():
            self.suspend(session_id)

    def delete_unless_suspended(self) -> None:
        """So that nothing in the pool is held for a session."""
        sessions, table = self._simulation.scheduler.session_holds, self._simulation.scheduler.session_table
        for session in list(table):
            if session.state is not SessionState.SUSPENDED:
                sessions.delete(session.tenant, session.session_id)
        self._simulation.scheduler.check()

    def restart(self) -> dict[str, _Kept]:
        """The process is about to end: what is below of each session."""
        self._learn()
        sessions, table = self._simulation.scheduler.session_holds, self._simulation.scheduler.session_table
        return {
            s.session_id: _Kept(
                {name for _, name in sessions.slots(s.session_id)},
                list(s.names),
                s.num_shared,
                s.num_suspended,
            )
            for s in table
        }

    def restore(self, kept: dict[str, _Kept]) -> None:
        """It has begun anew: sessions come back, first of all those that were suspended, with all that was
        kept of them."""
        scheduler, clock = self._simulation.scheduler, self._simulation.clock
        known = sorted((s for s in self._lives if s in kept), key=lambda s: kept[s].num_suspended == 0)
        self._lives = {session_id: self._lives[session_id] for session_id in known}
        for session_id, life in self._lives.items():
            life.turn = None
            before = kept[session_id]
            stored = StoredSession(
                session_id,
                str(life.tenant),
                array("I", life.tokens).tobytes(),
                life.ttl_s,
                100_000.0,
                before.num_shared,
                before.num_suspended,
            )
            session = scheduler.session_holds.restore(stored, clock)
            found = {name for _, name in scheduler.session_holds.slots(session.session_id)}
            size = self._simulation.block_size
            still_said = before.names[: len(life.tokens) // size]  # its client may have stopped a turn early
            assert session.names[: len(still_said)] == still_said, "its blocks came back under other names"
            whole = before.below.intersection(still_said)
            is_bounded = scheduler.ledger.quotas.policy(str(life.tenant)).disk_maximum is not None
            assert whole <= found or is_bounded or not before.num_suspended, (
                "a suspended session lost what was kept of it"
            )
            self._simulation.outcome.sessions_restored += bool(whole)
            scheduler.check()

    def _kept_slots(self) -> list[tuple[int, bytes]]:
        scheduler = self._simulation.scheduler
        sessions = scheduler.session_holds
        return [pair for session in scheduler.session_table for pair in sessions.slots(session.session_id)]

    def known(self) -> list[str]:
        """Ids of the sessions that live; what ended turns said is known then."""
        self._learn()
        alive = {session.session_id for session in self._simulation.scheduler.session_table}
        return [session_id for session_id in self._lives if session_id in alive]

    def _find(self, session_id: str) -> Session:
        tenant = str(self._lives[session_id].tenant)
        return self._simulation.scheduler.session_table.find(tenant, session_id)

    def make(self) -> None:
        """The first turn makes it."""
        simulation, r = self._simulation, self._simulation.random
        self._num_made += 1
        ttl_s = r.choice([1.0, 20.0, 1000.0, 100_000.0])
        session_id = f"s{self._num_made}"
        self._lives[session_id] = _Life(r.randrange(3), ttl_s, simulation.some_prompt())
        self.say(session_id)

    def say(self, session_id: str) -> None:
        """A turn: mostly it extends what was said."""
        simulation, r, life = self._simulation, self._simulation.random, self._lives[session_id]
        said = life.tokens if r.random() < 0.8 else life.tokens[: r.randint(0, len(life.tokens))]
        prompt = (*said, *(r.randrange(1, 50) for _ in range(r.randint(1, 12))))
        request_id = len(simulation.books.requests)
        request = Request(
            request_id,
            prompt,
            SamplerParams(ignore_eos=r.random() < 0.5, prompt_logprobs=0 if r.random() < 0.1 else None),
            max_tokens=r.randint(1, 12),
            seed=unsalted_seed(r, life.tenant),
            tenant=str(life.tenant),
            priority=r.choice([0, 0, 5]),
            arrival=simulation.clock,
            timeouts=Timeouts() if r.random() < 0.9 else Timeouts(5.0),
            session=session_id,
            session_ttl=life.ttl_s,
        )
        try:
            simulation.scheduler.submit(request)
        except (RequestTooLarge, SessionBusy):
            return
        assert life.turn is None or self._has_ended(life.turn), "two turns of one session at once"
        simulation.books.requests[request_id] = request
        simulation.outcome.turns += 1
        life.turn = request_id

    def stop(self, session_id: str) -> None:
        """The client finds a stop string: what it was told so far was said."""
        simulation, life = self._simulation, self._lives[session_id]
        if life.turn is None or self._has_ended(life.turn):
            return
        request = simulation.books.requests[life.turn]
        output = simulation.books.outputs.get((life.turn, 0), [])
        told = len(request.prompt) + simulation.random.randint(0, len(output))
        simulation.scheduler.session_holds.stop_turn(session_id, life.turn, told)
        simulation.cancel_request(life.turn)
        life.tokens = [*request.prompt, *output][:told]
        life.turn = None

    def fork(self, session_id: str) -> None:
        """Another session goes on from what was said in it, or in a part of it."""
        simulation, r, life = self._simulation, self._simulation.random, self._lives[session_id]
        source = self._find(session_id)
        is_stopping = life.turn is None and source.turn is not None  # it keeps other names than were said yet
        if len(self.known()) >= _SESSIONS_MAX or is_stopping or not source.names:
            return
        tokens = life.tokens[: r.choice([len(life.tokens), r.randint(1, len(life.tokens))])]
        pool = simulation.scheduler.ledger.pool
        before = dict(pool.by_name), [list(pin.holder.blocks) for pin in source.pins]
        self._num_made += 1
        made = f"s{self._num_made}"
        self._lives[made] = _Life(life.tenant, life.ttl_s, tokens)
        said = array("I", tokens).tobytes()
        stored = StoredSession(made, source.tenant, said, life.ttl_s, life.ttl_s, source.num_shared)
        simulation.scheduler.session_holds.fork(stored, source, simulation.clock)
        simulation.scheduler.check()
        after = pool.by_name, [list(pin.holder.blocks) for pin in source.pins]
        assert after == before, "a fork took a block, or changed what its session holds"
        simulation.outcome.sessions_forked += 1

    def suspend(self, session_id: str) -> None:
        """Send it below, if that may be."""
        simulation, tenant = self._simulation, str(self._lives[session_id].tenant)
        try:
            simulation.scheduler.session_holds.suspend(tenant, session_id)
        except (SessionBusy, SessionRefused, PinRefused):
            simulation.outcome.suspensions_refused += 1
            return
        simulation.outcome.suspended += 1

    def resume(self, session_id: str) -> None:
        """As a pin is filled: by an ordinary request."""
        simulation, life = self._simulation, self._lives[session_id]
        tenant, pinning = str(life.tenant), simulation.scheduler.client_pins
        session = self._find(session_id)
        prompt = tuple(life.tokens[: len(session.names) * simulation.block_size])
        request_id = len(simulation.books.requests)
        try:
            order = PinRequest(session_id, prompt, 20.0, Strength.HOT, tenant, is_resumed_session=True)
            pinning.open(order, request_id, simulation.clock)
        except (SessionBusy, PinRefused, InvalidRequest):
            return
        seed = unsalted_seed(simulation.random, life.tenant)
        request = Request(
            request_id,
            prompt,
            SamplerParams(ignore_eos=True),
            max_tokens=1,
            seed=seed,
            tenant=tenant,
            arrival=simulation.clock,
            fills_pin=order.pin_name,
        )
        try:
            simulation.scheduler.submit(request)
        except RequestTooLarge:
            pinning.give_up(request)
            return
        simulation.books.requests[request_id] = request
        simulation.outcome.resumed += 1

    def lose(self, session_id: str) -> None:
        """The store below says that it has lost a block of it."""
        slots = self._simulation.scheduler.session_holds.slots(session_id)
        if slots:
            self._simulation.scheduler.transfers.lose([self._simulation.random.choice(slots)[1]])

    def delete(self, session_id: str) -> None:
        """Nobody wants it any more."""
        tenant = str(self._lives[session_id].tenant)
        self._simulation.scheduler.session_holds.delete(tenant, session_id)
        del self._lives[session_id]

    def _lose_perhaps(self, session_id: str) -> None:
        if self._simulation.random.random() >= 0.5:
            self.lose(session_id)

    def _delete_perhaps(self, session_id: str) -> None:
        if self._simulation.random.random() < 0.3:
            self.delete(session_id)

    def _learn(self) -> None:
        """Turns that have ended: those that ended well were said."""
        books = self._simulation.books
        for life in self._lives.values():
            if life.turn is None or not self._has_ended(life.turn):
                continue
            if books.finals[life.turn, 0] in (FinishReason.STOP, FinishReason.LENGTH):
                life.tokens = [*books.requests[life.turn].prompt, *books.outputs[life.turn, 0]]
            life.turn = None

    def _has_ended(self, request_id: int) -> bool:
        return (request_id, 0) in self._simulation.books.finals
