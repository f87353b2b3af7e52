"""Bugs planted in sessions, warm pins and what is kept below."""

from __future__ import annotations

from collections.abc import Sequence as Many

from octavo.memory.pins import Pin
from octavo.memory.tiers import LowerTier
from octavo.scheduler.capacity import Capacity
from octavo.scheduler.giving_way import GivingWay
from octavo.scheduler.holding import Holding
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.session_table import Session, SessionTable
from octavo.scheduler.sessions import Sessions
from octavo.scheduler.transfers import Transfers
from octavo.sim.planting import PlantedBug


def _keep_by_count_alone(self: LowerTier, names: Many[bytes]) -> bool:
    if self.num_kept + len(names) > self.kept_max:
        return False
    self._keepers.update(names)
    return True


def _keep_without_bound(self: LowerTier, names: Many[bytes]) -> bool:
    bound, self.kept_max = self.kept_max, self.num_slots
    done = _KEEP(self, names)
    self.kept_max = bound
    return done


def _let_go_at_once(self: Holding, pin: Pin) -> None:
    if pin.table is not None:
        self._pins.let_go(pin)


def _never_let_go(self: Holding, pin: Pin) -> None:
    return None


def _end_and_keep_on(self: Holding, pin: Pin) -> None:
    for name in pin.missing:
        self._waiting[name].remove(pin)


def _delete_leaving_its_pins(self: Sessions, tenant: str, session_id: str) -> Session:
    return self._table._sessions.pop(session_id)


def _restore_without_keeping(
    self: Sessions,
    session_id: str,
    tenant: str,
    tokens: Many[int],
    ttl_s: float,
    now: float,
    left_s: float = 0.0,
    num_shared: int = 0,
    num_suspended: int = 0,
) -> Session:
    session = _RESTORE(self, session_id, tenant, tokens, ttl_s, now, left_s, num_shared, num_suspended)
    for pin in self._table.pins_of(session):
        if pin is not None:
            self._holding.remove(pin)
    return session


def _restore_by_own_names(
    self: Sessions,
    session_id: str,
    tenant: str,
    tokens: Many[int],
    ttl_s: float,
    now: float,
    left_s: float = 0.0,
    num_shared: int = 0,
    num_suspended: int = 0,
) -> Session:
    return _RESTORE(self, session_id, tenant, tokens, ttl_s, now, left_s, 0, num_suspended)


def _suspend_what_was_resumed(self: Sessions, tenant: str, session_id: str) -> Session:
    session = self._table.find(tenant, session_id)
    self._table.check_still(session)
    session.is_suspended = True
    return session


def _end_turn_without_turn(self: Sessions, sequence: Sequence) -> None:
    _END_TURN(self, sequence)
    session = self._table.get(sequence.request.session)
    if session is not None:
        session.turn = sequence.request.request_id


_KEEP, _RESTORE, _END_TURN = LowerTier.keep, Sessions.restore, Sessions.end_turn

SESSION_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("slot of a kept name taken", LowerTier, "keep", _keep_by_count_alone),
    PlantedBug("all slots kept", LowerTier, "keep", _keep_without_bound),
    PlantedBug("warm pin let go before it is stored", Holding, "_settle", _let_go_at_once),
    PlantedBug("warm pin never let go", Holding, "_settle", _never_let_go),
    PlantedBug("names kept for a pin that is gone", Holding, "end", _end_and_keep_on),
    PlantedBug("damage of a kept block not told", Holding, "lost", lambda self, name: None),
    PlantedBug("promised stores never begin", Transfers, "_store_promised", lambda self, tier: None),
    PlantedBug("two turns of a session", SessionTable, "check_still", lambda self, session: None),
    PlantedBug("session beyond the pins' budget", Sessions, "_shortage", lambda self, session, count: ""),
    PlantedBug("session that never expires", Sessions, "expire", lambda self, now: None),
    PlantedBug("deleted session keeps its blocks", Sessions, "delete", _delete_leaving_its_pins),
    PlantedBug("restored session keeps nothing", Sessions, "restore", _restore_without_keeping),
    PlantedBug("shared prefix of a restored session forgotten", Sessions, "restore", _restore_by_own_names),
    PlantedBug("suspended, and still in the pool", Sessions, "suspend", _suspend_what_was_resumed),
    PlantedBug("turn that never ends", Sessions, "end_turn", _end_turn_without_turn),
    PlantedBug("idle session that never gives way", GivingWay, "make_way", lambda self, request: None),
    PlantedBug("diverging turn counts its session's blocks", Capacity, "blocks_of_turn", lambda *a, **k: 5),
)
