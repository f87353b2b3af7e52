"""The blocks that admission leaves to running sequences, so back-pressure comes before thrash: measured.

Every running sequence will need more blocks, an unknown number. With too little headroom, sequences are
admitted only to be preempted, or to preempt. With too much, memory is unused. The gain and cost of a block of
headroom depend on the machine and on the lengths of answers, so the cost of preemptions steers it: the work
that they undo, measured in steps, shall be about `TARGET` of the steps. Each step shrinks the headroom a
little, each preemption grows it by the work undone:

    log(blocks for each running sequence)  +=  GAIN * (steps' worth of work undone - TARGET * steps)

within [LEAST, MOST], and never more than a quarter of the pool (or a block for each). Without measured steps
(always in traces without times) it is one block for each.
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
        """Blocks to leave with `num_running` sequences in a pool of `num_blocks`."""
        return min(math.ceil(self.each * num_running), max(num_running, num_blocks // 4))

    def observe(self, seconds: float) -> None:
        """A step took so long; 0: not measured. Only this changes the headroom: it is constant while a plan
        is made."""
        if seconds > 0.0 and self._times.step_s is not None:
            steps, self._undone_s = self._undone_s / self._times.step_s - TARGET, 0.0
            self.each = min(MOST, max(LEAST, self.each * math.exp(min(1.0, GAIN * steps))))

    def record_undone(self, seconds: float) -> None:
        """A preemption costs so much time."""
        self._undone_s += seconds
