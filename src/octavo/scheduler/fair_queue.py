"""Who was served how much: a virtual token counter for each tenant. The tenant that was served least, for its
weight, is next.

A position counts once, when it is first handed to the executor: a prompt's 1, an output's 2 (`OUTPUT_COST`).
What comes from the cache costs nothing and does not count; what a preemption computes again does not count
either, because its tenant did not ask for it. A chunk that reads cold blocks counts by the time that it
takes, as so many positions of prompts. It answers two questions:

    which tenant is admitted next?    `turn_of`: what it was served, and what its admitted prompts still need
    whose prompt is computed next?    `of`: what it was served

A tenant that comes back after having wanted nothing is lifted to the least served of those that want
something, so that no tenant saves service up. Bounds, with U = OUTPUT_COST * positions of the pool:

    service    Two tenants that both have requests waiting all the time differ by no more than 2 U over the
               smaller weight: U is what runs when a tenant's turn is over (what is computed of it and what
               the other's admitted prompts still need are positions of one pool), and U what others may take
               while the one whose turn it is waits for more blocks than are free (`may_pass`).
    waiting    The tenant that was served least has prompt positions in the next plan, once a row and its
               blocks are free and no higher priority wants them. One that was served as little as k others,
               as one that comes back is, waits for k steps' budgets at most: each of those has had its turn
               then. (A step with one position for prompts gives it to the best-ranked; what a preemption
               computes again comes on top.)

Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, theorem 4.4 (VTC).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from octavo.scheduler.sequence import Sequence

OUTPUT_COST = 2


class VirtualTokenCounter:
    """Counters by tenant, in tokens over weight. Bounded by the number of tenants that were ever seen."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._weights: dict[str, float] = {}  # as they were when last asked for
        self.served: Counter[str] = Counter()  # tokens by tenant, by the costs above
        self._counter: dict[str, float] = {}
        self.admitted: Counter[str] = Counter()  # prompt positions of running sequences that do not count yet
        self._live: Counter[str] = Counter()  # unfinished sequences by tenant
        self._floor = 0.0  # the least of those that want something, when a tenant last came

    @property
    def num_active(self) -> int:
        """Tenants that have an unfinished sequence."""
        return len(self._live)

    def is_active(self, tenant: str) -> bool:
        """True while it has an unfinished sequence."""
        return tenant in self._live

    def enter(self, tenant: str) -> None:
        """One more unfinished sequence."""
        if not self._live[tenant]:
            active = [self._counter[other] for other, count in self._live.items() if count]
            self._floor = max(self._floor, min(active, default=self._floor))
            if not active:  # no tenant wants anything: begin where the most served one stopped
                self._floor = max(self._floor, max(self._counter.values(), default=0.0))
            self._counter[tenant] = max(self._counter.get(tenant, 0.0), self._floor)
        self._live[tenant] += 1

    def leave(self, tenant: str) -> None:
        """One unfinished sequence less."""
        self._live[tenant] -= 1
        if self._live[tenant] == 0:
            del self._live[tenant]

    def of(self, tenant: str) -> float:
        """What the tenant was served, for its weight: prompts of the one that has least are computed next."""
        return self._counter.get(tenant, 0.0)

    def turn_of(self, tenant: str) -> float:
        """The same once its admitted prompts are computed: the one that has least is admitted next."""
        return self.of(tenant) + self.admitted[tenant] / self._weight(tenant)

    def may_pass(self, passer: str, head: str, slots: int) -> bool:
        """Whether a tenant may be served before another, whose turn it is, but whose next request finds too
        few of the pool's `slots` free."""
        weight = min(self._weight_of(passer), self._weight_of(head))
        return passer == head or (self.turn_of(passer) - self.turn_of(head)) * weight < OUTPUT_COST * slots

    def reweigh(self) -> None:
        """Weights have changed."""
        self._weights.clear()

    def admit(self, sequence: Sequence) -> None:
        """It runs: what is left of its prompt will be computed."""
        self.admitted[sequence.request.tenant] += sequence.num_prompt_unserved

    def withdraw(self, sequence: Sequence) -> None:
        """It runs no more, whatever is left of its prompt."""
        self.admitted[sequence.request.tenant] -= sequence.num_prompt_unserved

    def count(self, sequence: Sequence, stop: int) -> None:
        """Positions up to `stop` of a running sequence are computed."""
        first, tenant = sequence.num_served, sequence.request.tenant
        if stop <= first:
            return
        outputs = stop - first
        if first < sequence.num_prompt:
            self.withdraw(sequence)
            sequence.num_served = stop
            self.admit(sequence)
            outputs = max(0, stop - sequence.num_prompt)
        sequence.num_served = stop
        cost = stop - first + (OUTPUT_COST - 1) * outputs
        self.served[tenant] += cost
        self._counter[tenant] += cost / self._weight(tenant)

    def charge(self, tenant: str, positions: float) -> None:
        """What it was given took the time of so many positions more."""
        self.served[tenant] += round(positions)
        self._counter[tenant] = self._counter.get(tenant, 0.0) + positions / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        weight = self._weights.get(tenant)
        if weight is None:
            weight = self._weights[tenant] = self._weight_of(tenant)
        return weight


class FairQueue:
    """The waiting line in turns: by priority, then the tenant whose turn it is, then arrival.

    Iterate it once; while it goes on, counters may change and tenants may be passed over.
    """

    def __init__(self, waiting: Iterable[Sequence], service: VirtualTokenCounter) -> None:
        self._waiting = list(waiting)
        self._service = service
        self._passed: set[str] = set()

    def pass_over(self, tenant: str) -> None:
        """No other sequence of this tenant needs to be looked at."""
        self._passed.add(tenant)

    def __iter__(self) -> Iterator[Sequence]:
        if self._service.num_active <= 1:
            for sequence in self._waiting:
                if sequence.request.tenant not in self._passed:
                    yield sequence
            return
        for _, line in groupby(self._waiting, key=lambda s: s.priority):
            lines: dict[str, deque[Sequence]] = {}
            for sequence in line:
                lines.setdefault(sequence.request.tenant, deque()).append(sequence)
            while lines := {t: own for t, own in lines.items() if own and t not in self._passed}:
                yield lines[min(lines, key=self._service.turn_of)].popleft()
