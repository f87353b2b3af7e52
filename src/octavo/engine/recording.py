"""A recording: all inputs and plans of a scheduler, in a file that `replay` runs again.

    "octavo-recording-3\\n"   then entries, each a length in 4 bytes and msgpack:

    Began        the parameters of the scheduler; once at the start, and after each recovery
    Applied      a command, and its time
    Refused      it was refused
    Expired      a step begins at that time: expired requests, pins and sessions end
    Planned      the plan, as numbers
    Committed    the executor's result of the oldest plan in flight
    Recovered    the engine found its state broken: the next `Began` is another scheduler

The engine's thread writes it through a buffer, which it flushes once a second, before it sleeps, and when the
state broke; the file ends at a bound. It contains prompts and answers as token ids, so its mode is 0600.
"""

from __future__ import annotations

import logging
import os
import zlib
from array import array
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from octavo.engine.codec import AnyCommand
from octavo.engine.port import Command, ReplyT, names_tenant
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.files import new_file
from octavo.types import SampledToken, StepPlan, StepResult, StepWay

log = logging.getLogger("octavo.recording")

MAGIC = b"octavo-recording-3\n"
BYTES_MAX = 4 << 30
ENTRY_BYTES_MAX = 256 << 20
_LENGTH_BYTES = 4
_FLUSH_S = 1.0
_BUFFER_BYTES = 1 << 20

Row = tuple[int, ...]


class PlanRows(msgspec.Struct, frozen=True, array_like=True):
    """A plan as numbers: equal plans have equal ones. `admitted` has a checksum in place of tokens."""

    step_id: int
    retired: Row
    admitted: list[Row]
    table_writes: list[Row]
    copies: list[Row]
    chunks: list[tuple[int, int, int, int, int, int, Row, int, int]]
    forks: list[Row]
    transfers: list[tuple[int, int, int, bytes, str, int]]
    discarded: list[Row]
    token_writes: list[Row]


class ResultRows(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a `StepResult` that the scheduler reads."""

    step_id: int
    tokens: dict[int, Row]  # of sequences whose samples are only tokens
    samples: dict[int, tuple[SampledToken, ...]]  # of the others
    failures: dict[int, str]
    dead_ends: dict[int, str]
    in_grammar: list[int]
    seconds: float
    way: StepWay | None = None
    too_large: str = ""
    unreadable: dict[int, tuple[int, ...]] = {}
    cold_seconds: float = 0.0


class Began(msgspec.Struct, frozen=True, tag=True):
    """A scheduler was made."""

    setup: SchedulerSetup
    tier: TierSetup | None


class Applied(msgspec.Struct, frozen=True, tag=True):
    """A command was executed."""

    now: float
    command: AnyCommand


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The command before it was refused."""


class Expired(msgspec.Struct, frozen=True, tag=True):
    """A step began: expired requests, pins and sessions have ended."""

    now: float


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The scheduler planned, at the time of the last `Expired`; None: nothing can be computed."""

    plan: PlanRows | None


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The oldest plan in flight was committed."""

    now: float
    result: ResultRows


class Recovered(msgspec.Struct, frozen=True, tag=True):
    """The state was broken and discarded. A `Began` follows."""

    reason: str


Entry = Began | Applied | Refused | Expired | Planned | Committed | Recovered


def rows_of_plan(plan: StepPlan) -> PlanRows:
    """O(plan)."""
    return PlanRows(
        plan.step_id,
        plan.retired,
        [
            (a.row, a.seq_id, a.num_prompt, a.max_length, a.seed, a.choice, _checksum(a.tokens))
            for a in plan.admitted
        ],
        [(w.row, w.index, w.block) for w in plan.table_writes],
        [(c.source, c.target) for c in plan.copies],
        [
            (c.seq_id, c.row, c.start, c.length, c.num_samples, c.logits_from, c.drafts, c.part, c.num_parts)
            for c in plan.chunks
        ],
        [(f.parent_row, f.child_row, f.child_seq_id, f.choice) for f in plan.forks],
        [(t.transfer_id, t.block, t.slot, t.name, t.move.value, t.source) for t in plan.transfers],
        [*plan.discarded],
        [(w.row, w.index, w.token) for w in plan.token_writes],
    )


def rows_of_result(result: StepResult) -> ResultRows:
    """O(samples)."""
    tokens, samples = dict[int, Row](), dict[int, tuple[SampledToken, ...]]()
    for seq_id, sampled in result.samples.items():
        if any(one.top for one in sampled):
            samples[seq_id] = sampled
        else:
            tokens[seq_id] = tuple([one.token for one in sampled])
    return ResultRows(
        result.step_id,
        tokens,
        samples,
        {**result.failures},
        {**result.dead_ends},
        sorted(result.in_grammar),
        result.seconds,
        result.way,
        result.too_large,
        {**result.unreadable},
        result.cold_seconds,
    )


def result_of_rows(rows: ResultRows) -> StepResult:
    """The scheduler's inputs; logprobs, prompts' logprobs and embeddings are missing."""
    samples = {seq_id: tuple(map(SampledToken, tokens)) for seq_id, tokens in rows.tokens.items()}
    return StepResult(
        rows.step_id,
        samples | rows.samples,
        failures=rows.failures,
        dead_ends=rows.dead_ends,
        seconds=rows.seconds,
        in_grammar=frozenset(rows.in_grammar),
        way=rows.way,
        too_large=rows.too_large,
        unreadable=rows.unreadable,
        cold_seconds=rows.cold_seconds,
    )


def _checksum(tokens: tuple[int, ...]) -> int:
    return zlib.crc32(array("I", tokens).tobytes())


class Recorder:
    """Writes a recording. Only the engine's thread calls it. Raises nothing once it is open: if the disk
    fails, or the file is full, the recording ends there and the log says so."""

    def __init__(
        self, file: BinaryIO, path: Path, *, bytes_max: int = BYTES_MAX, has_tenants: bool = True
    ) -> None:
        self._file, self._path = file, path
        self._has_tenants = has_tenants
        self._bytes_left = bytes_max
        self._encoder = msgspec.msgpack.Encoder()
        self._flush_at = 0.0
        self._is_open = True
        self._write_bytes(MAGIC)

    @classmethod
    def open(cls, path: Path, *, bytes_max: int = BYTES_MAX, has_tenants: bool = True) -> Recorder:
        """Record into a file of `new_file`. Without `has_tenants` it ends at the first command that names a
        tenant. Raises ConfigError."""
        file = os.fdopen(new_file(path, "record"), "wb", _BUFFER_BYTES)
        return cls(file, path, bytes_max=bytes_max, has_tenants=has_tenants)

    def begin(self, setup: SchedulerSetup, tier: TierSetup | None) -> None:
        """A scheduler is made with these parameters."""
        self._write(Began(setup, tier))

    def apply(self, command: Command[ReplyT], now: float) -> None:
        """The command is executed next."""
        if not self._has_tenants and names_tenant(command):
            self._end("there are tenants now, whose prompts it may not hold (setting record_tenants)")
        self._write(Applied(now, command))  # type: ignore[arg-type]  # one of the union, as any command is

    def refuse(self) -> None:
        """The last command was refused."""
        self._write(Refused())

    def expire(self, now: float) -> None:
        """Record that a step begins."""
        self._write(Expired(now))
        if now >= self._flush_at:
            self._flush_at = now + _FLUSH_S
            self.flush()

    def schedule(self, plan: StepPlan | None) -> None:
        """The plan of this step."""
        if self._is_open:
            self._write(Planned(None if plan is None else rows_of_plan(plan)))

    def commit(self, result: StepResult, now: float) -> None:
        """The result is committed next."""
        if self._is_open:
            self._write(Committed(now, rows_of_result(result)))

    def recover(self, reason: str) -> None:
        """The state was discarded."""
        self._write(Recovered(reason))
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush the buffer and close. Idempotent."""
        self.flush()
        self._end("")

    def _write(self, entry: Entry) -> None:
        if not self._is_open:
            return
        try:
            data = self._encoder.encode(entry)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            self._end(f"an entry has no encoding: {error}")
            return
        is_large = len(data) > ENTRY_BYTES_MAX
        if is_large or _LENGTH_BYTES + len(data) > self._bytes_left:
            self.flush()
            self._end(f"an entry has {len(data):,} bytes" if is_large else "it is full")
        else:
            self._write_bytes(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def _write_bytes(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._end(str(error))
        self._bytes_left -= len(data)

    def flush(self) -> None:
        """Write the buffer to the file, so that a kill loses none of it."""
        if self._is_open:
            try:
                self._file.flush()
            except OSError as error:
                self._end(str(error))

    def _end(self, why: str) -> None:
        if not self._is_open:
            return
        if why:
            log.warning("the recording in %s ends here: %s", self._path, why)
        self._is_open = False
        try:
            self._file.close()
        except OSError as error:
            log.warning("the recording in %s lacks its end: %s", self._path, error)
