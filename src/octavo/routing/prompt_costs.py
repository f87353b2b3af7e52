"""The predicted cost of a prompt on each replica.

    cost, seconds    wait + prefill of uncached tokens + loads from offload tiers + delay of other prompts
                     + the first tokens of the answer, which are slower where many sequences decode
    wait             prompts that the replica computes before this one, of its last `Load` and sent since;
                     if rows or blocks are short, the time between two ends for each waiting request;
                     if the last load is old, at least its age

A replica's step gives half of its positions to the oldest prompt and the rest to the shortest. So shorter
prompts count in full, and longer ones at most as long as this one's own prefill. Each longer prompt is
delayed by this one's prefill; without that term all short prompts would go where a long one is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from octavo.memory.changes import Place
from octavo.memory.names import hits_max
from octavo.routing.block_index import Run
from octavo.routing.reports import LENGTHS, Hello, Load, StepModel

DECODED = 64  # tokens of an answer that count, as its length is unknown
SILENT_S = 3.0  # without a load, which comes at least each second
IDLE_LOAD = Load(0, 0, 0, (), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class RoutedPrompt:
    """A request to be routed. `names`: of its blocks, by fingerprint, as integers of `reports.unpack_names`.
    A request without names is routed by load; `key` then takes the role of the first name."""

    num_tokens: int
    names: Mapping[str, Sequence[int]] = field(default_factory=dict)
    max_tokens: int = 0
    key: bytes = b""
    tenant: str = ""


@dataclass(slots=True)
class SentPrompt:
    """A sent request, until a load includes it or it has its first token. `seconds`: of its prefill."""

    replica: KnownReplica
    at: float
    seconds: float
    length: int  # its class, see `Load.prefill_s`


@dataclass(slots=True, eq=False)
class KnownReplica:
    """A replica with its last reports, and the requests sent since."""

    replica_id: str
    index: int
    hello: Hello
    model: StepModel
    load: Load = IDLE_LOAD
    loaded_at: float = 0.0
    free_at: float = 0.0  # when all its prompts are computed
    sums: list[float] = field(default_factory=lambda: [0.0] * LENGTHS)  # of `load.prefill_s`
    sent: dict[str, SentPrompt] = field(default_factory=dict)  # without a first token, and in no load
    sent_sums: list[float] = field(default_factory=lambda: [0.0] * LENGTHS)
    num_sent: int = 0
    shared: frozenset[int] = frozenset()  # names that its operator shares with all tenants

    def num_longer(self, length: int) -> int:
        """The number of queued prompts that a prompt of this class would delay."""
        sent = sum(one.length > length for one in self.sent.values())
        return sum(self.load.prompts[length + 1 :]) + sent

    def sum_sent(self) -> None:
        """Update `sent_sums` after a change of `sent`."""
        own = [0.0] * LENGTHS
        for sent in self.sent.values():
            own[sent.length] += sent.seconds
        self.sent_sums = list(accumulate(own))

    def wait_s(self, length: int, own_s: float, num_blocks: int, now: float) -> float:
        """The wait of a prompt of this class, with a prefill of `own_s` and `num_blocks` new blocks. Shorter
        prompts come first, and the oldest has half of each step."""
        load, sums, sent = self.load, self.sums, self.sent_sums
        queue_s = sums[length] + min(own_s, sums[-1] - sums[length])
        wait_s = max(0.0, queue_s * self.model.stretch - (now - self.loaded_at))
        wait_s += (sent[length] + min(own_s, sent[-1] - sent[length])) * self.model.stretch
        rows = self.hello.max_seqs
        queued = load.num_waiting + len(self.sent)
        if (rows and load.num_running + queued >= rows) or num_blocks > load.free_blocks:
            wait_s = max(wait_s, (queued + 1) * self.model.end_gap_s)
        silent_s = now - self.loaded_at
        if silent_s > SILENT_S:
            wait_s = max(wait_s, silent_s)
        return wait_s


@dataclass(slots=True)
class PromptCost:
    """The cost of one prompt on one replica, in seconds."""

    replica: KnownReplica
    hits: dict[Place, int]  # blocks
    wait_s: float
    prefill_s: float
    load_s: float
    delay_s: float  # of other prompts
    decode_s: float  # of the answer's first tokens
    saved_s: float

    @property
    def total_s(self) -> float:
        """The cost that the router minimises."""
        return self.wait_s + self.prefill_s + self.load_s + self.delay_s + self.decode_s

    @property
    def num_hits(self) -> int:
        """Cached blocks, in any place."""
        return sum(self.hits.values())


@dataclass(slots=True)
class CostSearch:
    """The costs of one prompt, computed for each replica that is looked at."""

    by_index: Mapping[int, KnownReplica]
    expected: Mapping[int, int]
    prompt: RoutedPrompt
    runs_of: Mapping[str, Sequence[Run]]
    now: float
    excluded: frozenset[str]
    costs: dict[int, PromptCost] = field(default_factory=dict)

    def look_at(self, index: int) -> PromptCost | None:
        """The cost on a replica; None: it takes no such request."""
        cost = self.costs.get(index)
        if cost is None and self._takes(replica := self.by_index[index]):
            cost = self.costs[index] = self._cost(replica)
        return cost

    def _takes(self, replica: KnownReplica) -> bool:
        load, tenant = replica.load, self.prompt.tenant
        if load.is_full or load.is_draining or replica.replica_id in self.excluded:
            return False
        return not (tenant and tenant in load.tenants_full)

    def _cost(self, replica: KnownReplica) -> PromptCost:
        prompt, index, hello, model = self.prompt, replica.index, replica.hello, replica.model
        names = prompt.names.get(hello.fingerprint, ())
        most = min(len(names), hits_max(prompt.num_tokens, hello.block_size))
        hits, stop = dict[Place, int](), 0
        for run in self.runs_of.get(hello.fingerprint, ()):
            if not run.has(index) or stop >= most:
                break
            place, stop = run.place(index), min(most, run.stop)
            hits[place] = hits.get(place, 0) + stop - run.start
        begin = stop
        while stop < most and self.expected.get(names[stop]) == index:
            stop += 1
        if stop > begin:
            hits[Place.POOL] = hits.get(Place.POOL, 0) + stop - begin
        num_tokens, cached = prompt.num_tokens, stop * hello.block_size
        own_s = model.prefill_s(cached, num_tokens)
        load_s = model.load_s * sum(count for place, count in hits.items() if place is not Place.POOL)
        length = min(LENGTHS - 1, (num_tokens - cached).bit_length())
        blocks = (num_tokens - cached) // hello.block_size + 1
        wait_s = replica.wait_s(length, own_s, blocks, self.now)
        prefill_s = own_s * model.stretch
        delay_s = prefill_s * replica.num_longer(length)
        saved_s = model.prefill_s(0, cached) * model.stretch - load_s
        step_s = model.decode_s + model.row_s * len(replica.sent)
        decode_s = step_s * min(DECODED, prompt.max_tokens or DECODED)
        return PromptCost(replica, hits, wait_s, prefill_s, load_s, delay_s, decode_s, saved_s)
