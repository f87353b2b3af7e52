"""The view model: what can be seen of the engine's memory and of who uses it, one frozen type for each thing.

    a request and its sequences, a pin, a session, a tenant, a block table, the tiers below, the pool

`Inspector` makes them on the engine's thread between two steps, so that all numbers of one answer belong
together; `Sight` decides what of it a tenant may know. Everything that is shown is a projection of them: the
server's JSON, the live map's frames, and `octavo top`.

Times are on the engine's clock, in seconds; `now` is when the thing was read. What costs more than a look has
a default, and is there only where its comment says so. They are structs because a glimpse makes thousands of
them while steps wait: one is made in a sixth of a frozen dataclass's time.
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


class BlockView(msgspec.Struct, frozen=True):
    """One entry of a block table: the block's number, and how many hold it."""

    block: int
    holders: int
    published: bool


class SequenceView(msgspec.Struct, frozen=True):
    """One choice of a request. `why` says what a waiting one waits for."""

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
    num_cold: int  # blocks before these, which lie below and are read there
    in_grammar: bool  # a grammar leads its output now
    forced_tokens: int  # of its output, those that the grammar forced
    # In answers about requests, not in a glimpse:
    blocks_peak: int = 0
    block_seconds: float = 0.0
    phases: Phases | None = None
    table: tuple[BlockView, ...] = ()  # in an answer about this request alone
    finish: str = ""  # of one that has ended: its reason, and what went wrong
    error: str = ""

    @property
    def is_running(self) -> bool:
        """It has a row."""
        return self.state is not State.WAITING


class RequestView(msgspec.Struct, frozen=True):
    """A request that has not ended, or in an answer about it alone one of the last that have."""

    now: float
    request_id: int
    tenant: str
    priority: int
    arrival: float
    deadline: float | None  # of its last token
    place: int | None  # in the queue, from 0; None unless it waits, and for a tenant
    session: str
    fills_pin: str
    follows: str  # what its output must follow: the client's name for it, and its kind
    let_go: tuple[str, ...]  # what of its schemas is not followed: keywords and their places
    sequences: tuple[SequenceView, ...]
    split: PromptSplit | None = None  # its prompt by source; None: it was not admitted yet
    ended: float | None = None  # when its last choice did

    @property
    def age(self) -> float:
        """Since it arrived."""
        return self.now - self.arrival

    @property
    def seconds_left(self) -> float | None:
        """Until its deadline."""
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
    num_held: int  # of its blocks, in the pool
    num_offloaded: int  # of its blocks, kept below for it

    @property
    def age(self) -> float:
        """Since it was opened."""
        return self.now - self.created

    @property
    def seconds_left(self) -> float:
        """Until it expires."""
        return self.expires - self.now


class SessionBlocks(msgspec.Struct, frozen=True):
    """A session's full blocks, and where they are: a block in the pool may be below as well."""

    session_id: str = ""
    tenant: str = ""
    state: SessionState = SessionState.IDLE
    num_blocks: int = 0
    held: int = 0  # in the pool, held for it: counted in the pins' budget
    kept: int = 0  # below: nothing but damage drops them
    expires: float = 0.0
    note: str = ""  # why nothing keeps its blocks
    bytes_per_block: int = 0  # 0: not known
    # In an answer about this session, not in a glimpse:
    in_pool: int = 0  # held for it, or cached
    below: int = 0
    stuck: bool = False  # some could not be stored
    num_suspended: int = 0  # the leading ones that a restart finds
    is_resumed: bool = False  # a client's resuming holds all of them

    @property
    def tier(self) -> str:
        """ "pool", "disk", "pool and disk" or "none"."""
        places = [place for place, count in (("pool", self.in_pool), ("disk", self.below)) if count]
        return " and ".join(places) or "none"


class TenantUse(msgspec.Struct, frozen=True):
    """What one tenant uses, beside its bounds in blocks."""

    name: str
    running: int = 0  # requests, also below
    waiting: int = 0
    charged: int = 0  # blocks that it holds, each counted for one tenant alone
    cached: int = 0
    budgeted: int = 0  # blocks that its pins may hold in the pool, filling ones included
    guaranteed: int = 0
    maximum: int | None = None
    # In an answer about the pool, not in a glimpse:
    blocks_held: int = 0  # by its sequences and pins, each once; one that two tenants hold counts for both
    blocks_pinned: int = 0  # that its pins keep, in the pool or below


class TierView(msgspec.Struct, frozen=True):
    """The tier below: slots taken, and what has moved since the start."""

    num_slots: int
    num_stored: int
    in_flight: int
    stored: int
    loaded: int
    failed: int
    evictions: int
    num_host_slots: int = 0  # of the slots, in host memory; the others are on disk
    num_in_host: int = 0
    num_cold: int = 0  # names that sequences list as cold
    cold_max: int = 0  # slots that these may take, now
    cold_blocks_per_s: float = 0.0  # of them that a token reads, as measured; 0: not measured


class TargetView(msgspec.Struct, frozen=True):
    """A target for the time between two tokens, and what came of it since it was set."""

    seconds: float
    predicted_s: float  # of the last step that decoded; 0: not known
    margin: float  # part of the target that is left, so that few gaps are longer
    gaps: int  # between steps that decode
    missed: int  # longer than the target, where a step carried prompts or guesses
    missed_alone: int  # likewise, where decoding alone took so long


class FirstTokenView(msgspec.Struct, frozen=True):
    """A target for the time to the first token, and what came of it."""

    seconds: float
    predicted_s: float  # of the last arrival
    counted: int  # requests that got a first token
    late: int  # of them, after the target
    shed: int  # refused


class TableView(msgspec.Struct, frozen=True):
    """One holder and its blocks, in order. No two tables have the same number."""

    number: int
    kind: HolderKind
    tenant: str
    label: str
    request_id: int | None  # of a sequence
    choice: int | None
    blocks: list[int]


class Totals(msgspec.Struct, frozen=True):
    """Numbers of all tenants together. They are the operator's alone, because each tenant moves them."""

    counts: BlockCounts
    pin_budget: int
    num_sessions: int
    blocks_resident: int  # that have memory behind them
    blocks_wanted: int  # the size that was asked for
    why_smaller: str  # in words, while the pool is smaller than that
    event_counts: dict[str, int]
    tenants: tuple[TenantUse, ...]
    tier: TierView | None
    ranks: tuple[RankState, ...] = ()  # devices that compute the model together; of one device none
    target: TargetView | None = None
    first_tokens: FirstTokenView | None = None


class PoolView(msgspec.Struct, frozen=True):
    """The pool: blocks by kind of holder, pins, and what happened lately. Of it all, or of what is one
    tenant's."""

    now: float
    tenant: str | None  # None: of it all
    block_size: int
    bytes_per_block: int  # 0: not known
    num_blocks: int
    capacity: int  # blocks that it can grow to
    device: str  # where they lie, and what computes
    held_by_sequences: int  # table entries, so a shared block counts for each
    held_by_pins: int
    held_by_sessions: int
    waiting: int  # requests, also below
    running: int
    pins: tuple[PinView, ...]  # oldest first
    events: tuple[Event, ...]  # newest first
    totals: Totals | None  # None: of one tenant's


class Glimpse(msgspec.Struct, frozen=True):
    """All that the live map shows, at one moment. Its lists have the first of many entries alone."""

    pool: PoolView
    names: list[bytes | None]  # by block
    below_from: int  # the first block of the window
    below: bytes  # 1 for each block of it that is below, too
    tables: tuple[TableView, ...]
    requests: tuple[RequestView, ...]
    sessions: tuple[SessionBlocks, ...]  # newest first

    @property
    def next_below_from(self) -> int:
        """Where the next glimpse's window begins: the pool is gone round."""
        after = self.below_from + len(self.below)
        return after if after < self.pool.num_blocks else 0


class MapView(msgspec.Struct, frozen=True):
    """One character for each block, and one number: which of `owners` holds it (-1: no holder, the first if
    several do).

    "." free, "c" cached, "t" in transfer, "s" one sequence, "S" shared by sequences, "p" a pin (and perhaps
    sequences).
    """

    states: str
    owner: tuple[int, ...]
    owners: tuple[str, ...]  # "request 17, choice 0", "pin greeting"
