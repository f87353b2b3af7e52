"""Chooses the replica with the least predicted cost for a request.

    reports --> index of blocks, loads --> costs of a prompt (prompt_costs.py) --> the least, the ring

The index has the reported blocks. Blocks of sent prompts are expected at their replica for some seconds, so
that the next turn of a chat follows the first before a report does. Among replicas of nearly equal cost the
choice is the first on a hash ring after the hash of the prompt's first block that no replica holds. So
independent routers send a new prefix to the same replica while its load is near the others'.

Few of many replicas are looked at: those with most of the prompt, those that are free first, those next on
the ring. Pure: no clock, no socket; times are seconds of any clock that all calls share.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from octavo.memory.changes import Place
from octavo.routing.block_index import REPLICAS_MAX, BlockIndex, Run
from octavo.routing.prompt_costs import CostSearch, KnownReplica, PromptCost, RoutedPrompt, SentPrompt
from octavo.routing.reports import LENGTHS, Changes, Hello, Load, Shared, StepModel, unpack_names

MARGIN_S, MARGIN = 0.005, 0.05  # costs that differ by less than either count as equal
SETTLE_S = 0.15  # the next load includes requests that were sent earlier
EXPECTED_S, EXPECTED_MAX = 2.0, 200_000  # names of sent prompts: their least lifetime, their number
RANKED_MAX = 16
_HOLDERS, _IDLE, _RING, _POINTS = 16, 8, 16, 32
_FIRST_MODEL = StepModel(1e-4, 0.0)  # until a replica reports measured steps


@dataclass(frozen=True, slots=True)
class NamingScheme:
    """How replicas of a fingerprint name blocks. `shared`: the names that the operator shares with all
    tenants, in the form of reports."""

    root_parts: tuple[bytes, ...]
    block_size: int
    shared: frozenset[int] = frozenset()


class NoReplica(enum.Enum):
    """Why no replica is chosen."""

    FULL = "full"  # all queues are full
    NONE = "none"  # there is no replica


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen replica, and the prediction for it."""

    replica_id: str
    hit_tokens: Mapping[Place, int]
    saved_ms: float  # prefill of cached tokens, less loads from tiers
    wait_ms: float
    prefill_ms: float
    delay_ms: float  # of longer prompts in its queue
    decode_ms: float  # of the answer's first tokens
    ranked: tuple[str, ...]  # the others, best first
    prompt: RoutedPrompt

    @property
    def num_hits(self) -> int:
        """Cached tokens, in any place."""
        return sum(self.hit_tokens.values())

    @property
    def reason(self) -> str:
        """The choice in words, for GET /v1/requests/{id}."""
        found = [f"{count:,} in {place}" for place, count in self.hit_tokens.items() if count]
        cached = f"{self.num_hits:,} of {self.prompt.num_tokens:,} prompt tokens are cached"
        where = f" ({', '.join(found)}; saves {self.saved_ms:,.0f} ms)" if found else ""
        return f"{cached}{where}; predicted wait {self.wait_ms:,.0f} ms, prefill {self.prefill_ms:,.0f} ms"


@dataclass(slots=True)
class RouterCounts:
    """Counters. Tokens are of prompts."""

    chosen: int = 0
    full: int = 0
    none: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0  # predicted to be cached
    moved: int = 0  # requests whose replica has fewer cached tokens than another one


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica, for operators and metrics."""

    replica_id: str
    hello: Hello
    load: Load
    load_age_s: float
    wait_ms: float  # for a long prompt
    num_blocks: int  # in the index
    num_sent: int  # unfinished requests of this router


class Router:
    """Takes replicas' reports, and chooses a replica for each request in O(blocks of the prompt + log
    replicas)."""

    def __init__(self, max_blocks: int = 10_000_000) -> None:
        self.index = BlockIndex(max_blocks)
        self.counts = RouterCounts()
        self._replicas: dict[str, KnownReplica] = {}
        self._by_index: dict[int, KnownReplica] = {}
        self._namings: dict[str, NamingScheme] = {}  # by fingerprint
        self._order: list[tuple[float, int]] = []  # (free_at, index) of replicas that take requests
        self._ring: list[tuple[int, int]] = []  # (hash, index)
        self._models: dict[str, StepModel] = {}  # the last one of each fingerprint
        self._sent: dict[str, SentPrompt] = {}
        self._expected: dict[int, int] = {}  # name -> index of the replica it was sent to
        self._expiry: deque[tuple[float, int, Sequence[int]]] = deque()  # when, index, names
        self._num_expiring = 0

    # -- reports

    def on_hello(self, replica_id: str, hello: Hello) -> None:
        """A replica has started, or its feed was reopened: earlier reports are void. More than `REPLICAS_MAX`
        are ignored."""
        self.on_gone(replica_id)
        index = next(i for i in range(len(self._by_index) + 1) if i not in self._by_index)
        if index >= REPLICAS_MAX:
            return
        model = self._models.get(hello.fingerprint, _FIRST_MODEL)
        replica = KnownReplica(replica_id, index, hello, model)
        self._replicas[replica_id] = self._by_index[index] = replica
        self._update_naming(hello.fingerprint)
        insort(self._order, (replica.free_at, index))
        for point in range(_POINTS):
            insort(self._ring, (_hash(f"slot {hello.slot}, point {point}".encode()), index))

    def on_changes(self, replica_id: str, changes: Changes) -> None:
        """Apply changes of the replica's names. O(names)."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        if changes.cleared:
            self.index.drop(replica.index)
        if changes.removed:
            self.index.remove(replica.index, changes.place, unpack_names(changes.removed))
        if changes.added:
            self.index.add(replica.index, changes.place, unpack_names(changes.added))

    def on_shared(self, replica_id: str, report: Shared) -> None:
        """Replace the names that the replica's operator shares. O(shared names of all replicas)."""
        if (replica := self._replicas.get(replica_id)) is not None:
            replica.shared = frozenset(unpack_names(report.names))
            self._update_naming(replica.hello.fingerprint)

    def on_load(self, replica_id: str, load: Load, now: float) -> None:
        """Replace the replica's load."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        self._unplace(replica)
        replica.load, replica.loaded_at = load, now
        sums = list(accumulate(load.prefill_s))
        replica.sums = sums + [sums[-1] if sums else 0.0] * (LENGTHS - len(sums))
        if load.step_model is not None:
            self._models[replica.hello.fingerprint] = replica.model = load.step_model
        for key in [key for key, sent in replica.sent.items() if sent.at <= now - SETTLE_S]:
            del replica.sent[key]
        replica.sum_sent()
        self._place(replica)

    def on_gone(self, replica_id: str) -> None:
        """Remove a replica. O(its blocks)."""
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return
        index, fingerprint = replica.index, replica.hello.fingerprint
        self._update_naming(fingerprint)
        self._unplace(replica)
        del self._by_index[index]
        self.index.drop(index)
        self._ring = [point for point in self._ring if point[1] != index]
        self._expected = {name: at for name, at in self._expected.items() if at != index}

    def _update_naming(self, fingerprint: str) -> None:
        replicas = [known for known in self._replicas.values() if known.hello.fingerprint == fingerprint]
        if not replicas:
            del self._namings[fingerprint]
            return
        hello, shared = replicas[0].hello, frozenset[int]().union(*(known.shared for known in replicas))
        self._namings[fingerprint] = NamingScheme(hello.root_parts, hello.block_size, shared)

    # -- requests

    def fingerprints(self) -> dict[str, NamingScheme]:
        """The naming schemes of all replicas, by fingerprint: a prompt needs names in each."""
        return dict(self._namings)

    def choose(
        self, prompt: RoutedPrompt, now: float, excluded: frozenset[str] = frozenset()
    ) -> Choice | NoReplica:
        """The replica for a request, and those to try next. `excluded`: replicas not to choose. A refusal is
        not counted here but by `on_refused`, as the caller may retry."""
        self._expire(now)
        search = self._candidates(prompt, now, excluded)
        counts = self.counts
        if not search.costs:
            left = (known for replica_id, known in self._replicas.items() if replica_id not in excluded)
            is_full = any(not known.load.is_draining for known in left)
            return NoReplica.FULL if is_full else NoReplica.NONE
        ranked = sorted(search.costs.values(), key=lambda cost: (cost.total_s, cost.replica.index))
        most = max(ranked, key=lambda cost: cost.num_hits)
        best = self._of_ring(search, ranked, most)
        counts.chosen += 1
        counts.moved += best.num_hits < most.num_hits
        size = best.replica.hello.block_size
        return Choice(
            best.replica.replica_id,
            {place: count * size for place, count in best.hits.items()},
            1000 * best.saved_s,
            1000 * best.wait_s,
            1000 * (best.prefill_s + best.load_s),
            1000 * best.delay_s,
            1000 * best.decode_s,
            tuple(cost.replica.replica_id for cost in ranked[: RANKED_MAX + 1] if cost is not best),
            prompt,
        )

    def on_refused(self, why: NoReplica) -> None:
        """Count a refused request."""
        self.counts.full += why is NoReplica.FULL
        self.counts.none += why is NoReplica.NONE

    def on_sent(self, replica_id: str, choice: Choice, request_key: str, now: float) -> None:
        """A request was sent to this replica, the chosen one or one of the ranked."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        prompt, hello = choice.prompt, replica.hello
        hits = choice.num_hits if replica_id == choice.replica_id else 0
        left = max(1, prompt.num_tokens - hits)
        seconds = replica.model.prefill_s(prompt.num_tokens - left, prompt.num_tokens)
        sent = SentPrompt(replica, now, seconds, min(LENGTHS - 1, left.bit_length()))
        self.on_ended(request_key)
        self._sent[request_key] = replica.sent[request_key] = sent
        replica.num_sent += 1
        self.counts.prompt_tokens += prompt.num_tokens
        self.counts.predicted_tokens += hits
        self._unplace(replica)
        replica.sum_sent()
        self._place(replica)
        names = prompt.names.get(hello.fingerprint, ())[hits // hello.block_size :]
        if names and len(names) <= EXPECTED_MAX:
            until = now + EXPECTED_S + (choice.wait_ms + choice.prefill_ms) / 500
            self._expected.update(dict.fromkeys(names, replica.index))
            self._expiry.append((until, replica.index, names))
            self._num_expiring += len(names)

    def on_first_token(self, request_key: str) -> None:
        """The request's prefill is done."""
        sent = self._sent.get(request_key)
        if sent is not None:
            self._settle(request_key, sent)

    def on_ended(self, request_key: str) -> None:
        """The request's answer has ended or failed. Idempotent."""
        sent = self._sent.pop(request_key, None)
        if sent is not None:
            sent.replica.num_sent -= 1
            self._settle(request_key, sent)

    def states(self, now: float) -> list[ReplicaState]:
        """All replicas, by slot."""
        return [
            ReplicaState(
                replica.replica_id,
                replica.hello,
                replica.load,
                now - replica.loaded_at,
                1000 * replica.wait_s(LENGTHS - 1, 0.0, 0, now),
                self.index.held_by(replica.index),
                replica.num_sent,
            )
            for replica in sorted(self._replicas.values(), key=lambda replica: replica.hello.slot)
        ]

    # -- helpers

    def _settle(self, request_key: str, sent: SentPrompt) -> None:
        """Remove a request's prefill from its replica's queue."""
        replica = sent.replica
        if replica.sent.pop(request_key, None) is not None and replica is self._by_index.get(replica.index):
            self._unplace(replica)
            replica.sum_sent()
            self._place(replica)

    def _place(self, replica: KnownReplica) -> None:
        """Insert a replica into the order by `free_at`, if it takes requests."""
        replica.free_at = replica.loaded_at + replica.model.stretch * (
            replica.sums[-1] + replica.sent_sums[-1]
        )
        if not (replica.load.is_full or replica.load.is_draining):
            insort(self._order, (replica.free_at, replica.index))

    def _unplace(self, replica: KnownReplica) -> None:
        at = bisect_left(self._order, (replica.free_at, replica.index))
        if at < len(self._order) and self._order[at] == (replica.free_at, replica.index):
            del self._order[at]

    def _candidates(self, prompt: RoutedPrompt, now: float, excluded: frozenset[str]) -> CostSearch:
        """The costs on the replicas that may be best."""
        runs_of = {of: self.index.find(names) for of, names in prompt.names.items()}
        search = CostSearch(self._by_index, self._expected, prompt, runs_of, now, excluded)
        for of, runs in runs_of.items():
            for index in self._holders(runs):
                search.look_at(index)
            if self._expected:
                for index in self._expecting(prompt.names[of], runs):
                    search.look_at(index)
        enough = len(search.costs) + _IDLE
        for _, index in self._order:
            search.look_at(index)
            if len(search.costs) >= enough:
                break
        return search

    def _holders(self, runs: Sequence[Run]) -> Iterator[int]:
        """The replicas with most of a prompt; of many with equally much, those that are free first."""
        left = _HOLDERS
        for run in reversed(runs):
            if run.holders.bit_count() <= _HOLDERS:
                yield from run.replicas()
                continue
            for _, index in islice(self._order, 4 * _HOLDERS):
                if run.has(index):
                    yield index
                    left -= 1
                    if left == 0:
                        return

    def _expecting(self, names: Sequence[int], runs: Sequence[Run]) -> Iterator[int]:
        """The replicas to which blocks after a run were sent."""
        for stop in (0, *(run.stop for run in runs)):
            if stop < len(names) and (index := self._expected.get(names[stop])) is not None:
                yield index

    def _of_ring(self, search: CostSearch, ranked: Sequence[PromptCost], most: PromptCost) -> PromptCost:
        """The first replica on the ring after the prompt's first new block, of those with most hits at nearly
        the least cost."""
        prompt, least_s = search.prompt, ranked[0].total_s
        enough_s = least_s + max(MARGIN_S, MARGIN * least_s)
        near = [cost for cost in ranked if cost.total_s <= enough_s]
        best = max(near, key=lambda cost: cost.num_hits)
        names = prompt.names.get(most.replica.hello.fingerprint, ())
        key = names[min(most.num_hits, len(names) - 1)].to_bytes(8, "little") if names else prompt.key
        start = bisect_left(self._ring, (_hash(key), 0))
        for at in range(start, start + min(_RING, len(self._ring))):
            cost = search.look_at(self._ring[at % len(self._ring)][1])
            if cost is not None and cost.total_s <= enough_s and cost.num_hits >= best.num_hits:
                return cost
        return best

    def _expire(self, now: float) -> None:
        """Drop expected names whose time has passed."""
        while self._expiry and (self._expiry[0][0] <= now or self._num_expiring > EXPECTED_MAX):
            _, index, names = self._expiry.popleft()
            self._num_expiring -= len(names)
            for name in names:
                if self._expected.get(name) == index:
                    del self._expected[name]


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
