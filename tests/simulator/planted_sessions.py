"""Bugs planted in sessions, warm pins and what is kept below."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

from tests.simulator.planting import PlantedBug

from octavo.memory.names import NameChain
from octavo.memory.tiers import OffloadTier
from octavo.retention.pins import Pin
from octavo.retention.room import Room
from octavo.retention.session_holds import SessionHolds
from octavo.retention.session_table import Session, StoredSession
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.transfers import Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.types import Request


def _keep_by_count_alone(self: OffloadTier, names: Many[bytes]) -> bool:
    if self.num_kept + len(names) > self.kept_max:
        return False
    self._keepers.update(names)
    return True


def _keep_without_bound(self: OffloadTier, names: Many[bytes]) -> bool:
    bound, self._kept_max = self._kept_max, self.num_slots
    done = _KEEP(self, names)
    self._kept_max = bound
    return done


def _let_go_at_once(self: WarmPins, pin: Pin) -> None:
    if pin.table is not None:
        self._pins.offload(pin)


def _never_let_go(self: WarmPins, pin: Pin) -> None:
    return None


def _end_and_keep_on(self: WarmPins, pin: Pin) -> None:
    for name in pin.missing:
        self._waiting[name].remove(pin)


def _delete_leaving_its_pins(self: SessionHolds, tenant: str, session_id: str) -> Session:
    return self._table._sessions.pop(session_id)


def _restore_without_keeping(self: SessionHolds, stored: StoredSession, now: float) -> Session:
    session = _RESTORE(self, stored, now)
    for pin in session.pins:
        self._warm_pins.remove(pin)
    return session


def _restore_by_own_names(self: SessionHolds, stored: StoredSession, now: float) -> Session:
    return _RESTORE(self, replace(stored, num_shared=0), now)


def _suspend_what_was_resumed(self: SessionHolds, tenant: str, session_id: str) -> Session:
    session = self._table.find(tenant, session_id)
    session.check_not_busy()
    session.is_suspended = True
    return session


def _end_turn_without_turn(
    self: SessionHolds, request: Request, num_computed: int, chain: NameChain, *, is_well: bool
) -> None:
    _ON_END(self, request, num_computed, chain, is_well=is_well)
    session = self._table.get(request.session)
    if session is not None:
        session.turn = request.request_id


_KEEP, _RESTORE, _ON_END = OffloadTier.keep, SessionHolds.restore, SessionHolds.on_end

SESSION_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("slot of a kept name taken", OffloadTier, "keep", _keep_by_count_alone),
    PlantedBug("all slots kept", OffloadTier, "keep", _keep_without_bound),
    PlantedBug("warm pin let go before it is stored", WarmPins, "_settle", _let_go_at_once),
    PlantedBug("warm pin never let go", WarmPins, "_settle", _never_let_go),
    PlantedBug("names kept for a pin that is gone", WarmPins, "end", _end_and_keep_on),
    PlantedBug("damage of a kept block not told", WarmPins, "lost", lambda self, name: None),
    PlantedBug("promised stores never begin", Transfers, "_store_promised", lambda self, tier: None),
    PlantedBug("two turns of a session", Session, "check_not_busy", lambda self: None),
    PlantedBug("session beyond the pins' budget", SessionHolds, "_shortage", lambda self, session, count: ""),
    PlantedBug("session that never expires", SessionHolds, "expire", lambda self, session_id, now: None),
    PlantedBug("deleted session keeps its blocks", SessionHolds, "delete", _delete_leaving_its_pins),
    PlantedBug("restored session keeps nothing", SessionHolds, "restore", _restore_without_keeping),
    PlantedBug(
        "shared prefix of a restored session forgotten", SessionHolds, "restore", _restore_by_own_names
    ),
    PlantedBug("suspended, and still in the pool", SessionHolds, "suspend", _suspend_what_was_resumed),
    PlantedBug("turn that never ends", SessionHolds, "on_end", _end_turn_without_turn),
    PlantedBug(
        "idle session that never gives way", SoftHolds, "reclaim_soft_holds", lambda self, request: None
    ),
    PlantedBug("diverging turn counts its session's blocks", Room, "blocks_of_turn", lambda *a, **k: 5),
)
