"""The engine's port: every command that other threads send to the engine, and its execution.

    client -- Submit, Cancel, Resize ... --> Inbox -- between two steps --> Port.answer(command, now) -> reply

A command and its reply are frozen plain data, so both have an encoding (`codec`): a command may come from
another process, or from a recording. `Command[ReplyT]` names the type of the reply. A `View` only reads.

This is the one file of the engine that reads or changes the scheduler's parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from octavo.engine.load_report import LoadReporter
from octavo.errors import RequestFailed
from octavo.inspect.inspector import Inspector
from octavo.inspect.readers import view_pin
from octavo.inspect.stats import EngineCounters, EngineStats
from octavo.inspect.views import Glimpse, PinView, PoolView, RequestView, SessionBlocks
from octavo.memory.changes import ChangeRecord
from octavo.memory.place_changes import PlaceChanges
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.retention.client_pins import PinRequest
from octavo.retention.session_table import SessionState, StoredSession
from octavo.routing.reports import Load
from octavo.scheduler.pressure import PressurePolicy
from octavo.scheduler.scheduler import Scheduler
from octavo.step.events import Event, EventKind
from octavo.types import RankState, Request, TransferDone, Update

ReplyT = TypeVar("ReplyT")


class Command(msgspec.Struct, Generic[ReplyT], frozen=True, tag=True):
    """An action of the engine between two steps. `ReplyT`: the type of its reply."""


class View(Command[ReplyT], Generic[ReplyT], frozen=True, tag=True):
    """Changes nothing: if it fails, only its reply is lost."""


# -- requests


class Submit(Command[int], frozen=True, tag=True):
    """Queue a request; replies how many of its leading blocks have names that all tenants share. Raises as
    `Scheduler.submit`.

    `pin`: also open this pin, which the request fills: both, or neither and an error. `fallback`: why the
    prompt of a session's turn does not extend the session's tokens; "" if it does.
    """

    request: Request
    pin: PinRequest | None = None
    fallback: str = ""


class FitRequest(View[Request], frozen=True, tag=True):
    """The request as `Submit` would queue it now, with its max_tokens. Raises as `Submit` would, regardless
    of the queue, of running requests, and of a session's turn."""

    request: Request


class StopTurn(Command[None], frozen=True, tag=True):
    """A stop string has ended the turn after `num_tokens` tokens of the session. A `Cancel` follows."""

    session_id: str
    request_id: int
    num_tokens: int


class Cancel(Command[list[Update]], frozen=True, tag=True):
    """End a request, or one choice of it; ignored when it has ended."""

    request_id: int
    choice: int | None = None


# -- the pool


class SetTenants(Command[None], frozen=True, tag=True):
    """Replace all tenants' bounds. Raises TenantsRefused, and then changes nothing."""

    policies: tuple[TenantPolicy, ...]


class Resize(Command[bool], frozen=True, tag=True):
    """Change the pool's size; False: blocks that must move are in transfer. Raises ResizeRefused."""

    num_blocks: int


class SetTarget(Command[None], frozen=True, tag=True):
    """Set the target for the time between two tokens; None: none."""

    seconds: float | None


class ReadMemory(Command[None], frozen=True, tag=True):
    """So many bytes of the machine's memory are available (None: unknown). The pool may return some."""

    available: int | None


class FinishTransfer(Command[None], frozen=True, tag=True):
    """A transfer between the pool and an offload tier has ended."""

    done: TransferDone


# -- pins


class FindPin(Command[PinView | None], frozen=True, tag=True):
    """The pin filled by the request `filler`, unless it has expired."""

    order: PinRequest
    filler: int


class DropPin(Command[None], frozen=True, tag=True):
    """Remove the pin that the request `filler` fills or has filled, if there is one."""

    order: PinRequest
    filler: int


class RenewPin(Command[PinView], frozen=True, tag=True):
    """Make it expire `ttl_s` seconds from now. Raises UnknownPin or InvalidRequest."""

    tenant: str
    name: str
    ttl_s: float


class Unpin(Command[PinView], frozen=True, tag=True):
    """Remove it; its blocks stay cached until they are evicted. Raises UnknownPin."""

    tenant: str
    name: str


# -- sessions


class CheckTenant(Command[None], frozen=True, tag=True):
    """Raises UnknownTenant unless the tenant may have a session."""

    tenant: str


class RestoreSession(Command[None], frozen=True, tag=True):
    """Register the session, if it is unknown: it counts as suspended, with its blocks in an offload tier.
    Sent when a conversation is made without a session's first turn, and to a new scheduler."""

    session: StoredSession


class ForkSession(Command[int], frozen=True, tag=True):
    """Register `fork`, which holds blocks of the session `source_id`; replies how many of them a client had
    suspended. Raises UnknownTenant."""

    source_id: str
    fork: StoredSession


class ForgetSession(Command[None], frozen=True, tag=True):
    """Release its blocks, if it is known. Its running turn continues as a plain request."""

    tenant: str
    session_id: str


class RenewSession(Command[None], frozen=True, tag=True):
    """Restart its ttl now, if it is known."""

    session_id: str


class SuspendSession(Command[SessionBlocks], frozen=True, tag=True):
    """Begin to store all its blocks on disk. Raises as `SessionHolds.suspend`."""

    tenant: str
    session_id: str


class FindSlots(Command[list[tuple[int, bytes]]], frozen=True, tag=True):
    """Slots and names of a suspended session's blocks. Raises UnknownSession, SessionBusy, RequestFailed."""

    tenant: str
    session_id: str


class LoseBlocks(Command[None], frozen=True, tag=True):
    """Blocks of these names could not be synced to disk: forget them."""

    names: list[bytes]


class ConfirmSuspended(Command[SessionBlocks], frozen=True, tag=True):
    """All `num_blocks` and its record are on the medium. Raises RequestFailed if it was used since."""

    tenant: str
    session_id: str
    num_blocks: int


class AbandonSuspension(Command[None], frozen=True, tag=True):
    """A session could not be suspended: it keeps its blocks as before."""

    session_id: str


# -- views


class ViewStats(View[EngineStats], frozen=True, tag=True):
    """Counters and gauges."""


class ViewLoad(View[Load], frozen=True, tag=True):
    """The engine's load for a router. O(requests)."""


class ViewKv(View[PoolView], frozen=True, tag=True):
    """Pool, pins and recent events, or the tenant's part of them."""

    tenant: str | None = None


class ViewGlimpse(View[Glimpse], frozen=True, tag=True):
    """Data of the live map, or the tenant's part; `offloaded_from`: the first block whose place in the
    offload tiers is read."""

    offloaded_from: int
    tenant: str | None = None


class ViewRequests(View[list[RequestView]], frozen=True, tag=True):
    """All unfinished requests, or the tenant's, in order of arrival; or the one of this id, with its block
    tables, if it is among them or among the last that have ended."""

    tenant: str | None = None
    request_id: int | None = None


class ViewPins(View[list[PinView]], frozen=True, tag=True):
    """All pins that clients named, or the tenant's, oldest first."""

    tenant: str | None = None


class ViewSessions(View[list[SessionBlocks]], frozen=True, tag=True):
    """The blocks of each of these sessions; none for an unknown one. O(blocks)."""

    session_ids: tuple[str, ...]


class Port:
    """Executes commands, on the engine's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        counters: EngineCounters,
        pressure: PressurePolicy | None = None,
        ranks: Callable[[], tuple[RankState, ...]] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._pressure = pressure
        self._inspector = inspector_of(scheduler, ranks)
        self._load: LoadReporter | None = None  # after a router's first request

    @property
    def changes(self) -> ChangeRecord | None:
        """The record of arrivals and departures, if they are published."""
        return self._scheduler.ledger.history.changes

    def follow_places(self) -> PlaceChanges:
        """Arrivals and departures of names from now on, for one receiver."""
        return PlaceChanges(self._scheduler.ledger, self._scheduler.pins.shared_names)

    def answer(self, command: Command[ReplyT], now: float) -> object:
        """Execute it; returns its `ReplyT`. Other exceptions than OctavoError may leave a broken state."""
        s, look = self._scheduler, self._inspector
        match cast(object, command):
            case Submit(request, pin, fallback):
                return self._submit(request, pin, fallback, now)
            case FitRequest(request):
                return s.fitted(request)
            case StopTurn(session_id, request_id, num_tokens):
                s.session_holds.stop_turn(session_id, request_id, num_tokens)
            case Cancel(request_id, choice):
                return s.cancel(request_id, choice)
            case SetTenants(policies):
                s.tenants.set_policies(policies)
            case Resize(num_blocks):
                return s.resizer.resize(num_blocks)
            case SetTarget(seconds):
                s.context.target.set(seconds)
            case ReadMemory(available):
                self._read_memory(available, now)
            case FinishTransfer(done):
                s.transfers.finish(done)
            case FindPin(order, filler):
                return self._find_pin(order, filler, now)
            case DropPin(order, filler):
                s.client_pins.drop(order, filler)
            case RenewPin(tenant, name, ttl_s):
                return view_pin(s.client_pins.renew(tenant, name, ttl_s, now), now)
            case Unpin(tenant, name):
                return self._unpin(tenant, name, now)
            case CheckTenant(tenant):
                s.tenants.check_known(tenant)
            case RestoreSession(session):
                self._restore(session, now)
            case ForkSession(source_id, fork):
                return self._fork(source_id, fork, now)
            case ForgetSession(tenant, session_id):
                self._forget(tenant, session_id)
            case RenewSession(session_id):
                s.session_holds.renew(session_id, now)
            case SuspendSession(tenant, session_id):
                return self._suspend(tenant, session_id)
            case FindSlots(tenant, session_id):
                return self._find_slots(tenant, session_id)
            case LoseBlocks(names):
                s.transfers.lose(names)
            case ConfirmSuspended(tenant, session_id, num_blocks):
                return self._confirm_suspended(tenant, session_id, num_blocks, now)
            case AbandonSuspension(session_id):
                s.session_holds.give_up_suspending(session_id)
            case ViewStats():
                return look.stats(self._counters)
            case ViewLoad():
                self._load = self._load or LoadReporter(s)
                return self._load.report()
            case ViewKv(tenant):
                return look.kv(now, tenant)
            case ViewGlimpse(offloaded_from, tenant):
                return look.glimpse(now, offloaded_from, tenant)
            case ViewRequests(tenant, request_id):
                return look.requests(now, tenant, request_id)
            case ViewPins(tenant):
                return look.all_pins(now, tenant)
            case ViewSessions(session_ids):
                return [look.session(session_id) for session_id in session_ids]
            case _:
                raise AssertionError(f"a command of an unknown kind: {type(command).__name__}")
        return None

    @property
    def unused_until(self) -> float | None:
        """When unused blocks return their memory, if nothing is computed until then."""
        return None if self._pressure is None else self._pressure.idle_at(self._scheduler.resizer)

    def retire(self) -> None:
        """Keep the counts of the scheduler, which another one replaces."""
        counters, s = self._counters, self._scheduler
        counters.preemptions_before += s.live.num_preemptions
        counters.kept_before += s.staging.num_kept
        counters.tokens_recomputed_before += s.live.tokens_recomputed

    def record(self, updates: list[Update]) -> None:
        """Count these updates for clients."""
        for update in updates:
            self._counters.record_update(update)
        self.record_ends(updates)

    def record_ends(self, updates: list[Update]) -> None:
        """Keep the ends of choices, for the cards of their requests."""
        live = self._scheduler.live
        for update in updates:
            if update.finish is not None:
                live.ended.note_final(update, is_live=update.request_id in live)

    # -- requests and pins

    def _submit(self, request: Request, pin: PinRequest | None, fallback: str, now: float) -> int:
        s = self._scheduler
        if pin is not None:
            s.tenants.check_known(request.tenant)  # first: a pin takes blocks of idle sessions
            s.check_pool(request)
            s.client_pins.open(pin, request.request_id, now)
        try:
            s.submit(request)
        except BaseException:
            s.client_pins.give_up(request)
            raise
        if fallback:
            text = f"session {request.session}: {fallback}; its prompt was tokenised as a whole"
            s.events.record(Event(now, EventKind.SESSION_FELL_BACK, text, None, request.tenant))
        return s.live.sequences_of(request.request_id)[0].chain.num_shared

    def _find_pin(self, order: PinRequest, filler: int, now: float) -> PinView | None:
        pin = self._scheduler.client_pins.find_requested(order)
        if pin is None or pin.filler != filler or pin.expires <= now:
            return None
        return view_pin(pin, now)

    def _unpin(self, tenant: str, name: str, now: float) -> PinView:
        view = view_pin(self._scheduler.client_pins.find(tenant, name), now)
        self._scheduler.client_pins.release(tenant, name)
        return view

    def _read_memory(self, available: int | None, now: float) -> None:
        assert self._pressure is not None
        self._pressure.act(self._scheduler.resizer, now, available, self._scheduler.has_work)

    # -- sessions

    def _restore(self, stored: StoredSession, now: float) -> None:
        """O(tokens) if it is unknown."""
        if stored.session_id not in self._scheduler.session_table:
            self._scheduler.session_holds.restore(stored, now)

    def _fork(self, source_id: str, fork: StoredSession, now: float) -> int:
        s = self._scheduler
        s.tenants.check_known(fork.tenant)
        self._forget(fork.tenant, fork.session_id)  # a new scheduler has read it from the store
        source = s.session_table.get(source_id)
        holds = s.session_holds
        made = holds.restore(fork, now) if source is None else holds.fork(fork, source, now)
        return made.num_suspended if made.is_promised else 0

    def _forget(self, tenant: str, session_id: str) -> None:
        if self._scheduler.session_table.get(session_id) is not None:
            self._scheduler.session_holds.delete(tenant, session_id)

    def _suspend(self, tenant: str, session_id: str) -> SessionBlocks:
        self._scheduler.session_holds.suspend(tenant, session_id)
        return self._inspector.session(session_id)

    def _find_slots(self, tenant: str, session_id: str) -> list[tuple[int, bytes]]:
        session = self._scheduler.session_table.find(tenant, session_id)
        session.check_not_busy()
        if session.state is not SessionState.SUSPENDED:
            raise _used_meanwhile(session_id, session.state)
        return self._scheduler.session_holds.slots(session_id)

    def _confirm_suspended(self, tenant: str, session_id: str, num_blocks: int, now: float) -> SessionBlocks:
        blocks = self._inspector.session(session_id)
        if blocks.state is SessionState.IDLE:
            raise _used_meanwhile(session_id, blocks.state)
        text = f"session {session_id} was suspended: {num_blocks:,} blocks"
        event = Event(now, EventKind.SESSION_SUSPENDED, text, None, tenant, num_blocks)
        self._scheduler.events.record(event)
        return blocks


def inspector_of(scheduler: Scheduler, ranks: Callable[[], tuple[RankState, ...]] | None = None) -> Inspector:
    """Reads the scheduler's parts; for the engine's thread."""
    return Inspector(
        scheduler.context,
        scheduler.live,
        scheduler.pins,
        scheduler.session_table,
        scheduler.warm_pins,
        scheduler.transfers,
        scheduler.idle_memory,
        scheduler.staging,
        scheduler.speculator,
        scheduler.cold_chunks,
        scheduler.first_tokens,
        ranks or tuple,
    )


def request_of(command: Command[ReplyT]) -> Request | None:
    """The request that the command queues."""
    return command.request if isinstance(command, Submit) else None


def names_tenant(command: Command[ReplyT]) -> bool:
    """Whether the command has a tenant or tenants."""
    match cast(object, command):
        case Submit(request):
            return bool(request.tenant)
        case SetTenants(policies):
            return any(policy.name != SHARED for policy in policies)
        case RestoreSession(session) | ForkSession(_, session):
            return bool(session.tenant)
    return bool(getattr(command, "tenant", ""))


def _used_meanwhile(session_id: str, state: SessionState) -> RequestFailed:
    return RequestFailed(
        f"session {session_id} is {state.value}: it was used meanwhile, or its blocks were taken; suspend it "
        "again"
    )
