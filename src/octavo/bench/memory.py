"""Wasted and shared KV memory, on the real scheduler and ledger, without a model.

    waste        a trace of requests under reservation policies, and in blocks: the paper's figures 2 and 13
    worked       one sequence in blocks, compared with a reservation of the maximum; reserved token by token
    scattered    free memory that a contiguous allocator cannot allocate
    bookkeeping  bytes of the ledger per byte of KV
    sharing      blocks that several answers to one prompt share
    oversubscribed   three times more demand than blocks, compared with an admission that never preempts

No time is measured: the same seed gives the same figures on every machine, except for bookkeeping, which
depends on the Python version. Source: Kwon et al. 2023, sections 2.2 to 3.1, 6.1 to 6.3.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from octavo.bench.lengths import Trace
from octavo.bench.oversubscribed import DEMAND, Oversubscribed, oversubscribed
from octavo.bench.workloads import Memory
from octavo.errors import ConfigError
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain, root_name
from octavo.memory.table import BlockTable
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.contiguous import FirstFit, rounded
from octavo.sim.driver import Pool, replay_paged, requests_of, serve
from octavo.sim.policies import ReplayedTrace, Window, replay_reserved, reservation_policies
from octavo.types import Request
from octavo.units import blocks_for

KV_BYTES_PER_TOKEN = 23_040  # SmolLM2-135M in bfloat16: 30 layers, K and V, 3 heads of 64, 2 bytes
BOOKKEEPING_TOKENS = 65_536  # a pool of 1.4 GiB of that model
BOOKKEEPING_SEQUENCE = 512  # tokens of each sequence that fills it
BOOKKEEPING_BLOCK_SIZES = (16, 32)
WORKED = ((600, 2048, 16), (900, 4096, 32))  # tokens, maximum, block size
PARALLEL_WIDTHS = (2, 4, 6)


def pool_of(memory: Memory) -> Pool:
    """Whole blocks. Raises ConfigError if the longest request would not fit, even in a power of two."""
    needed = rounded(memory.max_length) + memory.block_size - 1
    if memory.pool_tokens < needed:
        raise ConfigError(
            f"--pool-tokens is {memory.pool_tokens:,}; allowed: at least {needed:,}, "
            f"so that a request of --max-length {memory.max_length:,} fits under every policy"
        )
    return Pool(memory.pool_tokens // memory.block_size, memory.block_size, memory.step_ms / 1000)


@dataclass(frozen=True, slots=True)
class Waste:
    """The waste of one policy on one trace."""

    trace: str
    num_requests: int
    num_slots: int
    result: ReplayedTrace


@dataclass(frozen=True, slots=True)
class Worked:
    """One sequence in blocks, compared with a reservation of `maximum` slots."""

    tokens: int
    maximum: int
    block_size: int
    num_blocks: int
    slots_wasted: int
    share_wasted: float  # of the slots of its blocks
    share_wasted_reserved: float  # of the maximum


@dataclass(frozen=True, slots=True)
class Scattered:
    """A contiguous memory with enough free slots that cannot serve a request, and the same requests in
    blocks."""

    wanted: int  # slots of the next request
    num_free: int  # slots, in both memories
    largest_hole: int  # of the contiguous one
    contiguous_serves: bool
    block_size: int
    blocks_taken: int  # for the next request, from the pool
    runs_taken: int  # runs of adjacent blocks
    paged_serves: bool


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """The ledger of a full pool whose full blocks are all published."""

    block_size: int
    num_blocks: int
    kv_bytes: int
    ledger_bytes: int
    bytes_per_block: float
    share: float  # of the KV bytes


@dataclass(frozen=True, slots=True)
class Sharing:
    """The share of blocks that sharing saves: (without - with) / without, the mean over steps."""

    trace: str
    method: str
    width: int  # answers of each request
    num_requests: int
    saved: float
    steps: int
    preemptions: int


Row = Waste | Worked | Scattered | Bookkeeping | Sharing | Oversubscribed


def measure(
    traces: Sequence[Trace],
    shared_traces: Sequence[Trace],
    settings: Memory,
    show: Callable[[str], None] = lambda text: None,
    crowded_traces: Sequence[Trace] = (),
) -> Iterator[Row]:
    """All rows, each as soon as it is computed: waste on `traces`, sharing on `shared_traces`,
    oversubscription on `crowded_traces`.

    `show` receives progress messages. Raises ConfigError.
    """
    pool = pool_of(settings)
    yield from (worked(*case) for case in WORKED)
    yield scattered()
    for block_size in BOOKKEEPING_BLOCK_SIZES:
        show(f"bookkeeping, blocks of {block_size} ...")
        yield bookkeeping(block_size)
    for trace in traces:
        show(f"{trace.name}: {len(trace.jobs):,} requests under reservation policies ...")
        for policy in reservation_policies(settings.max_length):
            result = replay_reserved(trace.jobs, policy, pool.num_slots, pool.step_s)
            yield Waste(trace.name, len(trace.jobs), pool.num_slots, result)
        show(f"{trace.name}: the same in blocks ...")
        yield paged_waste(trace, settings)
    for trace in shared_traces:
        for n in PARALLEL_WIDTHS:
            show(f"{trace.name}: {len(trace.jobs):,} requests, {n} answers each ...")
            yield parallel_sampling(trace, n, settings)
    for trace in crowded_traces:
        show(f"{trace.name}: {len(trace.jobs):,} requests, {DEMAND:g} times more than fit ...")
        yield from oversubscribed(trace, pool, settings.seed)


def paged_waste(trace: Trace, settings: Memory) -> Waste:
    """The waste of the trace when the scheduler serves it from blocks."""
    result = replay_paged(trace.jobs, pool_of(settings), settings.seed)
    return Waste(trace.name, len(trace.jobs), pool_of(settings).num_slots, result)


def worked(tokens: int, maximum: int, block_size: int) -> Worked:
    """Store `tokens` positions one by one, and count the held blocks."""
    memory = Ledger(blocks_for(maximum, block_size), block_size)
    table = memory.open(Holder(HolderKind.SEQUENCE))
    for position in range(tokens):
        reservation = memory.reserve(table, position, position + 1)
        assert reservation is not None
    held = memory.counts().held
    slots = held * block_size
    return Worked(
        tokens=tokens,
        maximum=maximum,
        block_size=block_size,
        num_blocks=held,
        slots_wasted=slots - tokens,
        share_wasted=(slots - tokens) / slots,
        share_wasted_reserved=(maximum - tokens) / maximum,
    )


def scattered(block_size: int = 16, num_requests: int = 16, each: int = 512, wanted: int = 600) -> Scattered:
    """Fill both memories with equal requests, end every other one, and request a little more than one
    held."""
    num_slots = num_requests * each
    contiguous, memory = FirstFit(num_slots), Ledger(num_slots // block_size, block_size)
    pieces = [contiguous.take(each) for _ in range(num_requests)]
    tables = [_stored(memory, each) for _ in range(num_requests)]
    for piece, table in list(zip(pieces, tables, strict=True))[::2]:
        assert piece is not None
        contiguous.give(piece)
        memory.close(table)
    assert contiguous.num_free == memory.num_available * block_size
    num_free, largest_hole = contiguous.num_free, contiguous.largest_hole
    next_table = memory.open(Holder(HolderKind.SEQUENCE))
    served = memory.reserve(next_table, 0, wanted) is not None
    blocks = sorted(next_table.blocks)
    return Scattered(
        wanted=wanted,
        num_free=num_free,
        largest_hole=largest_hole,
        contiguous_serves=contiguous.take(wanted) is not None,
        block_size=block_size,
        blocks_taken=len(blocks),
        runs_taken=sum(block - 1 not in blocks for block in blocks),
        paged_serves=served,
    )


def _stored(memory: Ledger, tokens: int) -> BlockTable:
    """The table of a new sequence, with blocks for so many tokens."""
    table = memory.open(Holder(HolderKind.SEQUENCE))
    reservation = memory.reserve(table, 0, tokens)
    assert reservation is not None
    return table


def bookkeeping(block_size: int) -> Bookkeeping:
    """Fill a pool with sequences, publish every block, and measure the ledger with all its objects."""
    memory = full_memory(BOOKKEEPING_TOKENS // block_size, block_size, BOOKKEEPING_SEQUENCE)
    num_blocks = memory.counts().held
    assert num_blocks == memory.pool.num_blocks
    kv_bytes, ledger_bytes = num_blocks * block_size * KV_BYTES_PER_TOKEN, deep_size(memory)
    return Bookkeeping(
        block_size, num_blocks, kv_bytes, ledger_bytes, ledger_bytes / num_blocks, ledger_bytes / kv_bytes
    )


def full_memory(num_blocks: int, block_size: int, tokens: int) -> Ledger:
    """A ledger whose whole pool is held and published by sequences of `tokens` tokens, in full blocks."""
    memory = Ledger(num_blocks, block_size)
    for index in range(num_blocks * block_size // tokens):
        table, chain = _stored(memory, tokens), NameChain(root_name(b""), block_size)
        chain.extend(array("I", [index] * tokens))
        memory.publish(table, chain.names, tokens)
    return memory


def deep_size(root: object) -> int:
    """Bytes of an object and of everything it refers to, each counted once, except classes and functions."""
    seen: set[int] = set()
    todo, total = [root], 0
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        if isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            todo += thing
        else:
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            todo += [getattr(thing, name) for name in slots if hasattr(thing, name)]
            todo += [thing.__dict__] if hasattr(thing, "__dict__") else []
    return total


def parallel_sampling(trace: Trace, n: int, settings: Memory) -> Sharing:
    """The saving of `n` answers to each prompt."""
    return sharing(
        trace.name, "parallel sampling", n, requests_of(trace.jobs, settings.seed, n), pool_of(settings)
    )


def sharing(trace: str, method: str, width: int, requests: Sequence[Request], pool: Pool) -> Sharing:
    """Serve the requests, and count at every step the held blocks against the entries of all tables.

    The mean is over the same steps as for waste.
    """
    window: Window[float] = Window()

    def look(scheduler: Scheduler, to_come: int) -> None:
        listed = sum(len(table) for table in scheduler.ledger.holders)
        assert listed, "a step is planned, and no sequence holds a block"
        saved = (listed - scheduler.ledger.counts().held) / listed
        window.add(saved, len(scheduler.live.waiting), to_come)

    served = serve(requests, pool, look)
    saved = sum(window.steps) / len(window.steps)
    return Sharing(trace, method, width, len(requests), saved, served.steps, served.preemptions)
