"""Data-driven traces: `traces/*.trace` say what is submitted, and what each step must then plan and commit.

    pool blocks=8 block=4 rows=4 tokens=8     the sizes; first line
    add A prompt=10 max=3 [n=2] [priority=1] [tenant=x] [like=B:8]
                                              like: the first 8 tokens equal those of B's prompt
    step                                      schedule, run, commit; expected lines follow, indented
    plan | commit                             the two halves, for overlap
    eos A                                     the next token sampled for A (all choices) ends it
    cancel A

Expected lines: `chunk A 0:8` (`*` behind it: a token is sampled), `admit A cached=8`, `retire A`, `table A
1=5`, `copy 3->5`, `fork A->A.1`, `done A length`, `idle`, and at a step's end `free=5 cached=1`. `python
tests/scheduler/test_traces.py` rewrites the expectations; read the diff before you believe it.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from octavo.errors import OctavoError
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.step.context import SchedulerConfig
from octavo.types import Request, SampledToken, StepPlan, StepResult

TRACES = sorted((Path(__file__).parent / "traces").glob("*.trace"))
EOS = 0


class Replay:
    """Runs the commands of one trace; `lines` are what the last command showed."""

    def __init__(self) -> None:
        self.prompts: dict[str, list[int]] = {}
        self.ids: dict[str, int] = {}
        self.eos: set[int] = set()
        self.in_flight: deque[StepPlan] = deque()
        self.names: dict[int, str] = {}  # by seq_id

    def do(self, command: str) -> list[str]:
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        return getattr(self, f"do_{verb}")(*plain, **options)  # type: ignore[no-any-return]

    def do_pool(self, blocks: str, block: str, rows: str, tokens: str, waiting: str = "100") -> list[str]:
        self.memory = Ledger(int(blocks), int(block))
        config = SchedulerConfig(int(rows), int(tokens), int(waiting), 1000, frozenset([EOS]))
        self.scheduler = Scheduler(self.memory, config, lambda tenant: root_name(tenant.encode()))
        return []

    def do_add(
        self,
        name: str,
        prompt: str,
        max: str,
        n: str = "1",
        priority: str = "0",
        tenant: str = "",
        like: str = "",
    ) -> list[str]:
        rng = random.Random(name)
        tokens = [rng.randrange(1, 1000) for _ in range(int(prompt))]
        if like:
            other, count = like.split(":")
            tokens[: int(count)] = self.prompts[other][: int(count)]
        self.prompts[name] = tokens
        self.ids[name] = request_id = len(self.ids) + 1
        request = Request(
            request_id, tuple(tokens), SamplerParams(), int(max), 1, int(n), tenant, int(priority)
        )
        try:
            self.scheduler.submit(request)
        except OctavoError as error:
            return [f"refused {type(error).__name__}"]
        return []

    def do_eos(self, name: str) -> list[str]:
        self.eos.add(self.ids[name])
        return []

    def do_cancel(self, name: str) -> list[str]:
        updates = self.scheduler.cancel(self.ids[name])
        return [f"done {self.label(u.request_id, u.choice)} {u.finish}" for u in updates]

    def do_step(self) -> list[str]:
        lines = self.do_plan()
        return lines if lines == ["idle"] else lines + self.do_commit()

    def do_plan(self) -> list[str]:
        plan = self.scheduler.schedule(0.0)
        self.scheduler.check()
        if plan is None:
            return ["idle"]
        self.in_flight.append(plan)
        owner: dict[int, str] = {}
        lines = [f"retire row {row}" for row in plan.retired]
        for admitted in plan.admitted:
            sequence = self.sequence(admitted.seq_id)
            name = self.label(sequence.request.request_id, sequence.choice)
            self.names[admitted.seq_id] = owner[admitted.row] = name
            lines.append(f"admit {name} row={admitted.row}")
        lines += [f"copy {copy.source}->{copy.target}" for copy in plan.copies]
        for write in plan.table_writes:
            name = next(self.names[s.seq_id] for s in self.scheduler.live.running if s.row == write.row)
            lines.append(f"table {name} {write.index}={write.block}")
        for chunk in plan.chunks:
            lines.append(
                f"chunk {self.names[chunk.seq_id]} {chunk.start}:{chunk.stop}{' *' * chunk.num_samples}"
            )
        for fork in plan.forks:
            parent = next(c.seq_id for c in plan.chunks if c.row == fork.parent_row)
            self.names[fork.child_seq_id] = f"{self.names[parent]}.{fork.choice}"
            lines.append(f"fork {self.names[parent]}->{self.names[fork.child_seq_id]}")
        return lines

    def do_commit(self) -> list[str]:
        plan = self.in_flight.popleft()
        sampled = [c.seq_id for c in plan.chunks if c.num_samples] + [f.child_seq_id for f in plan.forks]
        request_of = {i: self.ids[self.names[i].split(".")[0]] for i in sampled}
        samples = {i: (SampledToken(EOS if request_of[i] in self.eos else 7),) for i in sampled}
        updates = self.scheduler.commit(plan, StepResult(plan.step_id, samples), 0.0)
        self.scheduler.check()
        counts = self.memory.counts()
        lines = [f"done {self.label(u.request_id, u.choice)} {u.finish}" for u in updates if u.finish]
        waiting = " ".join(self.label(s.request.request_id, s.choice) for s in self.scheduler.live.waiting)
        return [
            *lines,
            f"free={counts.free} cached={counts.cached}" + (f" waiting={waiting}" if waiting else ""),
        ]

    def label(self, request_id: int, choice: int) -> str:
        name = next(name for name, known in self.ids.items() if known == request_id)
        return f"{name}.{choice}" if choice else name

    def sequence(self, seq_id: int):  # type: ignore[no-untyped-def]
        return next(s for s in self.scheduler.live.running if s.seq_id == seq_id)


def replay(text: str) -> str:
    """The trace with the expectations that the scheduler of today gives."""
    player, out = Replay(), []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out += [f"  {shown}" for shown in player.do(line)]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    text = path.read_text()
    assert replay(text) == text


def test_there_are_traces() -> None:
    assert len(TRACES) >= 10


if __name__ == "__main__":
    for trace in TRACES:
        trace.write_text(replay(trace.read_text()))
