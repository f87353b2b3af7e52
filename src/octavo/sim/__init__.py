"""The real scheduler and ledger without a model, on a virtual clock: the memory use and schedule of a trace.

    Job        a request as lengths and an arrival       Pool      blocks, and the time of a step
    serve      a trace to its end, with a callback in every step
    replay_paged, replay_reserved    the parts of memory that are stored, reserved or lost: in blocks, and
                                     under policies that reserve a contiguous run for each request

Twenty requests, ten a second, on 100 blocks: how many ran at once, and how often one was preempted.

    >>> from octavo.sim import Job, Pool, replay_paged
    >>> trace = [Job(prompt=200, output=100, arrival=0.1 * i) for i in range(20)]
    >>> pool = Pool(num_blocks=100, block_size=16, step_s=0.01)
    >>> found = replay_paged(trace, pool, seed=0)
    >>> found.running_max, found.preemptions
    (6, 4)

A callback of `serve` receives the scheduler in each step: its queues, its ledger, its events.

    >>> from octavo.sim import requests_of, serve
    >>> waiting = []
    >>> def look(scheduler, to_come):
    ...     waiting.append(len(scheduler.live.waiting))
    >>> serve(requests_of(trace, seed=0), pool, look)
    ServedTrace(steps=420, preemptions=4)
    >>> max(waiting)
    9

The production code decides which request runs and which block is whose. Only the arithmetic is the oracle's
(`OracleExecutor`): each slot holds what it should mean, so a wrong block is an error at once. The same trace
and seed give the same figures on every machine. `octavo bench memory` prints such figures.
"""

from octavo.sim.driver import Look, Pool, ServedTrace, replay_paged, requests_of, serve
from octavo.sim.oracle import OracleExecutor
from octavo.sim.policies import Job, Policy, ReplayedTrace, replay_reserved, reservation_policies

__all__ = [
    "Job",
    "Look",
    "OracleExecutor",
    "Policy",
    "Pool",
    "ReplayedTrace",
    "ServedTrace",
    "replay_paged",
    "replay_reserved",
    "requests_of",
    "reservation_policies",
    "serve",
]
