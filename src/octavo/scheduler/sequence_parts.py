"""What features and accounts add to a sequence. A sequence that does not use a feature has no part for it.

They stand apart from their features because `Sequence` names them, and the features name `Sequence`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from octavo.speculation.speculator import DrafterState


@dataclass(slots=True, eq=False)
class DraftState:
    """The guesses at a sequence's next tokens, and those of them that are in flight (drafts.py)."""

    drafting: DrafterState
    num_guessed: int = 0  # of the planned positions, those of drafts in flight
    blocks_guessed: int = 0  # of the blocks, those that nothing but drafts in flight needs
    is_awaited: bool = False  # nothing is planned while a sample is in flight: guesses will be

    def clear_in_flight(self) -> None:
        """No drafts are in flight any more."""
        self.num_guessed = self.blocks_guessed = 0


@dataclass(slots=True, eq=False)
class GrammarState:
    """What a grammar, or the end of thinking, does to a sequence's output (committing.py)."""

    is_leading: bool = False  # the executor has told that a grammar leads the output now
    num_forced: int = 0  # output tokens that it forced
    num_last: int = 1  # tokens at the end that are not computed when the sequence ends there

    def note_sample(self, num_last: int, *, is_leading: bool) -> None:
        """Tokens came, of which the last `num_last` are not computed: one, and those that it forced."""
        self.num_last = num_last
        self.num_forced += num_last - 1
        self.is_leading = self.is_leading or is_leading


@dataclass(slots=True, eq=False)
class BlockUse:
    """How many blocks a sequence held, and for how long."""

    peak: int = 0
    block_seconds: float = 0.0  # up to `_counted_at`
    _num_blocks: int = 0  # held since then
    _counted_at: float = 0.0

    def count(self, num_blocks: int, now: float) -> None:
        """It holds so many now: add what was held until now."""
        self.block_seconds += self._num_blocks * (now - self._counted_at)
        self._counted_at = now
        self._num_blocks = num_blocks
        if num_blocks > self.peak:
            self.peak = num_blocks


class Source(enum.StrEnum):
    """Where a part of a prompt was found, or why it was computed."""

    POOL = "pool"  # found in the pool
    HOST = "host"  # found in host memory, and loaded or read there
    DISK = "disk"  # found on disk, and loaded or read there
    TAIL = "tail"  # at the prompt's end, where no block is looked up: its last token is always computed
    NEVER_COMPUTED = "never_computed"  # nothing is known of such a block
    EVICTED = "evicted"  # it was there, and its place was needed
    LOST = "lost"  # it was there, and could not be kept
    CHEAPER_TO_COMPUTE = "cheaper_to_compute"  # it is in an offload tier, and loading takes longer
    NOT_USED = "not_used"  # it is there, without room to load or hold it now
    NOT_LOOKED_UP = "not_looked_up"  # every position was wanted, or prefix caching is off

    @property
    def is_hit(self) -> bool:
        """True where nothing was computed."""
        return self in (Source.POOL, Source.HOST, Source.DISK)


class PromptPart(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a prompt that have one source."""

    source: Source
    num_tokens: int
    cause: str = ""  # a `memory.name_history.Cause`, of what was evicted or lost
    at: float | None = None  # when the last block of them left, on the engine's clock
    request_id: int | None = None  # the request that took the blocks: for operators alone


class PromptSplit(msgspec.Struct, frozen=True):
    """A prompt by source, as it was at the first admission of its request. The parts add up to it."""

    num_cached: int  # tokens that were found
    parts: tuple[PromptPart, ...]

    @property
    def left_at(self) -> float | None:
        """When the last block that was missed had left; None: none had."""
        return max((part.at for part in self.parts if part.at is not None), default=None)

    def for_tenant(self) -> PromptSplit:
        """The same without other requests: nothing tells how many there were."""
        merged: dict[tuple[Source, str], PromptPart] = {}
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
    Source.POOL: "in the pool",
    Source.HOST: "in host memory",
    Source.DISK: "on disk",
    Source.TAIL: "at its end",
    Source.NEVER_COMPUTED: "never seen before",
    Source.EVICTED: "evicted",
    Source.LOST: "lost",
    Source.CHEAPER_TO_COMPUTE: "cheaper to compute than to load",
    Source.NOT_USED: "without room to load them",
    Source.NOT_LOOKED_UP: "not looked up",
}


def _words_of(part: PromptPart) -> str:
    why = f" ({part.cause})" if part.cause and part.cause != part.source.value else ""
    whom = "" if part.request_id is None else f" for request {part.request_id}"
    return f"{part.num_tokens:,} {_WORDS[part.source]}{why}{whom}"
