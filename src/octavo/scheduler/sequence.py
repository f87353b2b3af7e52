"""A sequence: one stream of tokens of a request, and the counters that each step moves one towards another.

    0 <= num_computed <= num_planned <= num_tokens + pending        num_planned <= len(table) * block_size

    num_tokens    tokens the host knows (prompt + output)      num_computed  positions whose step was
    committed num_planned   positions already handed to the executor     pending       samples promised by
    plans in flight

Only the scheduler changes one.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

from octavo.memory.names import NameChain
from octavo.memory.table import BlockTable
from octavo.types import Request, Usage


class State(enum.Enum):
    """Where a sequence is. There is no "prefilling" or "decoding"."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request. `forks_left` > 0 on the first choice of n until the step that samples is
    planned."""

    seq_id: int
    request: Request
    choice: int
    tokens: array[int]  # typecode 'I'; prompt, then output
    chain: NameChain
    table: BlockTable | None = None  # None unless running
    state: State = State.WAITING
    row: int = -1
    num_computed: int = 0
    num_planned: int = 0
    pending: int = 0
    forks_left: int = 0
    epoch: int = (
        0  # grows when the blocks are dropped: results of an older epoch move no counter and publish nothing
    )
    num_cached: int = 0
    preemptions: int = 0
    lent_priority: int | None = (
        None  # the highest priority of the sequences that wait for our blocks; set every step
    )
    bypassed: int = 0  # how many were admitted past us since we stand at the head of the queue
    prompt_logprobs_done: int = 0  # prompt positions whose logits were already asked for
    order: tuple[int, int] = field(init=False)  # arrival, choice: ties of priority go to the earlier

    def __post_init__(self) -> None:
        self.order = (self.request.request_id, self.choice)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def known(self) -> int:
        """Tokens that exist or are promised."""
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Positions that can be planned now: 1 when decoding, more when blocks are (again) to be filled."""
        return self.known - self.num_planned

    @property
    def num_samples_left(self) -> int:
        """How many tokens may still be sampled, promised ones not counted."""
        return self.num_prompt + self.request.max_tokens - self.known

    @property
    def priority(self) -> int:
        """Its own, or that of a follower who waits for its blocks."""
        own = self.request.priority
        return own if self.lent_priority is None else max(own, self.lent_priority)

    @property
    def rank(self) -> tuple[int, tuple[int, int]]:
        """Sort key: whoever comes first runs first, and is preempted last."""
        return (-self.priority, self.order)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while prompt positions still owe their logprobs; such a sequence takes no prefix hit."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.prompt_logprobs_done < self.num_prompt - 1

    def usage(self) -> Usage:
        """What it cost so far."""
        return Usage(self.num_prompt, len(self.tokens) - self.num_prompt, self.num_cached, self.preemptions)
