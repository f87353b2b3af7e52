"""The reason of each part of a prompt for being a hit or a miss, at the first admission of its request.

    names of the prompt   [ 0 | 1 | 2 | 3 | 4 | 5 ] tail
                            pool    disk  evicted   the last block's tokens: never looked up, always computed
                                          `num_hits` is 4

A miss has the reason of its own block: how its name left the last tier, or that it was never computed. A
block that is findable after the first miss is useless, so it counts for the reason of the block before it.
Every token counts once: the parts add up to the prompt. O(blocks of the prompt), once for a request.
"""

from __future__ import annotations

from octavo.memory.changes import Place
from octavo.memory.ledger import Ledger
from octavo.memory.name_history import Departure
from octavo.memory.names import hits_max
from octavo.retention.transfers import Transfers
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.sequence_parts import PromptPart, PromptSource, PromptSplit
from octavo.step.context import Context

REQUESTS_MAX = 8  # evicting requests that one prompt's split lists separately

_SOURCE_OF = {Place.POOL: PromptSource.POOL, Place.HOST: PromptSource.HOST, Place.DISK: PromptSource.DISK}


class _Parts:
    """Counts tokens by reason, in order of first appearance."""

    def __init__(self) -> None:
        self._parts: dict[tuple[PromptSource, str, int | None], tuple[int, float | None]] = {}
        self._requests: set[int] = set()

    def add(self, source: PromptSource, num_tokens: int, departure: Departure | None = None) -> None:
        """Add tokens of one source."""
        cause, request_id, at = "", None, None
        if departure is not None:
            cause, request_id, at = departure.cause.value, departure.request_id, departure.at
        if request_id is not None and request_id not in self._requests:
            if len(self._requests) == REQUESTS_MAX:
                request_id = None
            else:
                self._requests.add(request_id)
        before, last = self._parts.get((source, cause, request_id), (0, None))
        at = last if at is None or (last is not None and last > at) else at
        self._parts[source, cause, request_id] = (before + num_tokens, at)

    def split(self, num_cached: int) -> PromptSplit:
        """The split of all added tokens."""
        parts = (
            PromptPart(source, num_tokens, cause, at, request_id)
            for (source, cause, request_id), (num_tokens, at) in self._parts.items()
            if num_tokens
        )
        return PromptSplit(num_cached, tuple(parts))


def split_prompt(sequence: Sequence, num_hits: int, context: Context, transfers: Transfers) -> PromptSplit:
    """The parts of the prompt of a sequence about to be admitted with so many hits, of which `queue.num_cold`
    are cold. Counts the ages of the blocks found."""
    ledger, parts = context.ledger, _Parts()
    size = ledger.block_size
    limit = hits_max(sequence.num_prompt, size)
    names = sequence.chain.names[:limit]
    _add_hits(parts, sequence, names[:num_hits], ledger, transfers)
    if sequence.computes_all or not context.config.prefix_caching:
        parts.add(PromptSource.NOT_LOOKED_UP, limit * size)
    else:
        _add_misses(parts, names[num_hits:], ledger, transfers)
    parts.add(PromptSource.TAIL, sequence.num_prompt - limit * size)
    return parts.split(num_hits * size)


def _add_hits(
    parts: _Parts, sequence: Sequence, names: list[bytes], ledger: Ledger, transfers: Transfers
) -> None:
    pool, history, tier, size = ledger.pool, ledger.history, ledger.tier, ledger.block_size
    loaded, num_cold = transfers.loaded_for(sequence.seq_id), sequence.queue.num_cold
    since: dict[Place, list[float | None]] = {}
    for name in names[:num_cold]:
        assert tier is not None
        since.setdefault(tier.place_of(name), []).append(tier.since(name))
    for name in names[num_cold:] if loaded else ():
        place, started = loaded.get(name) or (Place.POOL, pool.named_at[pool.by_name[name]])
        since.setdefault(place, []).append(started)
    if not loaded and len(names) > num_cold:  # the common case
        since[Place.POOL] = [pool.named_at[pool.by_name[name]] for name in names[num_cold:]]
    for place, times in since.items():
        history.note_hits(place, times)
        parts.add(_SOURCE_OF[place], len(times) * size)


def _add_misses(parts: _Parts, names: list[bytes], ledger: Ledger, transfers: Transfers) -> None:
    by_name, tier, history = ledger.pool.by_name, ledger.tier, ledger.history
    reason: PromptSource | None = None  # of the block before
    departure: Departure | None = None
    num_like_it = 0  # blocks with that reason
    for name in names:
        is_offloaded = tier is not None and name in tier
        before = reason, departure
        if not is_offloaded and name not in by_name:
            departure = history.find(name)
            if departure is None:
                reason = PromptSource.NEVER_COMPUTED
            else:
                reason = PromptSource.LOST if departure.cause.is_loss else PromptSource.EVICTED
        elif reason is None:
            is_slower = is_offloaded and not transfers.is_worth_it()
            reason = PromptSource.CHEAPER_TO_COMPUTE if is_slower else PromptSource.NOT_USED
        if before[0] is not None and (reason is not before[0] or departure is not before[1]):
            parts.add(before[0], num_like_it * ledger.block_size, before[1])
            num_like_it = 0
        num_like_it += 1
    if reason is not None:
        parts.add(reason, num_like_it * ledger.block_size, departure)
