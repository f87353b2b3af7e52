"""What is kept of idle sessions gives way: nobody asked for it, so it keeps no request and no pin out.

    firm        pins that somebody asked for: hot and warm ones, resumed sessions
    yielding    an idle session's hold (`Pin.gives_way`)

    firm pins + worst case of any request that was taken                   <= room    else it is refused
    firm and yielding pins + worst case of any request that runs           <= room    else holds are let go

The second line is established here, when a request is the next to enter, and nobody breaks it afterwards: a
hold is made where there is room beside all that runs. So a session loses its blocks only to what could not
run beside them. Those of the tenant who needs room go first, the longest idle in front. Its next turn finds
what is still cached, and computes the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.memory.pins import Pin
from octavo.scheduler.events import Event, EventKind
from octavo.scheduler.limits import blocks_needed
from octavo.types import Request

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler
    from octavo.scheduler.sessions import Session


class GivingWay:
    """Acts on the holds of the scheduler's sessions; called on its thread, through it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def is_crowded(self, request: Request) -> bool:
        """True when holds of idle sessions keep out a request that was taken. O(1) where there are none, or
        where there is plenty of room."""
        scheduler = self._scheduler
        pins, quotas = scheduler.pins, scheduler.memory.quotas
        if not pins.num_yielding:
            return False
        needed = blocks_needed(request, scheduler.memory.block_size)
        maximum = quotas.policy(request.tenant).maximum
        plenty = scheduler.memory.pool.num_blocks - pins.num_blocks - quotas.num_guaranteed
        if needed <= plenty and (maximum is None or needed <= maximum - pins.blocks_of(request.tenant)):
            return False
        return needed > scheduler.tenancy.room_with_own_pin(request)

    def make_way(self, request: Request) -> None:
        """A request that was taken is about to run: let go of holds until it may. O(sessions) for each."""
        while self.is_crowded(request):
            given = self._give_one(request.tenant, request.session)
            assert given, "a request was taken that does not fit beside firm pins"

    def make_way_for_pin(self, num_blocks: int, tenant: str, session_id: str) -> None:
        """The same for a pin that is about to be made, perhaps of that session."""
        pinning = self._scheduler.pinning
        while pinning.shortage(num_blocks, tenant, "") and self._give_one(tenant, session_id, any_helps=True):
            pass

    def keep_to_bounds(self) -> None:
        """Tenants have other bounds now: holds beyond a maximum or a guarantee go, and those in the way of
        who runs."""
        scheduler = self._scheduler
        quotas, pins = scheduler.memory.quotas, scheduler.pins
        for policy in quotas.policies() if pins.num_yielding else ():
            limits = [policy.maximum] if policy.maximum is not None else []
            limits += [policy.guaranteed] if quotas.has_guarantees else []
            while any(pins.blocks_of(policy.name) > limit for limit in limits):
                if not self._give_one(policy.name, only_its_own=True):
                    break
        for request in scheduler.running_requests():
            self.make_way(request)

    def give_for(self, tenant: str) -> bool:
        """The tenant holds too much: one hold of its own less. False when there is none."""
        return self._give_one(tenant, only_its_own=True)

    def _give_one(
        self, tenant: str, session_id: str = "", *, any_helps: bool = False, only_its_own: bool = False
    ) -> bool:
        """Let the hold go that can best be spared for something of `tenant`, which may be that session's.
        Blocks within another tenant's guarantee help nobody else, unless it is about the pins' budget."""
        quotas, pins = self._scheduler.memory.quotas, self._scheduler.pins
        found: list[tuple[tuple[bool, bool, bool, bool, float], Session, Pin]] = []
        for session in self._scheduler.sessions.all() if pins.num_yielding else ():
            hold = self._scheduler.sessions.pins_of(session)[1]
            if hold is None or not hold.num_held:
                continue
            owner = session.tenant
            helps = any_helps or pins.blocks_of(owner) > quotas.policy(owner).guaranteed
            if owner != tenant and (only_its_own or not helps):
                continue
            is_own, is_promised = session.session_id == session_id, session.is_suspended
            used = session.expires - session.ttl_s
            key = (is_own, is_promised, session.turn is not None, owner != tenant, used)
            found.append((key, session, hold))
        if not found:
            return False
        _, session, hold = min(found, key=lambda item: item[0])
        self._give(session, hold)
        return True

    def _give(self, session: Session, hold: Pin) -> None:
        scheduler, num_blocks = self._scheduler, hold.num_held
        scheduler.pinning.remove(hold)
        session.is_suspended = False  # one on its way down is not there
        session.note = "its blocks were needed for what could not run beside them"
        text = (
            f"session {session.session_id} let go of {num_blocks:,} blocks: {session.note}; its next turn "
            "computes what is not cached any more"
        )
        kind = EventKind.SESSION_GAVE_WAY
        scheduler.events.note(Event(scheduler.now, kind, text, session.turn, session.tenant, num_blocks))
