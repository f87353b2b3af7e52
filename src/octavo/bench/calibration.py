"""A server's model for the planner: the setup of its scheduler, and the times of its steps.

    recording --fit--> Calibration --planner--> times of hypothetical requests

The source is a recording (`octavo serve --record`) of `octavo bench calibrate` or of a server in production,
which has the duration of each step. It is replayed through the real scheduler, which gives the time of each
request in the engine; `http_s` is the rest of the time that its client measured.

    seconds of a step    terms of `StepWork`, fitted, times a correction by size, times noise, times drift
    between two steps    between_s + between_row_s * sequences that decode

Drift is common to the steps of ten seconds: other programs, the machine's clock. Noise is the rest.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from octavo.engine.port import Command, FinishTransfer
from octavo.engine.recording import (
    Applied,
    Began,
    Committed,
    Expired,
    Planned,
    Recovered,
    result_of_rows,
    rows_of_plan,
)
from octavo.engine.replay import ReplayResult, entries_of
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.engine.virtual_loop import VirtualLoop
from octavo.errors import ConfigError, OctavoError
from octavo.memory.quota import TenantPolicy
from octavo.step.step_times import LeastSquares, StepWork, work_of
from octavo.types import Transfer

STEPS_MIN, STEPS_MAX = 200, 20_000  # measured steps of a calibration
WINDOW_S = 10.0
HELD_OUT = 5  # every fifth window is held out, to measure the error
_GAP_MAX_S = 0.1  # between two steps; a longer one was a sleep
_SAMPLES_MIN = 8  # of a size, for a correction
_CORRECTION_MAX = 1.5


class MeasuredStep(msgspec.Struct, frozen=True, array_like=True):
    """A step: its end on the engine's clock, its duration and its work."""

    at: float
    seconds: float
    decoding: int
    guesses: int
    prompt: int
    read: int
    prompt_read: int

    @property
    def work(self) -> StepWork:
        """What the step computed."""
        return StepWork(self.decoding, self.guesses, self.prompt, self.read, self.prompt_read)


class Calibration(msgspec.Struct, frozen=True):
    """Stored as JSON; see the module's docstring. Times are in seconds."""

    version: int
    setup: SchedulerSetup
    tier: TierSetup | None
    depth: int  # plans in flight when the next one is made
    terms: list[float]  # of `LeastSquares`
    corrections: dict[str, float]  # of sizes
    noise: dict[str, list[float]]  # by `kind_of` a step: log(measured / predicted)
    drifts: list[float]  # the same for windows
    between_s: float
    between_row_s: float
    http_s: float  # from a client's request to the engine, and back
    moves: dict[str, float]  # for a block, by `move_of` its transfer
    rows_max: int  # sequences that decoded in one step
    positions_max: int  # of a step
    num_steps: int
    error_p50: float  # |log(measured / predicted)| of the held-out steps
    error_p95: float
    tenants: tuple[TenantPolicy, ...] = ()  # not measured: hypothetical ones of a planner

    def predicted_s(self, work: StepWork) -> float:
        """The time of a step, without noise and drift."""
        return _by_terms(self.terms, work) * self.corrections.get(size_of(work), 1.0)

    def between(self, work: StepWork) -> float:
        """Seconds from the end of a step to the start of the next one."""
        return self.between_s + self.between_row_s * work.decoding


VERSION = 4
_NOISE_MAX = 2000  # of each kind


def kind_of(work: StepWork) -> str:
    """The kind of a step: steps of one kind have similar noise."""
    return "prompt" if work.prompt else "decode"


def move_of(transfer: Transfer, tier: TierSetup | None) -> str:
    """The kind of a transfer, which decides its time: "load host", "store disk"."""
    is_host = tier is not None and transfer.slot < tier.num_host
    return f"{transfer.move.value} {'host' if is_host else 'disk'}"


def size_of(work: StepWork) -> str:
    """The size class of a correction: each small number of sequences, larger ones by powers of two."""
    rows = work.decoding + work.guesses
    kind = rows if rows <= 4 else 1 << (rows - 1).bit_length()
    return f"{kind}+{1 << (work.prompt - 1).bit_length()}" if work.prompt else f"{kind}"


def _by_terms(terms: Sequence[float], work: StepWork) -> float:
    return sum(term * x for term, x in zip(terms, LeastSquares.features(work), strict=True))


@dataclass(slots=True)
class _ReplayedRecording:
    """A recording that is replayed, and its measurements."""

    steps: list[MeasuredStep] = field(default_factory=list)
    gaps: list[tuple[int, float]] = field(default_factory=list)  # sequences that decode, seconds
    first_s: list[float] = field(default_factory=list)  # of requests: to the first token, in the engine
    depth: int = 0  # plans in flight when the next one was made
    moves: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    began: Began | None = None
    loop: VirtualLoop | None = None
    _now: float = 0.0
    _committed: float | None = None
    _had_work: bool = False
    _moving: dict[int, str] = field(default_factory=dict)  # transfers in flight

    def take(self, entry: object) -> None:
        if isinstance(entry, Began):
            self.began, self._had_work = entry, False
            if self.loop is None:
                self.loop = VirtualLoop(entry.setup, entry.tier)
            else:
                self.loop.begin_again(entry.setup, entry.tier)
        elif self.loop is not None:
            self._take(entry, self.loop)

    def _take(self, entry: object, loop: VirtualLoop) -> None:
        match entry:
            case Applied(now, command):
                if isinstance(command, FinishTransfer):
                    kind = self._moving.pop(command.done.transfer_id, None)
                    if kind is not None and command.done.ok:
                        self.moves[kind].append(command.done.seconds)
                with suppress(OctavoError):  # refused at the recording, too
                    loop.answer(cast("Command[object]", command), now)
            case Expired(now):
                self._now = now
                loop.scheduler.expire(now)
            case Planned(recorded):
                plan = loop.schedule(self._now)
                if (None if plan is None else rows_of_plan(plan)) != recorded:
                    raise ConfigError(
                        "this version does not reproduce the recording's plans (octavo replay shows where); "
                        "allowed: a recording of this version"
                    )
                self.depth = max(self.depth, len(loop.in_flight) - 1)
                tier = None if self.began is None else self.began.tier
                for transfer in () if plan is None else plan.transfers:
                    self._moving[transfer.transfer_id] = move_of(transfer, tier)
            case Committed(now, rows):
                self._commit(now, rows.seconds, loop)
                for update in loop.commit(result_of_rows(rows), now):
                    phases = update.usage.phases
                    if update.finish is not None and phases is not None and phases.first_token is not None:
                        self.first_s.append(phases.first_token - phases.arrived)
                self._committed, self._had_work = now, loop.scheduler.has_work
            case Recovered():
                loop.in_flight.clear()
            case _:
                pass

    def _commit(self, now: float, seconds: float, loop: VirtualLoop) -> None:
        plan = loop.in_flight[0]
        if seconds <= 0.0 or plan.has_cold or not plan.chunks:
            return
        work = work_of(plan.chunks)
        counts = (work.decoding, work.guesses, work.prompt, work.read, work.prompt_read)
        self.steps.append(MeasuredStep(now, seconds, *counts))
        if self._had_work and self._committed is not None:
            gap = now - self._committed - seconds
            if 0.0 <= gap < _GAP_MAX_S:
                self.gaps.append((work.decoding, gap))


def fit(recording: Path, first_token_s: Sequence[float] = ()) -> Calibration:
    """Fit a calibration to a recording. `first_token_s`: times to first tokens that clients measured. Raises
    ConfigError if the file is not a recording, or has too few measured steps."""
    # 1. Replay the recording.
    run = _ReplayedRecording()
    try:
        with recording.open("rb") as file:
            for entry in entries_of(file, recording, ReplayResult()):
                run.take(entry)
    except OSError as error:
        raise ConfigError(f"{recording} cannot be read: {error.strerror}") from None
    if run.began is None or run.loop is None or len(run.steps) < STEPS_MIN:
        raise ConfigError(
            f"{recording} has {len(run.steps):,} measured steps; allowed: {STEPS_MIN:,} or more, with "
            "answers of several requests at once"
        )
    # 2. Measure the error on held-out windows, with a model that is fitted to the others.
    steps = run.steps[-STEPS_MAX:]
    windows = [int((step.at - steps[0].at) / WINDOW_S) for step in steps]
    fitted = [step for step, window in zip(steps, windows, strict=True) if window % HELD_OUT]
    held_out = [step for step, window in zip(steps, windows, strict=True) if window % HELD_OUT == 0]
    model = _Model.of(fitted if len(fitted) >= STEPS_MIN else steps)
    errors = sorted(abs(model.residual(step)) for step in held_out)
    # 3. Fit the result to all windows.
    model = _Model.of(steps)
    residuals = [model.residual(step) for step in steps]
    drifts = _drift_by_window(windows, residuals, [step.seconds for step in steps])
    between_s, between_row_s = _fit_line(run.gaps)
    http_s = 0.0
    if first_token_s and run.first_s:
        http_s = max(0.0, statistics.median(first_token_s) - statistics.median(run.first_s))
    return Calibration(
        version=VERSION,
        setup=run.began.setup,
        tier=run.began.tier,
        depth=run.depth,
        terms=model.terms,
        corrections=model.corrections,
        noise=_noise_of(model, steps, [drifts[window] for window in windows]),
        drifts=list(drifts.values()),
        between_s=between_s,
        between_row_s=between_row_s,
        http_s=http_s,
        moves={kind: statistics.median(seconds) for kind, seconds in run.moves.items()},
        rows_max=max(step.decoding for step in steps),
        positions_max=max(step.work.positions for step in steps),
        num_steps=len(steps),
        error_p50=errors[len(errors) // 2],
        error_p95=errors[int(0.95 * (len(errors) - 1))],
    )


@dataclass(slots=True)
class _Model:
    """The part of a calibration that predicts a step's time."""

    terms: list[float]
    corrections: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Sequence[MeasuredStep]) -> _Model:
        """Fitted to these steps, all with equal weight."""
        linear = LeastSquares(kept=1.0)
        for step in steps:
            linear.add(step.work, step.seconds)
        for _ in range(200):
            linear.solve()
        model = cls([*linear.terms])
        by_size = defaultdict[str, list[float]](list)
        for step in steps:
            by_size[size_of(step.work)].append(model.residual(step))
        bound = math.log(_CORRECTION_MAX)
        for size, residuals in by_size.items():
            if len(residuals) >= _SAMPLES_MIN:
                model.corrections[size] = math.exp(min(bound, max(-bound, statistics.median(residuals))))
        return model

    def residual(self, step: MeasuredStep) -> float:
        """log(measured / predicted)."""
        return math.log(step.seconds / max(self.predicted_s(step.work), 1e-9))

    def predicted_s(self, work: StepWork) -> float:
        """The time of a step, without noise and drift."""
        return _by_terms(self.terms, work) * self.corrections.get(size_of(work), 1.0)


def _drift_by_window(
    windows: Sequence[int], residuals: Sequence[float], weights: Sequence[float]
) -> dict[int, float]:
    """The mean residual of each window, weighted by the duration of its steps."""
    sums, totals = defaultdict[int, float](float), defaultdict[int, float](float)
    for window, residual, weight in zip(windows, residuals, weights, strict=True):
        sums[window] += weight * residual
        totals[window] += weight
    return {window: sums[window] / totals[window] for window in sums}


def _noise_of(
    model: _Model, steps: Sequence[MeasuredStep], drifts: Sequence[float]
) -> dict[str, list[float]]:
    """Noise by kind, shifted so that the mean predicted time equals the measured one: long steps vary less
    than short ones."""
    found = dict[str, list[float]]()
    for kind in ("decode", "prompt"):
        own = [(step, drift) for step, drift in zip(steps, drifts, strict=True) if kind_of(step.work) == kind]
        noise = [model.residual(step) - drift for step, drift in own]
        if noise:
            measured = sum(step.seconds for step, _ in own)
            drawn = statistics.fmean(map(math.exp, noise))
            expected = drawn * sum(model.predicted_s(step.work) * math.exp(drift) for step, drift in own)
            shift = math.log(measured / expected)
            found[kind] = [one + shift for one in noise[:: max(1, len(noise) // _NOISE_MAX)]]
    return found


def _fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The constant and the slope of the line that fits these (x, y) best, neither below 0."""
    if not points:
        return 0.0, 0.0
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = min(max(0.0, slope), mean_y / mean_x if mean_x else 0.0)
    return max(0.0, mean_y - slope * mean_x), slope


def write(calibration: Calibration, path: Path) -> None:
    """Write it as JSON, atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".new")
    whole.write_bytes(msgspec.json.encode(calibration))
    whole.replace(path)


def read(path: Path) -> Calibration | None:
    """Read what `write` wrote; None if there is no file, or one of another version."""
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return calibration if calibration.version == VERSION else None
