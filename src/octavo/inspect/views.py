"""The view model: the engine's memory and its users, one frozen type for each kind.

    a request and its sequences, a pin, a session, a tenant, a block table, the offload tiers, the pool

`Inspector` makes the views on the engine's thread between two steps, so all numbers of one answer belong
together. `Sight` decides which of them a tenant may see. All outputs are projections of them: the server's
JSON, the live map's frames, and `octavo top`.

Times are on the engine's clock, in seconds; `now` is the time of reading. Expensive fields have a default,
and are set only where their comment says so. The views are structs because a glimpse makes thousands while
steps wait: one takes a sixth of the time of a frozen dataclass.
"""

from __future__ import annotations

import msgspec

from octavo.memory.holders import HolderKind
from octavo.memory.ledger import BlockCounts
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.scheduler.sequence import State
from octavo.scheduler.sequence_parts import PromptSplit
from octavo.step.events import Event
from octavo.types import Phases, RankState

_LETTERS = {  # a later kind is drawn over an earlier one; an unlisted one as a pin
    HolderKind.FETCH: "t",
    HolderKind.STORE: "t",
    HolderKind.SEQUENCE: "s",
    HolderKind.SESSION: "p",
    HolderKind.PIN: "p",
}


class BlockView(msgspec.Struct, frozen=True):
    """One entry of a block table: the block's number, and its number of holders."""

    block: int
    holders: int
    published: bool


class SequenceView(msgspec.Struct, frozen=True):
    """One choice of a request. `why`: the reason that it waits."""

    choice: int
    state: State
    why: str
    reason: str
    num_computed: int
    num_prompt: int
    num_output: int
    num_cached: int
    num_drafted: int
    num_accepted: int
    preemptions: int
    num_blocks: int
    num_cold: int  # earlier blocks, read in an offload tier
    in_grammar: bool  # a grammar constrains its output now
    forced_tokens: int  # of its output: forced by the grammar
    # In answers about requests, not in a glimpse:
    blocks_peak: int = 0
    block_seconds: float = 0.0
    phases: Phases | None = None
    table: tuple[BlockView, ...] = ()  # in an answer about this request only
    finish: str = ""  # after its end: the reason, and the error
    error: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it has a row."""
        return self.state is not State.WAITING


class RequestView(msgspec.Struct, frozen=True):
    """An unfinished request; in an answer about it alone also one of the last that have ended."""

    now: float
    request_id: int
    tenant: str
    priority: int
    arrival: float
    deadline: float | None  # of its last token
    place: int | None  # in the queue, from 0; None unless it waits, and for a tenant
    session: str
    fills_pin: str
    follows: str  # the client's name for the output constraint, and its kind
    not_enforced: tuple[str, ...]  # parts of its schemas that are not enforced: keywords and their places
    sequences: tuple[SequenceView, ...]
    split: PromptSplit | None = None  # its prompt by source; None: not admitted yet
    ended: float | None = None  # when its last choice ended

    @property
    def age(self) -> float:
        """Seconds since its arrival."""
        return self.now - self.arrival

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its deadline."""
        return None if self.deadline is None else self.deadline - self.now


class PinView(msgspec.Struct, frozen=True):
    """A pin that a client named; `filling` until its prompt has been computed."""

    now: float
    tenant: str
    name: str
    strength: Strength
    num_blocks: int
    num_tokens: int
    filling: bool
    created: float
    expires: float
    num_held: int  # of its blocks: in the pool
    num_offloaded: int  # of its blocks: kept in an offload tier

    @property
    def age(self) -> float:
        """Seconds since it was opened."""
        return self.now - self.created

    @property
    def seconds_left(self) -> float:
        """Seconds until it expires."""
        return self.expires - self.now


class SessionBlocks(msgspec.Struct, frozen=True):
    """A session's full blocks and their places: a block in the pool may be in an offload tier too."""

    session_id: str = ""
    tenant: str = ""
    state: SessionState = SessionState.IDLE
    num_blocks: int = 0
    held: int = 0  # in the pool, held for it: counted in the pins' budget
    kept: int = 0  # in an offload tier, where only damage drops them
    expires: float = 0.0
    note: str = ""  # why its blocks are not kept
    bytes_per_block: int = 0  # 0: not known
    # In an answer about this session, not in a glimpse:
    in_pool: int = 0  # held for it, or cached
    offloaded: int = 0
    stuck: bool = False  # some could not be stored
    num_suspended: int = 0  # the leading ones that survive a restart
    is_resumed: bool = False  # a client resumed it, and all its blocks are held

    @property
    def tier(self) -> str:
        """ "pool", "disk", "pool and disk" or "none"."""
        places = [place for place, count in (("pool", self.in_pool), ("disk", self.offloaded)) if count]
        return " and ".join(places) or "none"


class TenantUse(msgspec.Struct, frozen=True):
    """One tenant's use, and its bounds in blocks."""

    name: str
    running: int = 0  # requests, like the next field
    waiting: int = 0
    charged: int = 0  # blocks charged to it; each block is charged to one tenant
    cached: int = 0
    budgeted: int = 0  # blocks that its pins may hold in the pool, those being filled included
    guaranteed: int = 0
    maximum: int | None = None
    # In an answer about the pool, not in a glimpse:
    blocks_held: int = 0  # by its sequences and pins, each once; a block of two tenants counts for both
    blocks_pinned: int = 0  # that its pins keep, in the pool or an offload tier


class TierView(msgspec.Struct, frozen=True):
    """The offload tiers: taken slots, and transfers since the start."""

    num_slots: int
    num_stored: int
    in_flight: int
    stored: int
    loaded: int
    failed: int
    evictions: int
    num_host_slots: int = 0  # in host memory; the other slots are on disk
    num_in_host: int = 0
    num_cold: int = 0  # names that sequences list as cold
    cold_max: int = 0  # the most slots for these, now
    cold_blocks_per_s: float = 0.0  # cold blocks that a token reads, measured; 0: unknown


class TargetView(msgspec.Struct, frozen=True):
    """A target for inter-token latency, and its results since it was set."""

    seconds: float
    predicted_s: float  # of the last decoding step; 0: unknown
    margin: float  # part of the target kept free, so that few gaps are longer
    gaps: int  # between decoding steps
    missed: int  # longer than the target, in a step with prompts or drafts
    missed_alone: int  # longer than the target, in a step that only decodes


class FirstTokenView(msgspec.Struct, frozen=True):
    """A target for time to first token, and its results."""

    seconds: float
    predicted_s: float  # of the last arrival
    counted: int  # requests that got a first token
    late: int  # of these, after the target
    shed: int  # refused


class TableView(msgspec.Struct, frozen=True):
    """One holder and its blocks, in order. Table numbers are unique."""

    number: int
    kind: HolderKind
    tenant: str
    label: str
    request_id: int | None  # of a sequence
    choice: int | None
    blocks: list[int]


class Totals(msgspec.Struct, frozen=True):
    """Numbers over all tenants. Only the operator sees them, because each tenant changes them."""

    counts: BlockCounts
    pin_budget: int
    num_sessions: int
    blocks_resident: int  # that have memory behind them
    blocks_wanted: int  # the requested size
    why_smaller: str  # the reason while the pool is smaller than that
    event_counts: dict[str, int]
    tenants: tuple[TenantUse, ...]
    tier: TierView | None
    ranks: tuple[RankState, ...] = ()  # devices that share the model; empty for one device
    target: TargetView | None = None
    first_tokens: FirstTokenView | None = None


class PoolView(msgspec.Struct, frozen=True):
    """The pool: blocks by kind of holder, pins, and recent events; of all tenants or of one."""

    now: float
    tenant: str | None  # None: all tenants
    block_size: int
    bytes_per_block: int  # 0: unknown
    num_blocks: int
    capacity: int  # blocks that it can grow to
    device: str  # holds the blocks and computes
    held_by_sequences: int  # table entries, so a shared block counts for each
    held_by_pins: int
    held_by_sessions: int
    waiting: int  # requests, like the next field
    running: int
    pins: tuple[PinView, ...]  # oldest first
    events: tuple[Event, ...]  # newest first
    totals: Totals | None  # None in a tenant's view


class Glimpse(msgspec.Struct, frozen=True):
    """All data of the live map, at one moment. Its lists have only the first of many entries."""

    pool: PoolView
    names: list[bytes | None]  # by block
    offloaded_from: int  # the first block of the window
    offloaded: bytes  # 1 for each block of it that is in an offload tier too
    tables: tuple[TableView, ...]
    requests: tuple[RequestView, ...]
    sessions: tuple[SessionBlocks, ...]  # newest first

    @property
    def next_offloaded_from(self) -> int:
        """The start of the next glimpse's window, which cycles through the pool."""
        after = self.offloaded_from + len(self.offloaded)
        return after if after < self.pool.num_blocks else 0


class MapView(msgspec.Struct, frozen=True):
    """One character for each block, and one number: the index in `owners` of its holder (-1: none; with
    several the first).

    "." free, "c" cached, "t" in transfer, "s" one sequence, "S" shared by sequences, "p" a pin (and perhaps
    sequences).
    """

    states: str
    owner: tuple[int, ...]
    owners: tuple[str, ...]  # "request 17, choice 0", "pin greeting"


def draw_map(glimpse: Glimpse) -> MapView:
    """As long as the pool. Of a tenant's glimpse its own blocks, then ".". O(blocks)."""
    states = ["." if name is None else "c" for name in glimpse.names[: glimpse.pool.num_blocks]]
    order = {kind: place for place, kind in enumerate(_LETTERS)}
    owner, owners = [-1] * len(states), dict[tuple[str, str], int]()
    for table in sorted(glimpse.tables, key=lambda table: order.get(table.kind, len(order))):
        number = owners.setdefault((table.tenant, table.label), len(owners))
        letter = _LETTERS.get(table.kind, "p")
        for block in table.blocks:
            before = states[block]
            if letter == "p" or before not in (letter, "S"):
                owner[block] = number
            states[block] = "S" if letter == "s" and before not in ".c" else letter
    return MapView("".join(states), tuple(owner), tuple(label for _, label in owners))
