"""Adapts the pool to the machine's memory. Time and available memory are arguments.

    idle        nothing was computed for `idle_return_s`: return the memory of unused blocks; cached
                blocks stay
    pressure    less is available than `reserve_bytes`: return the difference, in this order
                  1. the memory of unused blocks
                  2. cached blocks, longest cached first
                  3. held blocks: shrink the pool, down to the floor of `PoolResizer`: a smaller one could
                     not serve an accepted request
                Pressure that returns within `CALM_S` shrinks the pool to its held and cached blocks, so that
                it does not fill again; an eighth of the wanted size stays open to new requests.
    cleared     no pressure for `CALM_S`: the pool grows towards the wanted size, by half of what is
                available beyond the reserve and beyond what the pool may take already

So growth never causes new pressure: blocks take at most half of the spare memory until the next reading. Two
steps of growth, and growth after pressure, are `CALM_S` apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.pool_resizer import PoolResizer
from octavo.step.events import Event, EventKind
from octavo.units import format_bytes

CALM_S = 30.0
_GROWTH_PARTS = 16  # a step of growth is at least a sixteenth of the wanted size, or the whole difference
_STEP_PARTS = (
    32  # a step back is at least this part of the blocks with memory: slow pressure makes few events
)
_OPEN_PARTS = 8  # open to new requests; costs memory only when they come


@dataclass(frozen=True, slots=True)
class PressureConfig:
    """Bounds. 0 disables each."""

    bytes_per_block: int
    idle_return_s: float = 300.0
    reserve_bytes: int = 0  # to stay available to other processes


class PressurePolicy:
    """Acts on the pool, given the time and a reading of memory."""

    def __init__(self, config: PressureConfig) -> None:
        assert config.bytes_per_block >= 1
        self.config = config
        self._began_at: float | None = None
        self._pressed_at: float | None = None  # when less than the reserve was last available
        self._grown_at: float | None = None

    def act(self, resizer: PoolResizer, now: float, available: int | None, has_work: bool) -> None:
        """Adapt the pool now. `available`: bytes that the system could still give; None: unknown.

        The next plan returns the memory. O(1), or O(blocks) with something to return.
        """
        self._began_at = now if self._began_at is None else self._began_at
        if not has_work and self._is_idle(resizer, now):
            self._return_idle(resizer, now)
        if available is None or not self.config.reserve_bytes:
            return
        if available < self.config.reserve_bytes:
            self._step_back(resizer, now, available)
        elif resizer.context.ledger.pool.num_blocks < resizer.idle_memory.blocks_wanted:
            self._grow(resizer, now, available)

    def idle_at(self, resizer: PoolResizer) -> float | None:
        """When blocks will have been idle for long enough; None: never, or no unused block has memory."""
        since = resizer.idle_memory.worked_at if resizer.idle_memory.worked_at is not None else self._began_at
        pool = resizer.context.ledger.pool
        may_have_unused = pool.backing.count > pool.num_blocks - resizer.context.ledger.counts().free
        if not self.config.idle_return_s or since is None or not may_have_unused:
            return None
        return since + self.config.idle_return_s

    def _is_idle(self, resizer: PoolResizer, now: float) -> bool:
        at = self.idle_at(resizer)
        return at is not None and now >= at

    def _return_idle(self, resizer: PoolResizer, now: float) -> None:
        unused = resizer.idle_memory.count_unused()
        if unused == 0:
            return
        resizer.idle_memory.give_back()
        text = (
            f"{unused:,} unused blocks gave their {self._in_bytes(unused)} back to the system: nothing has "
            f"been computed for {self.config.idle_return_s:,.0f} s"
        )
        resizer.context.events.record(Event(now, EventKind.RETURNED, text, blocks=unused))

    def _step_back(self, resizer: PoolResizer, now: float, available: int) -> None:
        """Return the missing part of the reserve, as far as the floor allows."""
        elastic, pool = resizer.idle_memory, resizer.context.ledger.pool
        again = self._pressed_at is not None and now - self._pressed_at < CALM_S
        self._pressed_at = now
        missing = -(-(self.config.reserve_bytes - available) // self.config.bytes_per_block)
        missing = max(missing, pool.backing.count // _STEP_PARTS)
        # 1. and 2. Blocks without holder.
        unused, before = elastic.count_unused(), pool.num_blocks
        dropped = elastic.drop_cached(max(0, missing - unused))
        # 3. Held blocks, and the room to grow into.
        more = max(0, missing - unused - dropped)
        if more or again:
            target = self._smaller(resizer, pool.backing.count - unused - dropped, more)
            if target < before:
                resizer.resize(target, for_now=True)  # False: retried at the next reading
        given = elastic.count_unused()
        if given:
            elastic.give_back()
        if given or pool.num_blocks < before:
            self._record_shrink(resizer, available, given, before)

    def _record_shrink(self, resizer: PoolResizer, available: int, given: int, before: int) -> None:
        """Record that the pool had `before` blocks, and `given` of them lose their memory."""
        after = resizer.context.ledger.pool.num_blocks
        text = (
            f"{format_bytes(available)} of memory were available, and "
            f"{format_bytes(self.config.reserve_bytes)} are to stay so (setting memory_reserve): {given:,} "
            f"blocks gave {self._in_bytes(given)} back"
        )
        if after < before:
            text += f", and the pool went from {before:,} to {after:,} blocks"
            resizer.idle_memory.why_smaller = text
        resizer.context.events.record(
            Event(resizer.context.now, EventKind.MEMORY_PRESSURE, text, blocks=given)
        )

    def _smaller(self, resizer: PoolResizer, kept: int, more: int) -> int:
        """The size of a pool that keeps `kept` blocks and gives up `more` of them."""
        target = max(kept - more, resizer.floor())
        if target >= kept:  # a smaller pool would return no memory, and only keep new requests out
            target = max(target, resizer.idle_memory.blocks_wanted // _OPEN_PARTS)
        return target

    def _grow(self, resizer: PoolResizer, now: float, available: int) -> None:
        """A step towards the wanted size, if memory was available for long enough."""
        if any(at is not None and now - at < CALM_S for at in (self._pressed_at, self._grown_at)):
            return
        elastic, pool = resizer.idle_memory, resizer.context.ledger.pool
        promised = max(0, pool.num_blocks - pool.backing.count) * self.config.bytes_per_block
        spare = available - self.config.reserve_bytes - promised
        before, wanted = pool.num_blocks, elastic.blocks_wanted
        growth = min(wanted - before, spare // 2 // self.config.bytes_per_block)
        if growth < min(wanted - before, max(1, wanted // _GROWTH_PARTS)):
            return
        why = elastic.why_smaller
        resizer.resize(before + growth, for_now=True)
        self._grown_at = now
        elastic.why_smaller = why if pool.num_blocks < wanted else ""
        text = (
            f"{format_bytes(available)} of memory are available again: the pool grew from {before:,} to "
            f"{pool.num_blocks:,} of {wanted:,} blocks"
        )
        resizer.context.events.record(Event(now, EventKind.MEMORY_PRESSURE_CLEARED, text, blocks=growth))

    def _in_bytes(self, blocks: int) -> str:
        return format_bytes(blocks * self.config.bytes_per_block)
