"""What each tenant may see, checked against a stupid count over the whole scheduler: all of its own, and
nothing by which another's requests, pins, blocks or ids could be known.
"""

from __future__ import annotations

import re

from tests.simulator.splits import check_splits

from octavo.engine.port import inspector_of
from octavo.inspect.views import Glimpse, TenantUse, draw_map
from octavo.scheduler.scheduler import Scheduler
from octavo.step.events import EVENTS_MAX, EventKind

_REQUEST = re.compile(r"request (\d+)")


def check_sights(scheduler: Scheduler, now: float) -> None:
    """Raise AssertionError where a tenant sees less than its own, or more. O(tenants * everything)."""
    names = {request.tenant for request in scheduler.live.requests()} | {"somebody who has nothing"}
    names |= {pin.tenant for pin in scheduler.pins.all()}
    names |= {event.tenant for event in scheduler.events.recent(EVENTS_MAX)} - {""}
    check_splits(scheduler, names, now)
    assert sum(_check_requests(scheduler, now, name) for name in names) == len(scheduler.live.live_requests())
    inspector = inspector_of(scheduler)
    kvs = [inspector.kv(now, name) for name in names]
    assert sum(kv.running for kv in kvs) == len(scheduler.live.running_requests()), (
        "a running request is no tenant's"
    )
    assert sum(kv.waiting for kv in kvs) == len(scheduler.live.waiting_requests()), (
        "a waiting request is no tenant's"
    )
    tables = [len(s.table.blocks) for s in scheduler.live.running if s.table is not None]
    assert sum(kv.held_by_sequences for kv in kvs) == sum(tables), "blocks of sequences are nobody's"
    totals = inspector.kv(now).totals
    assert totals is not None
    uses = {use.name: use for use in totals.tenants}
    for name, kv in zip(names, kvs, strict=True):
        use = uses.get(name, TenantUse(name))
        assert kv.totals is None, "a tenant is told of the whole house"
        assert (use.running, use.waiting) == (kv.running, kv.waiting), "the operator is told another number"
        assert {pin.tenant for pin in kv.pins} <= {name}, "a foreign pin is told"
        own = [pin for pin in scheduler.pins.named() if pin.tenant == name]
        assert len(kv.pins) == len(own), "a pin is missing"
        for event in kv.events:
            assert event.tenant == name, "a foreign event is told"
            told = {int(found) for found in _REQUEST.findall(event.text)}
            assert told <= {event.request_id}, f"an event names another's request: {event.text}"
            assert event.kind is not EventKind.PREEMPTED or "priority" not in event.text
        taken = inspector.glimpse(now, 0, name)
        _check_map(scheduler, name, taken, use)
        _check_glimpse(name, taken)


def _check_requests(scheduler: Scheduler, now: float, tenant: str) -> int:
    """Returns how many are its own."""
    inspector, live = inspector_of(scheduler), scheduler.live
    views = inspector.requests(now, tenant)
    shown = {view.request_id for view in views}
    for request in live.requests():
        assert (request.request_id in shown) == (request.tenant == tenant), "a foreign request is listed"
        one = inspector.request(request.request_id, now, tenant)
        assert (one is not None) == (request.tenant == tenant), "a foreign request is told"
    for view in views:
        assert view.place is None, "its place tells how many others wait"
        for sequence in view.sequences:
            assert not _REQUEST.search(sequence.why), f"a wait names a request: {sequence.why}"
    return len(views)


def _check_map(scheduler: Scheduler, tenant: str, taken: Glimpse, use: TenantUse) -> None:
    drawn = draw_map(taken)
    own = {
        block
        for s in scheduler.live.running
        if s.request.tenant == tenant and s.table is not None
        for block in s.table.blocks
    }
    for pin in scheduler.pins.all():
        if pin.tenant == tenant and pin.table is not None:
            own |= set(pin.table.blocks)
    assert len(drawn.states) == len(drawn.owner) == scheduler.ledger.pool.num_blocks
    numbers = set(range(len(own)))  # by its own order: places tell what others took
    assert {b for b, state in enumerate(drawn.states) if state != "."} == numbers, (
        "the map draws another's blocks"
    )
    assert {b for b, owner in enumerate(drawn.owner) if owner >= 0} == numbers, (
        "the map names another's blocks"
    )
    assert use.blocks_held == len(own), "the operator is told another number of blocks"
    for text in drawn.owners:
        for found in _REQUEST.findall(text):
            assert scheduler.live.sequences_of(int(found))[0].request.tenant == tenant, (
                "a foreign owner is named"
            )


def _check_glimpse(tenant: str, taken: Glimpse) -> None:
    """What its live map is made of."""
    own = {block for table in taken.tables for block in table.blocks}
    assert {b for b, name in enumerate(taken.names) if name is not None} <= own, "a glimpse has foreign names"
    told = {table.tenant for table in taken.tables} | {request.tenant for request in taken.requests}
    told |= {pin.tenant for pin in taken.pool.pins} | {session.tenant for session in taken.sessions}
    told |= {event.tenant for event in taken.pool.events}
    assert told <= {tenant}, "a glimpse tells of another tenant"
    for request in taken.requests:
        whys = [sequence.why for sequence in request.sequences]
        assert request.place is None, "a glimpse tells how many others wait"
        assert not any(map(_REQUEST.search, whys)), f"a glimpse names another's request: {whys}"
    assert taken.pool.totals is None, "a glimpse tells of the whole house"
