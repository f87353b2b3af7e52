"""Views with plain values, for tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import fields, replace

from octavo.engine.outputs import (
    BlockCounts,
    Glimpse,
    PinView,
    PoolView,
    RequestView,
    SequenceView,
    SessionBlocks,
    SessionState,
    State,
    Strength,
    TableView,
    TierView,
    Totals,
)
from octavo.memory.holders import HolderKind
from octavo.memory.table import BlockTable

_SEQUENCE = SequenceView(0, State.RUNNING, "", "", 512, 2048, 40, 256, 0, 0, 0, 34, 0, False, 0)
_TOTALS = Totals(BlockCounts(10, 3, 2, 5), 5, 0, 0, 0, "", {}, (), None)
_POOL = PoolView(100.0, None, 16, 368_640, 10, 20, "", 0, 0, 0, 0, 0, (), (), _TOTALS)
TIER = TierView(400, 30, 2, 5, 6, 0, 0)


def a_sequence(choice: int = 0, *, is_running: bool = True, **changes: object) -> SequenceView:
    """A choice whose prompt is being computed, or that waits."""
    state = State.RUNNING if is_running else State.WAITING
    return replace(_SEQUENCE, choice=choice, state=state, **changes)


def a_request(request_id: int, *choices: SequenceView, **changes: object) -> RequestView:
    """Of one choice that runs, unless others are given."""
    sequences = choices or (a_sequence(),)
    plain = RequestView(100.0, request_id, "", 0, 90.0, None, None, "", "", "", (), sequences)
    return replace(plain, **changes)


def a_table(kind: HolderKind, *blocks: int, number: int | None = None, **changes: object) -> TableView:
    """A holder's; its number is new."""
    number = BlockTable().number if number is None else number
    return replace(TableView(number, kind, "", f"a {kind}", None, None, list(blocks)), **changes)


def a_pin(name: str, tenant: str = "", **changes: object) -> PinView:
    """Two blocks, both held."""
    return replace(PinView(100.0, tenant, name, Strength.HOT, 2, 40, False, 100.0, 160.0, 2, 0), **changes)


def a_session(session_id: str, tenant: str = "", **changes: object) -> SessionBlocks:
    """Twelve blocks, which nothing keeps."""
    return replace(SessionBlocks(session_id, tenant, SessionState.IDLE, 12, expires=700.0), **changes)


def a_pool(**changes: object) -> PoolView:
    """The operator's, of ten blocks, unless `totals` is None."""
    of_totals = {one.name for one in fields(Totals)}
    totals = replace(_TOTALS, **{name: value for name, value in changes.items() if name in of_totals})
    rest = {name: value for name, value in changes.items() if name not in of_totals}
    return replace(_POOL, **{"totals": totals} | rest)


def a_glimpse(names: Sequence[bytes | None] = (None,) * 16, **changes: object) -> Glimpse:
    """As many blocks as names; changes of the pool and of the totals are told by their names, too."""
    own = {one.name for one in fields(Glimpse)}
    of_pool = {name: value for name, value in changes.items() if name not in own}
    sizes = {"num_blocks": len(names), "capacity": len(names)}
    plain = Glimpse(a_pool(**sizes | of_pool), list(names), 0, b"", (), (), ())
    return replace(plain, **{name: value for name, value in changes.items() if name in own})
