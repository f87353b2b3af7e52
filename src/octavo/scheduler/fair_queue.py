"""Fairness between tenants: a virtual token counter for each. The tenant that was served least, for its
weight, is next.

A position counts once, when it is first handed to the executor: a prompt's 1, an output's 2 (`OUTPUT_COST`).
Cached positions cost nothing and do not count. Positions recomputed after a preemption do not count either:
the tenant did not cause it. A chunk that reads cold blocks counts by its time, converted to prompt positions.
The counter decides twice:

    which tenant is admitted next?    `turn_of`: its service, and what its admitted prompts still need
    whose prompt is computed next?    `of`: its service

A tenant that returns after being idle is lifted to the least served active tenant, so that no tenant saves
service up. Bounds, with U = OUTPUT_COST * positions of the pool:

    service    Two tenants that both always have requests waiting differ by at most 2 U over the smaller
               weight. One U is what still runs after a tenant's turn (its positions, and those that the
               other's admitted prompts need, are positions of one pool). The other U is what others may
               take while the tenant whose turn it is waits for more blocks than are free (`may_pass`).
    waiting    The tenant that was served least has prompt positions in the next plan, once a row and its
               blocks are free and no higher priority needs them. A tenant whose service equals that of
               k others, as after its return, waits for at most k steps' budgets: then each has had its
               turn. (A step with one prompt position gives it to the best-ranked; recomputation after
               preemptions comes on top.)

Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, theorem 4.4 (VTC).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from octavo.scheduler.sequence import Sequence

OUTPUT_COST = 2


class VirtualTokenCounter:
    """Counters by tenant, in tokens over weight. One entry for each tenant ever seen."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._weights: dict[str, float] = {}  # cached until `reweigh`
        self.served: Counter[str] = Counter()  # tokens by tenant, at the costs above
        self._counter: dict[str, float] = {}
        self.admitted: Counter[str] = Counter()  # uncounted prompt positions of running sequences
        self._live: Counter[str] = Counter()  # unfinished sequences by tenant
        self._floor = 0.0  # of the least served active tenant, when a tenant last became active

    @property
    def num_active(self) -> int:
        """Tenants with an unfinished sequence."""
        return len(self._live)

    def is_active(self, tenant: str) -> bool:
        """True while the tenant has an unfinished sequence."""
        return tenant in self._live

    def enter(self, tenant: str) -> None:
        """Add an unfinished sequence."""
        if not self._live[tenant]:
            active = [self._counter[other] for other, count in self._live.items() if count]
            self._floor = max(self._floor, min(active, default=self._floor))
            if not active:  # no active tenant: continue from the most served one
                self._floor = max(self._floor, max(self._counter.values(), default=0.0))
            self._counter[tenant] = max(self._counter.get(tenant, 0.0), self._floor)
        self._live[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Remove an unfinished sequence."""
        self._live[tenant] -= 1
        if self._live[tenant] == 0:
            del self._live[tenant]

    def of(self, tenant: str) -> float:
        """The service of a tenant over its weight: the least served has its prompts computed next."""
        return self._counter.get(tenant, 0.0)

    def turn_of(self, tenant: str) -> float:
        """As `of`, including admitted prompts: the least served is admitted next."""
        return self.of(tenant) + self.admitted[tenant] / self._weight(tenant)

    def may_pass(self, passer: str, head: str, slots: int) -> bool:
        """Whether a tenant may be served before `head`, whose turn it is, but whose next request does not fit
        into the free of the pool's `slots`."""
        weight = min(self._weight_of(passer), self._weight_of(head))
        return passer == head or (self.turn_of(passer) - self.turn_of(head)) * weight < OUTPUT_COST * slots

    def reweigh(self) -> None:
        """Weights have changed: drop the cached ones."""
        self._weights.clear()

    def admit(self, sequence: Sequence) -> None:
        """Record an admission: the rest of the prompt will be computed."""
        self.admitted[sequence.request.tenant] += sequence.num_prompt_unserved

    def withdraw(self, sequence: Sequence) -> None:
        """Stop counting the rest of a prompt, whose sequence stopped running."""
        self.admitted[sequence.request.tenant] -= sequence.num_prompt_unserved

    def count(self, sequence: Sequence, stop: int) -> None:
        """Count positions up to `stop` of a running sequence."""
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
        """Count `positions` more for the tenant: its cold chunk took the time of so many."""
        self.served[tenant] += round(positions)
        self._counter[tenant] = self._counter.get(tenant, 0.0) + positions / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        weight = self._weights.get(tenant)
        if weight is None:
            weight = self._weights[tenant] = self._weight_of(tenant)
        return weight


class FairQueue:
    """The queue in turns: by priority, then the tenant whose turn it is, then arrival.

    Iterate it once. During the iteration, counters may change and tenants may be skipped.
    """

    def __init__(self, waiting: Iterable[Sequence], service: VirtualTokenCounter) -> None:
        self._waiting = list(waiting)
        self._service = service
        self._passed: set[str] = set()

    def pass_over(self, tenant: str) -> None:
        """Skip the other sequences of this tenant."""
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
