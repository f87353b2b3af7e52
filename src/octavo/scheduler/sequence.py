"""A sequence: one stream of tokens of a request, and the counters that steps advance towards each other.

    0 <= num_computed <= num_planned <= num_tokens + pending        num_planned <= len(table) * block_size

    num_tokens    tokens the host knows (prompt + output)    num_computed  positions whose step was committed
    num_planned   positions handed to the executor           pending       samples promised by plans in flight

While drafts are in flight, `num_planned` is ahead by `num_guessed`.

Only the scheduler changes a sequence.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field, replace

import msgspec

from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain
from octavo.memory.table import BlockTable
from octavo.params import Pooling
from octavo.scheduler.beams import BeamGroup
from octavo.scheduler.sequence_parts import Attachment, BlockUse, DraftState, GrammarState, PromptSplit
from octavo.scheduler.waits import LOADING, QUEUED, QueueState
from octavo.speculation.speculator import DrafterState
from octavo.types import AdmittedRow, FinishReason, Phases, Request, Usage
from octavo.units import blocks_for


class State(enum.StrEnum):
    """The state of a sequence. There is no "prefilling" or "decoding"."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request, or one beam. `forks_left` > 0 on the first choice of n until the step that
    samples is planned; on the leader of a beam group: the rows that the group may still need."""

    seq_id: int
    request: Request
    choice: int
    tokens: array[int]  # typecode 'I'; prompt, then output
    chain: NameChain
    holder: Holder = field(init=False)
    table: BlockTable | None = None  # None unless running
    state: State = State.WAITING
    row: int = -1
    num_computed: int = 0
    num_planned: int = 0
    pending: int = 0
    forks_left: int = 0
    split: PromptSplit | None = None  # of its prompt, at the first admission of its request
    num_served: int = 0  # positions charged to its tenant, or cached
    preemptions: int = 0  # its blocks were dropped at each
    num_lost: int = 0  # positions computed before its preemption, until it has recomputed them
    prompt_logprobs_done: int = 0  # prompt positions whose logits were already requested
    queue: QueueState = field(default_factory=lambda: QueueState(QUEUED))
    block_use: BlockUse = field(default_factory=BlockUse)
    drafts: DraftState | None = None  # None: decodes without drafts
    grammar: GrammarState | None = None  # None: no grammar has constrained or forced its output
    unwanted: set[int] = field(
        default_factory=set
    )  # choices cancelled before they existed; one set for all choices
    group: BeamGroup[Sequence] | None = None  # its beam search; `choice` then only labels beams
    attached: tuple[Attachment, ...] = ()  # features of its request
    phases: Phases = field(init=False)
    num_prompt: int = field(init=False)  # tokens of the prompt
    max_length: int = field(init=False)  # the most tokens of prompt and output
    # Sort keys: the smallest runs first, and is preempted last: by priority, then arrival, then choice. Beams
    # # of a group rank equally, so none is ever the victim of another.
    own_rank: tuple[int, int, int] = field(init=False)
    rank: tuple[int, int, int] = field(init=False)  # with the priority that a follower lends for one step

    def __post_init__(self) -> None:
        self.phases = Phases(self.request.arrival)
        self.num_prompt = len(self.request.prompt)
        self.max_length = self.num_prompt + self.request.max_tokens
        tenant, group = self.request.tenant, self.request.request_id
        self.holder = Holder(HolderKind.SEQUENCE, tenant, group=group, request_id=group)
        self.become_choice(self.choice)
        place = self.choice if self.group is None else 0
        self.own_rank = self.rank = (-self.request.priority, self.request.request_id, place)

    def as_holder(self) -> Holder:
        """The sequence's record, with the values that change from step to step."""
        holder = self.holder
        holder.rank, holder.num_planned = self.rank, self.num_planned - self.num_guessed
        holder.is_findable = not self.computes_all
        return holder

    def become_choice(self, choice: int) -> None:
        """Set its choice and label."""
        self.choice = choice
        self.holder.label = f"request {self.request.request_id}, choice {choice}"

    @property
    def is_long(self) -> bool:
        """True if the pool may not hold all its blocks: its first ones may be cold."""
        return self.request.hot_blocks > 0

    @property
    def has_cold(self) -> bool:
        """True while it runs with cold blocks."""
        return self.table is not None and bool(self.table.cold)

    def hot_max(self, num_blocks: int, has_maxima: bool) -> int:
        """For a long sequence: how many blocks it may hold in a pool of `num_blocks`. With maxima, others of
        its tenant may need the blocks not promised to it."""
        return self.request.hot_blocks if has_maxima else max(self.request.hot_blocks, num_blocks * 3 // 4)

    @property
    def was_admitted(self) -> bool:
        """True since its first admission."""
        return self.phases.admitted is not None

    @property
    def blocks_lookahead(self) -> bool:
        """True if nothing may be planned while a sample of it is in flight: a beam's next token is not its
        own sample, a grammar may force tokens after it, and drafts depend on it."""
        if self.group is not None or (self.drafts is not None and self.drafts.is_awaited):
            return True
        if self.in_grammar:
            return True
        params = self.request.params
        # After thinking or a trigger, the executor reports the start of a grammar.
        return params.grammar is not None and not params.grammar.triggers and params.thinking is None

    @property
    def drafting(self) -> DrafterState | None:
        """Drafting state of its next tokens; None: it decodes without drafts."""
        return None if self.drafts is None else self.drafts.drafting

    @property
    def num_guessed(self) -> int:
        """Planned positions that are drafts in flight."""
        return 0 if self.drafts is None else self.drafts.num_guessed

    @property
    def in_grammar(self) -> bool:
        """True while the executor reports that a grammar constrains its output."""
        return self.grammar is not None and self.grammar.is_leading

    @property
    def num_forced(self) -> int:
        """Output tokens that a grammar, or the end of thinking, forced."""
        return 0 if self.grammar is None else self.grammar.num_forced

    @property
    def num_last(self) -> int:
        """Tokens at its end that would not be computed if it ended there."""
        return 1 if self.grammar is None else self.grammar.num_last

    @property
    def known(self) -> int:
        """Tokens that exist or are in flight."""
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Positions that can be planned now: 1 when decoding, more when blocks must be (re)computed."""
        return self.known - self.num_planned

    @property
    def num_prompt_unserved(self) -> int:
        """Prompt positions not charged to its tenant."""
        return max(0, self.num_prompt - self.num_served)

    @property
    def choices_left(self) -> list[int]:
        """Choices that end when this sequence ends."""
        if self.group is not None:
            return self.group.choices
        return [self.choice, *range(1, 1 + self.forks_left)]

    def blocks_known(self, block_size: int) -> int:
        """Blocks that its known tokens fill, and those of beams that wait for it. O(1) without beams."""
        tails = (
            0 if self.group is None or self.group.leader is not self else self.group.tail_blocks(block_size)
        )
        return blocks_for(self.known, block_size) + tails

    def blocks_promised(self, block_size: int) -> int:
        """The part of `blocks_known` that it still needs from the pool."""
        missing = self.blocks_known(block_size) - (0 if self.table is None else len(self.table))
        if self.request.hot_blocks:
            missing = min(
                missing, self.request.hot_blocks - (0 if self.table is None else len(self.table.blocks))
            )
        return max(0, missing)

    @property
    def priority(self) -> int:
        """The request's priority, or that of a follower that waits for its blocks."""
        return -self.rank[0]

    def borrow(self, priority: int) -> None:
        """A follower waits for its blocks: take the follower's priority, if it is higher."""
        self.rank = (min(self.rank[0], -priority), *self.own_rank[1:])

    def give_back(self) -> None:
        """Return to its own priority."""
        self.rank = self.own_rank

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while logprobs of prompt positions are missing."""
        requested = self.request.params.prompt_logprobs is not None
        return requested and self.prompt_logprobs_done < self.num_prompt - 1

    @property
    def needs_mean(self) -> bool:
        """True if the hidden states of all positions are needed, contiguous and in order."""
        return self.request.params.pooling is Pooling.MEAN

    @property
    def computes_all(self) -> bool:
        """True if every position must be computed in this row: it takes no prefix hit."""
        return self.needs_prompt_logprobs or self.needs_mean

    @property
    def num_cached(self) -> int:
        """Prompt tokens that were cached at its first admission."""
        return 0 if self.split is None else self.split.num_cached

    @property
    def num_output(self) -> int:
        """Tokens of the output; a pooling prompt has none."""
        return 0 if self.request.params.pooling is not None else len(self.tokens) - self.num_prompt

    def child(self, seq_id: int, choice: int, row: int) -> Sequence:
        """Another choice, forked in the plan that samples: the same tokens, one sample pending, no blocks
        yet."""
        twin = Sequence(
            seq_id=seq_id,
            request=self.request,
            choice=choice,
            tokens=array("I", self.tokens),
            chain=self.chain.copy(),
            state=State.RUNNING,
            row=row,
            num_computed=self.num_computed,
            num_planned=self.num_planned,
            pending=1,
        )
        twin.split = self.split
        twin.num_served = self.num_served
        twin.prompt_logprobs_done = self.num_prompt
        twin.unwanted = self.unwanted
        twin.phases = self.phases
        return twin

    def admitted_row(self) -> AdmittedRow:
        """The executor's description of it, for a new row."""
        request = self.request
        return AdmittedRow(
            self.row,
            self.seq_id,
            tuple(self.tokens),
            self.num_prompt,
            self.max_length,
            request.params,
            request.seed,
            self.choice,
        )

    def finish_reason(self, stop_ids: frozenset[int]) -> tuple[FinishReason | None, int | None]:
        """Why its newest token ends it, and that token if it is a stop token; (None, None): it continues."""
        params, token = self.request.params, self.tokens[-1]
        num_output = len(self.tokens) - self.num_prompt
        if num_output > params.min_tokens or params.min_tokens == 0:
            is_eos = token in stop_ids and not params.ignore_eos
            if is_eos or token in params.stop_token_ids:
                return FinishReason.STOP, token
        if num_output >= self.request.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def await_blocks(self, now: float) -> None:
        """Wait for blocks from the offload tier."""
        self.queue.wait, phases = LOADING, self.phases
        if phases.admitted is None and (phases.loading_begun is None or phases.loaded is not None):
            started = now if phases.loading_begun is None else phases.loading_begun
            self.phases = replace(phases, loading_begun=started, loaded=None)

    def end_loading(self, now: float) -> None:
        """End the wait for blocks, which have come or will not. Does nothing if none were awaited."""
        if self.phases.loading_begun is not None and self.phases.loaded is None:
            self.phases = replace(self.phases, loaded=now)

    def note_admission(self, now: float) -> None:
        """Record the admission. Only the first one counts."""
        if self.phases.admitted is None:
            self.end_loading(now)
            self.phases = replace(self.phases, admitted=now)

    def note_token(self, now: float) -> None:
        """Record an output token. Only the first one counts."""
        if self.phases.first_token is None:
            self.phases = replace(self.phases, first_token=now)

    def count_blocks(self, now: float) -> None:
        """Account for its blocks: its table changed, or its usage is read."""
        num_blocks = 0 if self.table is None else len(self.table.blocks)
        if self.drafts is not None and num_blocks:
            num_blocks -= self.drafts.blocks_guessed
        self.block_use.count(num_blocks, now)

    def describe(self, ledger: Ledger, start: int, stop: int) -> None:
        """Record the content of its blocks [start, stop), where changes are recorded. O(stop - start)."""
        request = self.request
        ledger.describe(self.chain, self.tokens, request.tenant, request.cache_salt, start, stop)

    def usage(self, now: float) -> Usage:
        """The cost of the sequence so far."""
        self.count_blocks(now)
        drafting, use, split = self.drafting, self.block_use, self.split
        return Usage(
            self.num_prompt,
            self.num_output,
            0 if split is None else split.num_cached,
            self.preemptions,
            use.peak,
            use.block_seconds,
            0 if drafting is None else drafting.num_drafted,
            0 if drafting is None else drafting.num_accepted,
            self.phases,
        )


class InFlightChunk(msgspec.Struct):
    """One sequence's chunk in a plan that is not committed yet."""

    sequence: Sequence
    num_preemptions: int  # of the sequence, at planning
    stop: int  # what num_computed becomes
    num_samples: int
    drafts: tuple[int, ...] = ()  # guesses at the last positions before `stop`
    is_void: bool = False  # a step that it depends on failed: discarded

    @property
    def is_current(self) -> bool:
        """False if its sequence was preempted since: its blocks were dropped, and it publishes nothing."""
        return self.num_preemptions == self.sequence.preemptions
