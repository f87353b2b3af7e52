"""A turn of a session, or of a stored response, from the record on: composed, queued, recorded. And what the
scheduler is told of records.

Which records there are, who may name them, and what becomes of one that failed, `sessions` and `responses`
say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.control import Asks, Control
from octavo.engine.session_record import SessionRecord
from octavo.engine.session_store import SessionStore
from octavo.engine.stream import DeltaStream, Turn
from octavo.engine.turns import Composed, TurnRecorder
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.scheduler.scheduler import Scheduler
from octavo.step.events import Event, EventKind
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions, Request


class TurnTaker(Protocol):
    """What takes the turns of conversations that are kept."""

    async def turn(
        self,
        tenant: str,
        session_id: str,
        messages: Sequence[ChatMessage],
        params: SamplerParams,
        *,
        priority: int = 0,
        timeouts: Timeouts = NO_TIMEOUTS,
        options: ChatOptions = DEFAULT_CHAT,
    ) -> Turn: ...


class TakesTurns(Asks, Protocol):
    """The client through which turns are queued; see `EngineClient`."""

    control: Control

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together, at most."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for."""

    async def compose(
        self,
        said: Sequence[int],
        messages: Sequence[ChatMessage],
        options: ChatOptions = DEFAULT_CHAT,
        *,
        tenant: str = "",
    ) -> Composed:
        """The prompt of a session's next turn."""

    async def submit(
        self,
        prompt: Sequence[int],
        params: SamplerParams,
        *,
        priority: int = 0,
        tenant: str = "",
        timeouts: Timeouts = NO_TIMEOUTS,
    ) -> DeltaStream:
        """Queue a request of no session."""

    async def submit_turn(
        self,
        prompt: Sequence[int],
        params: SamplerParams,
        recorder: TurnRecorder,
        submit: Callable[[Scheduler, Request], None],
        *,
        session_id: str,
        session_ttl: float,
        priority: int = 0,
        tenant: str = "",
        timeouts: Timeouts = NO_TIMEOUTS,
    ) -> DeltaStream:
        """Queue a turn."""


async def take_turn(
    llm: TakesTurns,
    store: SessionStore,
    record: SessionRecord,
    messages: Sequence[ChatMessage],
    params: SamplerParams,
    *,
    priority: int,
    timeouts: Timeouts,
    options: ChatOptions,
) -> Turn:
    """The next turn of that record. Raises SessionBusy, UnknownSession where it is no more, or as
    `EngineClient.submit`; then nothing was queued."""
    tenant, session_id = record.tenant, record.session_id
    composed = await llm.compose(record.tokens, messages, options, tenant=tenant)
    turn = object()
    num_shared = 0

    def submit(scheduler: Scheduler, request: Request) -> None:
        nonlocal num_shared
        found = store.find_again(record)  # it may have been deleted, or have expired, meanwhile
        if found.tokens:  # the engine may have begun afresh
            know(scheduler, scheduler.context.now, found, store.seconds_left(found))
        store.check_turn(record)  # turns begin on this thread alone, so the answer holds
        scheduler.submit(request)
        store.begin_turn(session_id, turn)
        num_shared = scheduler.live.sequences_of(request.request_id)[0].chain.num_shared

    def say(said: Sequence[int]) -> None:
        if not store.say(session_id, said, num_shared):
            llm.tell(lambda s, now: forget(s, tenant, session_id))

    recorder = TurnRecorder(composed.tokens, llm.token_bytes, say, end=lambda: store.end_turn(turn))
    try:
        stream = await llm.submit_turn(
            composed.tokens,
            params,
            recorder,
            submit,
            session_id=session_id,
            session_ttl=record.ttl_s,
            priority=priority,
            tenant=tenant,
            timeouts=timeouts,
        )
    except BaseException:
        llm.tell(lambda s, now: store.end_turn(turn))  # behind the question, which may yet begin it
        raise
    if composed.fallback:
        llm.tell(lambda s, now: _record_fallback(s, now, record, composed))
    return Turn(session_id, composed.tokens, composed.reused, composed.fallback, stream)


def know(scheduler: Scheduler, now: float, record: SessionRecord, left_s: float) -> None:
    """The scheduler shall know it; it may have begun afresh. O(tokens) where it does not."""
    if scheduler.session_table.get(record.session_id) is None:
        scheduler.session_holds.restore(
            record.session_id,
            record.tenant,
            record.tokens,
            record.ttl_s,
            now,
            left_s,
            record.num_shared,
            record.num_suspended,
        )


def know_fork(scheduler: Scheduler, now: float, session_id: str, made: SessionRecord) -> int:
    """The scheduler shall know the session that was made of that one, too; returns how many of its blocks a
    client suspended."""
    source = scheduler.session_table.find(made.tenant, session_id)
    holds = scheduler.session_holds
    session = holds.fork(made.session_id, source, made.tokens, made.ttl_s, now, made.num_shared)
    return holds.num_suspended(session) if session.is_promised else 0


def forget(scheduler: Scheduler, tenant: str, session_id: str) -> None:
    """What it held and kept can be taken, if the scheduler knows it."""
    if scheduler.session_table.get(session_id) is not None:
        scheduler.session_holds.delete(tenant, session_id)


def _record_fallback(scheduler: Scheduler, now: float, record: SessionRecord, composed: Composed) -> None:
    text = f"session {record.session_id}: {composed.fallback}; its prompt was tokenised as a whole"
    scheduler.events.record(Event(now, EventKind.SESSION_FELL_BACK, text, None, record.tenant))
