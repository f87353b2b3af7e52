"""How many blocks admission leaves to those that run, so that back-pressure comes before thrash: measured.

Every running sequence will want more blocks, how many is not known. Too few left: sequences are let in only
to be preempted, or to preempt. Too many: memory stands empty. What a block of headroom saves and costs
differs by machine and by the lengths of answers, so it is steered by what preemptions cost: work that they
undo, measured in steps, shall be about `TARGET` of the steps. Each step lets the headroom shrink a little,
each preemption makes it grow by what it undoes:

    log(blocks for each that runs)  +=  GAIN * (steps' worth of work undone - TARGET * steps)

within [LEAST, MOST], and never more than a quarter of the pool (or a block for each). Until steps are
measured (and always in traces without times) it is one block for each.
"""

from __future__ import annotations

import math

from octavo.step.step_times import StepTimes

TARGET = 0.02
GAIN = 0.05
LEAST, MOST = 0.25, 16.0


class Headroom:
    """Blocks that admission leaves for each running sequence."""

    def __init__(self, times: StepTimes) -> None:
        self.each = 1.0
        self._times = times
        self._undone_s = 0.0  # since the last measured step

    def blocks(self, num_running: int, num_blocks: int) -> int:
        """To be left where so many run, of a pool of `num_blocks`."""
        return min(math.ceil(self.each * num_running), max(num_running, num_blocks // 4))

    def observe(self, seconds: float) -> None:
        """A step took so long; 0: it was not measured. Changes the headroom, which nothing else does: while a
        plan is made it stays what it was."""
        if seconds > 0.0 and self._times.step_s is not None:
            steps, self._undone_s = self._undone_s / self._times.step_s - TARGET, 0.0
            self.each = min(MOST, max(LEAST, self.each * math.exp(min(1.0, GAIN * steps))))

    def undone(self, seconds: float) -> None:
        """A preemption costs so much time."""
        self._undone_s += seconds
