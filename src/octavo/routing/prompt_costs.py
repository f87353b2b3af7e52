"""What a prompt costs on each replica: what is known of replicas, and the arithmetic over it.

    cost, seconds    wait + prefill of what is not cached + loads from offload tiers + delay of others
                     + the first tokens of the answer, which come slower where many sequences decode
    wait             prompts that the replica computes before this one, of its last `Load` and sent since;
                     where rows or blocks are short, the time between two ends for each request that waits;
                     where no load has come for long, as long as that

A replica's step gives half of its positions to the oldest prompt and the rest to the shortest, so shorter
prompts count in full, and longer ones as much as this one takes itself. Each longer prompt in turn is delayed
by this one's prefill; without that, short prompts would all go where a long one is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from octavo.memory.changes import Place
from octavo.memory.names import hits_max
from octavo.routing.block_index import Run
from octavo.routing.reports import LENGTHS, Hello, Load, StepModel

DECODED = 64  # tokens of an answer that count: how long it becomes is not known
SILENT_S = 3.0  # without a load, where one comes each second at least
IDLE_LOAD = Load(0, 0, 0, (), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a request. `names`: of its blocks, by fingerprint, as `reports.unpacked` has them;
    none where it goes by load alone, and `key` stands for the first one."""

    num_tokens: int
    names: Mapping[str, Sequence[int]] = field(default_factory=dict)
    max_tokens: int = 0
    key: bytes = b""
    tenant: str = ""


@dataclass(slots=True)
class SentPrompt:
    """A request on its way. `seconds`: of its prefill, until it is in a load or has its first token."""

    replica: KnownReplica
    at: float
    seconds: float
    length: int  # its class, see `Load.prefill_s`


@dataclass(slots=True, eq=False)
class KnownReplica:
    """What is known of one."""

    replica_id: str
    index: int
    hello: Hello
    model: StepModel
    load: Load = IDLE_LOAD
    loaded_at: float = 0.0
    free_at: float = 0.0  # when it has computed all prompts
    sums: list[float] = field(default_factory=lambda: [0.0] * LENGTHS)  # of `load.prefill_s`
    sent: dict[str, SentPrompt] = field(default_factory=dict)  # that have no first token, and are in no load
    sent_sums: list[float] = field(default_factory=lambda: [0.0] * LENGTHS)
    num_sent: int = 0

    def num_longer(self, length: int) -> int:
        """Prompts in its queue that a prompt of this class would delay."""
        sent = sum(one.length > length for one in self.sent.values())
        return sum(self.load.prompts[length + 1 :]) + sent

    def sum_sent(self) -> None:
        """What was sent has changed."""
        own = [0.0] * LENGTHS
        for sent in self.sent.values():
            own[sent.length] += sent.seconds
        self.sent_sums = list(accumulate(own))

    def wait_s(self, length: int, own_s: float, num_blocks: int, now: float) -> float:
        """For a prompt of that class, which takes `own_s` alone and needs so many blocks: shorter ones come
        first, and half of a step is the oldest one's."""
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
    """Of one replica for one prompt, in seconds."""

    replica: KnownReplica
    hits: dict[Place, int]  # blocks
    wait_s: float
    prefill_s: float
    load_s: float
    delay_s: float  # of others
    decode_s: float  # of the first tokens
    saved_s: float

    @property
    def total_s(self) -> float:
        """What is the least for the best replica."""
        return self.wait_s + self.prefill_s + self.load_s + self.delay_s + self.decode_s

    @property
    def num_hits(self) -> int:
        """Blocks, in any place."""
        return sum(self.hits.values())


@dataclass(slots=True)
class CostSearch:
    """The costs of replicas for one prompt, as they are looked at."""

    by_index: Mapping[int, KnownReplica]
    expected: Mapping[int, int]
    prompt: Prompt
    runs_of: Mapping[str, Sequence[Run]]
    now: float
    excluded: frozenset[str]
    costs: dict[int, PromptCost] = field(default_factory=dict)

    def look_at(self, index: int) -> PromptCost | None:
        """None where it takes no such request."""
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
