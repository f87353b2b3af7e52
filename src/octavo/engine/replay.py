"""Runs a recording through the real scheduler, without a model: finds the first plan that differs, or the
first invariant that breaks.

Commands, times and the executor's results come from the file; the plans are made again. After each step
`Scheduler.check` may check all invariants. Entries are written before their action, so a failure in
production occurs here at the same entry, unless the executor failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from octavo.engine.port import Command
from octavo.engine.recording import (
    ENTRY_BYTES_MAX,
    MAGIC,
    Applied,
    Began,
    Committed,
    Entry,
    Expired,
    Planned,
    PlanRows,
    Recovered,
    Refused,
    result_of_rows,
    rows_of_plan,
)
from octavo.engine.virtual_loop import VirtualLoop
from octavo.errors import ConfigError, OctavoError, shown


@dataclass(slots=True)
class ReplayResult:
    """The result. `fault`: the first difference or broken invariant, in words; "": none."""

    num_entries: int = 0
    num_commands: int = 0
    num_plans: int = 0
    recoveries: list[str] = field(default_factory=list)  # why the state was discarded
    is_cut: bool = False  # the file ends inside an entry: the process was killed
    fault: str = ""


def replay(path: Path, progress: Callable[[int], None], *, check_every: int = 1) -> ReplayResult:
    """Run it up to the first fault; `progress` gets the number of entries so far. All invariants
    are checked after each step whose number is a multiple of `check_every`, O(everything); 0: never. Raises
    ConfigError for a file that is no recording."""
    replayed = ReplayResult()
    try:
        with path.open("rb") as file:
            run = _Run(check_every)
            for entry in entries_of(file, path, replayed):
                replayed.num_entries += 1
                replayed.num_commands += isinstance(entry, Applied)
                replayed.num_plans += isinstance(entry, Planned) and entry.plan is not None
                if isinstance(entry, Recovered):
                    replayed.recoveries.append(entry.reason)
                progress(replayed.num_entries)
                fault = run.take(entry)
                if fault:
                    replayed.fault = f"entry {replayed.num_entries:,} ({type(entry).__name__}): {fault}"
                    break
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not replayed.num_entries:
        raise ConfigError(f"{path} holds nothing: its server ended before it began")
    return replayed


def entries_of(file: BinaryIO, path: Path, replayed: ReplayResult) -> Iterator[Entry]:
    """The entries of a recording up to a cut, which `replayed` then notes. Raises ConfigError."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ConfigError(
            f"{path} is no recording of this version; allowed: a file that `octavo serve --record` wrote"
        )
    decoder = msgspec.msgpack.Decoder(Entry)
    while head := file.read(4):
        length = int.from_bytes(head, "little")
        if length > ENTRY_BYTES_MAX:
            raise ConfigError(f"{path} is damaged: an entry of {length:,} bytes")
        data = file.read(length)
        if len(head) < 4 or len(data) < length:
            replayed.is_cut = True
            return
        try:
            yield decoder.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError, OctavoError) as error:
            raise ConfigError(f"{path} is damaged at byte {file.tell() - length:,}: {error}") from None


@dataclass(slots=True)
class _Run:
    """The state within a recording."""

    check_every: int
    _loop: VirtualLoop | None = None
    _now: float = 0.0
    _is_planning: bool = False  # `Expired` was the last entry of its step
    _was_refused: bool = False  # the last command, now

    def take(self, entry: Entry) -> str:
        """Execute the next entry. Returns the fault, or ""."""
        if isinstance(entry, Began):
            if self._loop is None:
                self._loop = VirtualLoop(entry.setup, entry.tier)
            else:
                self._loop.begin_again(entry.setup, entry.tier)
            return ""
        if self._loop is None:
            return "it comes before any scheduler has begun"
        if self._was_refused != isinstance(entry, Refused):
            return f"the command before it was {'not ' if self._was_refused else ''}refused then"
        self._was_refused = False
        try:
            return self._take(entry, self._loop)
        except Exception as error:  # noqa: BLE001 - finding failures is the purpose
            return f"an invariant broke: {type(error).__name__}: {error}"

    def _take(self, entry: Entry, loop: VirtualLoop) -> str:
        match entry:
            case Applied(now, command):
                try:
                    loop.answer(cast("Command[object]", command), now)
                except OctavoError:
                    self._was_refused = True
            case Expired(now):
                self._now, self._is_planning = now, True
                loop.scheduler.expire(now)
            case Planned(recorded):
                self._is_planning = False
                return self._plan(loop, recorded)
            case Committed(now, result):
                if not loop.in_flight:
                    return "a result of no plan"
                loop.commit(result_of_rows(result), now)
                if self.check_every and result.step_id % self.check_every == 0:
                    loop.scheduler.check()
            case Recovered():
                loop.in_flight.clear()
                if self._is_planning:  # no plan was made then
                    loop.scheduler.schedule(self._now)
                    return "the state broke then while this step was planned, and does not now"
        return ""

    def _plan(self, loop: VirtualLoop, recorded: PlanRows | None) -> str:
        plan = loop.schedule(self._now)
        made = None if plan is None else rows_of_plan(plan)
        if made != recorded:
            return f"the plan differs: {_difference(recorded, made)}"
        scheduler = loop.scheduler
        is_wedged = not loop.in_flight and scheduler.has_work and not scheduler.waits_for_transfers
        return "an invariant broke: work is left and nothing can be planned" if is_wedged else ""


def _difference(recorded: PlanRows | None, made: PlanRows | None) -> str:
    if recorded is None or made is None:
        return f"recorded {'none' if recorded is None else 'one'}, now {'none' if made is None else 'one'}"
    for name in PlanRows.__struct_fields__:
        then, now = getattr(recorded, name), getattr(made, name)
        if then != now:
            return f"{name} of step {recorded.step_id}: recorded {shown(then)}, now {shown(now)}"
    return "in no field"
