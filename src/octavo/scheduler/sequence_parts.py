"""State that features and accounting add to a sequence. A sequence without the feature has none.

It is apart from the features because `Sequence` imports it, and the features import `Sequence`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import msgspec

from octavo.memory.names import NameChain
from octavo.speculation.speculator import DrafterState
from octavo.types import Request


@dataclass(slots=True, eq=False)
class DraftState:
    """A sequence's drafts, and those of them that are in flight (drafts.py)."""

    drafting: DrafterState
    num_guessed: int = 0  # planned positions that are drafts in flight
    blocks_guessed: int = 0  # blocks that only drafts in flight need
    is_awaited: bool = False  # plan nothing while a sample is in flight: drafts follow

    def clear_in_flight(self) -> None:
        """Forget the drafts in flight."""
        self.num_guessed = self.blocks_guessed = 0


@dataclass(slots=True, eq=False)
class GrammarState:
    """The effect of a grammar, or the end of thinking, on a sequence's output (committer.py)."""

    is_leading: bool = False  # the executor reports that a grammar constrains the output now
    num_forced: int = 0  # output tokens that it forced
    num_last: int = 1  # tokens at the end that would not be computed if the sequence ended there

    def note_sample(self, num_last: int, *, is_leading: bool) -> None:
        """Tokens came; the last `num_last` are not computed: one sampled, and the forced ones."""
        self.num_last = num_last
        self.num_forced += num_last - 1
        self.is_leading = self.is_leading or is_leading


@dataclass(slots=True, eq=False)
class BlockUse:
    """The number of blocks that a sequence held, over time."""

    peak: int = 0
    block_seconds: float = 0.0  # up to `_counted_at`
    _num_blocks: int = 0  # held since then
    _counted_at: float = 0.0

    def count(self, num_blocks: int, now: float) -> None:
        """Set the number of held blocks; add the time with the previous number."""
        self.block_seconds += self._num_blocks * (now - self._counted_at)
        self._counted_at = now
        self._num_blocks = num_blocks
        if num_blocks > self.peak:
            self.peak = num_blocks


class PromptSource(enum.StrEnum):
    """Where a part of a prompt was found, or why it was computed."""

    POOL = "pool"  # found in the pool
    HOST = "host"  # found in host memory, and loaded or read there
    DISK = "disk"  # found on disk, and loaded or read there
    TAIL = "tail"  # at the prompt's end, where no block is looked up: its last token is always computed
    NEVER_COMPUTED = "never_computed"  # no record of such a block
    EVICTED = "evicted"  # evicted for another block
    LOST = "lost"  # lost for another reason
    CHEAPER_TO_COMPUTE = "cheaper_to_compute"  # in an offload tier, but loading takes longer
    NOT_USED = "not_used"  # findable, but without room to load or hold it now
    NOT_LOOKED_UP = "not_looked_up"  # every position was needed, or prefix caching is off

    @property
    def is_hit(self) -> bool:
        """True if nothing was computed."""
        return self in (PromptSource.POOL, PromptSource.HOST, PromptSource.DISK)


class PromptPart(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a prompt with one source."""

    source: PromptSource
    num_tokens: int
    cause: str = ""  # a `memory.name_history.Cause`, if evicted or lost
    at: float | None = None  # when the last of their blocks left, on the engine's clock
    request_id: int | None = None  # the request that took the blocks: for operators only


class PromptSplit(msgspec.Struct, frozen=True):
    """A prompt by source, at the first admission of its request. The parts add up to it."""

    num_cached: int  # cached tokens
    parts: tuple[PromptPart, ...]

    @property
    def left_at(self) -> float | None:
        """When the last of the missed blocks left; None: none had."""
        return max((part.at for part in self.parts if part.at is not None), default=None)

    def for_tenant(self) -> PromptSplit:
        """This split without other requests, and without their number."""
        merged: dict[tuple[PromptSource, str], PromptPart] = {}
        for part in self.parts:
            known = merged.get((part.source, part.cause))
            num_tokens, at = part.num_tokens, part.at
            if known is not None:
                num_tokens += known.num_tokens
                at = max((time for time in (at, known.at) if time is not None), default=None)
            merged[part.source, part.cause] = PromptPart(part.source, num_tokens, part.cause, at)
        return PromptSplit(self.num_cached, tuple(merged.values()))

    def in_words(self) -> str:
        """One line for a person: "found: 96 in the pool; computed: 16 evicted, 5 at its end"."""
        found = [f"{part.num_tokens:,} {_WORDS[part.source]}" for part in self.parts if part.source.is_hit]
        computed = [_words_of(part) for part in self.parts if not part.source.is_hit]
        return f"found: {', '.join(found) or 'nothing'}; computed: {', '.join(computed)}"


_WORDS = {
    PromptSource.POOL: "in the pool",
    PromptSource.HOST: "in host memory",
    PromptSource.DISK: "on disk",
    PromptSource.TAIL: "at its end",
    PromptSource.NEVER_COMPUTED: "never seen before",
    PromptSource.EVICTED: "evicted",
    PromptSource.LOST: "lost",
    PromptSource.CHEAPER_TO_COMPUTE: "cheaper to compute than to load",
    PromptSource.NOT_USED: "without room to load them",
    PromptSource.NOT_LOOKED_UP: "not looked up",
}


def _words_of(part: PromptPart) -> str:
    why = f" ({part.cause})" if part.cause and part.cause != part.source.value else ""
    whom = "" if part.request_id is None else f" for request {part.request_id}"
    return f"{part.num_tokens:,} {_WORDS[part.source]}{why}{whom}"


class Attachment(Protocol):
    """A feature attached to a request when it is accepted; a plain request has none."""

    def on_last_token(self, request: Request) -> str:
        """The last token is here, and its blocks are still held. Returns why the request fails now, or ""."""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """The request has ended and its blocks are released. K and V of its first `num_computed` tokens,
        prompt and output, were computed; `chain` has their names. `is_well`: it ended by its last token, not
        by cancellation, failure, or timeout."""
