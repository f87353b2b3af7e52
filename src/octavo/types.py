"""The nouns: every value that crosses from one package to another.

All are frozen. A plan is a *diff* from the last one, so that a step whose sequences need no new block costs
almost nothing per sequence.

A sequence has counters, and each step moves one towards another:

    0 <= num_computed <= num_planned <= num_tokens + pending        num_planned <= len(table) * block_size

There is no prefill and no decode in these types: a chunk is `length >= 1` positions of one sequence.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts


class Notice(str):
    """A line of progress that stays on the screen; other lines may replace each other."""

    __slots__ = ()


class FinishReason(enum.StrEnum):
    """Why a sequence ended; the first two are OpenAI's names."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    TIMEOUT = "timeout"  # a deadline of the request passed; the output so far is valid
    CANCELLED = "cancelled"  # the client disconnected or cancelled it
    DEAD_END = "dead_end"  # the client's own limits, or its grammar, allow no token; `Update.error` says why
    ERROR = "error"  # this request failed, alone; `Update.error` says why


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call by the model of a function, in its output or in its prompt; `arguments` is JSON."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat, already reduced to text."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str = ""  # of a tool: the id of the call
    reasoning: str = ""  # of an assistant: its thinking


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a chat becomes a prompt. `continue_final_message` ends it inside the last message, which the model
    continues; `template_kwargs` (JSON values) are additional arguments of the template. Without
    `allow_control_tokens` no text of a client becomes a control token."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    allow_control_tokens: bool = False
    tools: tuple[Mapping[str, object], ...] = ()  # in OpenAI's JSON


DEFAULT_CHAT = ChatOptions()


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the parameters of its answer. The server's routes make one; the engine's client numbers it
    and draws a missing seed, the scheduler checks it and resolves `max_tokens`. Higher `priority` runs
    earlier."""

    request_id: int = 0  # 0: not submitted yet
    prompt: tuple[int, ...] = ()
    params: SamplerParams = field(default_factory=SamplerParams)
    max_tokens: int = 0  # 0: `params.max_tokens`, or as many as fit into context and pool
    seed: int = 0  # the client's, or drawn once at submission
    n: int = 1
    tenant: str = ""
    priority: int = 0
    # 0: all its blocks are in the pool. Otherwise it may need more than there are: so many are reserved for
    # it in the pool, and the blocks before them may be in an offload tier while it runs.
    hot_blocks: int = 0
    arrival: float = 0.0  # on the engine's clock, in seconds
    timeouts: Timeouts = NO_TIMEOUTS
    fills_pin: str = ""  # the name of the pin that takes over this request's full blocks when it ends
    session: str = ""  # id of the session whose turn this is
    session_ttl: float = 0.0  # seconds that it lives after its last turn
    cache_salt: str = ""  # prefix blocks are shared only with the tenant's requests of the same salt


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """A token, its logprob under the raw logits, and (if requested) the likeliest (token, logprob) pairs,
    likeliest first; a row of a beam search returns its candidates this way."""

    token: int
    logprob: float = math.nan
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedRow:
    """A sequence enters a row; `tokens` are all known ones (prompt, then output if it was preempted)."""

    row: int
    seq_id: int
    tokens: tuple[int, ...]
    num_prompt: int
    max_length: int  # tokens the row must hold at most: prompt + max_tokens
    params: SamplerParams
    seed: int
    choice: int


@dataclass(frozen=True, slots=True)
class Fork:
    """`child_row` becomes a copy of `parent_row` (tokens, table, history) just before this step samples.

    The child draws its own token, as choice `choice`, from the logits the parent's chunk makes in this step.
    """

    parent_row: int
    child_row: int
    child_seq_id: int
    choice: int


# A table's entry from here on names a slot of an offload tier, counted from COLD_FIRST: attention reads it
# there.
COLD_FIRST = 1 << 30


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Entry `index` of the row's block table becomes `block`, or COLD_FIRST + a slot."""

    row: int
    index: int
    block: int


@dataclass(frozen=True, slots=True)
class TokenWrite:
    """Position `index` of the row becomes `token`, and is its last. Only for rows of a beam search: the group
    decides which candidate continues there."""

    row: int
    index: int
    token: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copies all bytes of block `source` to block `target`; copies run in order, before the step's writes."""

    source: int
    target: int


class Move(enum.Enum):
    """What a transfer does."""

    STORE = "store"  # block to slot
    LOAD = "load"  # slot to block
    MOVE = "move"  # slot to slot, from one offload tier to another; there is no block
    VERIFY = "verify"  # the slot's content is read and checked, and stays there; there is no block
    FORGET = "forget"  # the slot is emptied, also for a restart; there is no block


@dataclass(frozen=True, slots=True)
class Transfer:
    """All bytes of a block go to a slot of an offload tier, come from it, or are checked there. It begins
    with the plan, and ends asynchronously with a `TransferDone` (except FORGET); until then a holder keeps
    the block. Transfers of one slot run in the order of plans, and within a plan in its order."""

    transfer_id: int
    block: int
    slot: int
    name: bytes
    move: Move
    source: int = -1  # the source slot of a MOVE


@dataclass(frozen=True, slots=True)
class TransferDone:
    """How a transfer ended. Not ok: no offload tier has valid bytes of that name, and a loaded block holds
    garbage."""

    transfer_id: int
    ok: bool
    seconds: float = 0.0
    lost: tuple[bytes, ...] = ()  # names that the offload store lost: their bytes may not be on the medium


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of a step: positions [start, start + length) are computed and their K and V
    stored.

    The last `num_samples` of them are sampled (0 inside a prompt, 1 at its end and in decoding, one more for
    each draft). Logits exist for positions [logits_from, start + length). `drafts` are guesses at the tokens
    of its last positions, right up to the first that differs from the sample of the position before it.
    """

    seq_id: int
    row: int
    start: int
    length: int
    num_samples: int
    logits_from: int
    drafts: tuple[int, ...] = ()
    # Of a chunk whose sequence has cold blocks, only the layers of one part are computed: one part a plan, in
    # order, and the last one ends the chunk. No other chunk of the plan has cold blocks.
    part: int = 0
    num_parts: int = 0  # 0: it has no cold blocks

    def __post_init__(self) -> None:
        assert self.length >= 1, "a chunk must compute a position to sample after"
        if self.num_parts:
            assert 0 <= self.part < self.num_parts
            assert self.is_last_part or self.num_samples == 0
        assert 0 <= self.num_samples <= self.length
        assert self.start <= self.logits_from <= self.stop - self.num_samples
        assert not self.drafts or self.num_samples == 1 + len(self.drafts)

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + self.length

    @property
    def is_cold(self) -> bool:
        """True if its sequence has cold blocks."""
        return self.num_parts > 0

    @property
    def is_last_part(self) -> bool:
        """True for a whole chunk, too."""
        return self.part + 1 >= self.num_parts

    @property
    def continues(self) -> bool:
        """True in decoding: one known position, and the drafts after it."""
        return self.length == 1 + len(self.drafts)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, as a diff against the executor's rows. The executor applies the fields in this order:

    retired, admitted, token_writes, table_writes, copies, discarded, transfers begin, then the forward pass
    over chunks, then forks, then sampling. A plan may have no chunks.
    """

    step_id: int
    retired: tuple[int, ...]  # rows
    admitted: tuple[AdmittedRow, ...]
    table_writes: tuple[TableWrite, ...]
    copies: tuple[BlockCopy, ...]
    chunks: tuple[Chunk, ...]
    forks: tuple[Fork, ...]
    transfers: tuple[Transfer, ...] = ()
    discarded: tuple[tuple[int, int], ...] = ()  # blocks [first, last) whose memory is freed
    token_writes: tuple[TokenWrite, ...] = ()
    has_cold: bool = False  # one of its chunks is of a sequence with cold blocks

    @property
    def num_tokens(self) -> int:
        """Positions that this step computes."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def ended(self) -> tuple[Chunk, ...]:
        """The chunks whose last layer this step computes: those that have hidden rows."""
        if not self.has_cold:
            return self.chunks
        return tuple(chunk for chunk in self.chunks if chunk.is_last_part)


class StepWay(enum.Enum):
    """How a step's kernels were launched on a device."""

    REPLAYED = "replayed"  # as one graph
    LAUNCHED = "launched"  # one by one
    WARMING = "warming"  # the same, until steps of its size are captured: later ones are faster
    FIRST = "first"  # the first of its size, or a capture: its time is not typical


class RankState(msgspec.Struct, frozen=True):
    """One of the devices that compute a model together."""

    rank: int
    pid: int
    device: str
    memory_bytes: int  # used on its device; on a CPU, by the rank's process
    waited_s: float  # for the other ranks, since its start


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step, by sequence id. Sequences in `failures` or `dead_ends` have no `samples`. A
    chunk has one sample, one more for each right draft, and then the tokens that a grammar forces. If a
    draft's position cannot be sampled they end before it: it is computed again, as the newest."""

    step_id: int
    samples: Mapping[int, tuple[SampledToken, ...]]
    prompt_logprobs: Mapping[int, tuple[SampledToken, ...]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)  # their K and V are invalid
    dead_ends: Mapping[int, str] = field(default_factory=dict)  # their clients forbid every token
    seconds: float = 0.0  # how long the step took; 0: not measured, or not typical
    batch_seconds: float = 0.0  # of it, for building the batch
    mask_seconds: float = 0.0  # of it, for computing grammars' masks
    num_forced: int = 0  # of the samples, tokens that grammars forced
    in_grammar: frozenset[int] = frozenset()  # sequences that a grammar constrains now: not planned ahead
    # Embeddings (E float32, in the machine's byte order) of requests for one whose prompt ends here: their
    # sample is a placeholder, which ends them and is sent to no client.
    pooled: Mapping[int, bytes] = field(default_factory=dict)
    way: StepWay | None = None  # None: not on a device
    too_large: str = ""  # why nothing was computed: the device had no memory for so many positions
    # Unreadable slots, of sequences with cold blocks: nothing was computed for these.
    unreadable: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cold_seconds: float = 0.0  # of `seconds`, for the part of a chunk with cold blocks


@dataclass(frozen=True, slots=True)
class Phases:
    """When a sequence reached each phase, in seconds on the engine's clock; None: not yet, or never.

        arrived ─ waits ─ (loading_begun ─ loaded) ─ admitted ─ its prompt is computed ─ first_token ─ ...

    Only the first time counts: waiting again after a preemption is part of its decoding.
    """

    arrived: float
    loading_begun: float | None = None  # it waits for blocks from an offload tier
    loaded: float | None = None
    admitted: float | None = None
    first_token: float | None = None


class Usage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The cost of a request, final when its last sequence ends and, so far, at every update."""

    num_prompt: int
    num_output: int
    num_cached: int  # prompt tokens taken from the prefix cache at first admission
    preemptions: int
    blocks_peak: int = 0  # the largest length of its block table
    block_seconds: float = 0.0  # blocks held, over time
    num_drafted: int = 0  # tokens that were guessed and computed
    num_accepted: int = 0  # of them, those that were right: output tokens without a step of their own
    phases: Phases | None = None  # None: set by no scheduler; `==` ignores it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return msgspec.structs.astuple(self)[:-1]


class Update(msgspec.Struct, frozen=True, gc=False):
    """News of one choice for its client. Exactly one update per choice has `finish` set."""

    request_id: int
    choice: int
    tokens: tuple[SampledToken, ...]
    usage: Usage  # of this choice
    finish: FinishReason | None = None
    stop_token: int | None = None  # the token that ended it, when finish is STOP
    error: str = ""  # when finish is ERROR, DEAD_END or TIMEOUT: why, in words
    prompt_logprobs: tuple[SampledToken, ...] = ()
    embedding: bytes = b""  # of the prompt, as in `StepResult.pooled`
