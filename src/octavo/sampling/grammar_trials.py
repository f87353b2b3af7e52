"""Trials of grammars in expendable processes (`grammar_worker`), before the server compiles them.

    try_grammar --frame--> parent --fork--> child: compile, first mask, 64 tokens --frame--> _read, a thread

A grammar that cannot be followed, exceeds a limit, or ends its child is refused with the reason. The process
starts with the first grammar, and again if it was killed from outside, at most `STARTS_MAX` times a minute.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import EngineStopped, QueueFull, RequestFailed
from octavo.helper_process import HelperEnded, HelperProcess, import_folders

CPU_SECONDS_MAX = 2.0
MASK_SECONDS_MAX = 0.25  # for one mask
WALL_SECONDS_MAX = 60.0  # wall time for those seconds on busy processors
START_SECONDS_MAX = 60.0
SEND_SECONDS_MAX = 10.0  # for the process to read a grammar: its children do not delay it
ADDRESS_SPACE_MAX = 1 << 30
GROWTH_MAX = 128 << 20  # bytes of memory that one compiled grammar may take
STACK_BYTES = 1 << 20
WALK_TOKENS = 64
STARTS_MAX = 6  # in a minute
_WORKER = Path(__file__).with_name("grammar_worker.py")
_TRY, _STOP = b"t", b"s"
_NUMBER_BYTES = 8
_ANSWER_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial. `num_bytes`: memory of the compiled grammar; `lark`: a GBNF grammar in the form
    that is compiled; `why_not`: empty if it can be followed. `is_final`: a second trial would give the same.
    """

    num_bytes: int = 0
    lark: str = ""
    why_not: str = ""
    is_final: bool = True


class TrialStopped(Exception):
    """The caller cancelled the trial."""


class GrammarTrials:
    """Runs trials for one vocabulary. Thread-safe; each caller waits for its own verdict."""

    def __init__(
        self, token_bytes: Sequence[bytes], special_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        settings = {
            "tokens": [token.hex() for token in token_bytes],
            "special_ids": list(special_ids),
            "end_ids": list(end_ids),
            "cpu_seconds": CPU_SECONDS_MAX,
            "mask_seconds": MASK_SECONDS_MAX,
            "memory_bytes": ADDRESS_SPACE_MAX,
            "stack_bytes": STACK_BYTES,
            "walk_tokens": WALK_TOKENS,
        }
        self._settings = json.dumps(settings).encode()
        self._send_lock = threading.Lock()  # guards starting, ending and writing to the process
        self._process: HelperProcess | None = None
        self._finalizer: weakref.finalize | None = None  # type: ignore[type-arg]
        self._starts: deque[float] = deque(maxlen=STARTS_MAX)
        self._is_closed = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards _waiting; the thread that reads takes no other
        self._waiting: dict[int, tuple[HelperProcess, Future[Mapping[str, object]]]] = {}

    @property
    def pid(self) -> int | None:
        """The pid of the process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def try_grammar(
        self,
        grammar: str,
        limits: Mapping[str, object],
        *,
        is_gbnf: bool,
        stop: threading.Event | None = None,
    ) -> Verdict:
        """Whether a grammar, in the library's form or GBNF, can be followed. Raises TrialStopped soon after
        `stop` was set, QueueFull if the machine is too busy, RequestFailed if no process can be started or it
        was killed, EngineStopped after `close`."""
        request = json.dumps({"grammar": grammar, "is_gbnf": is_gbnf, "parser_limits": limits}).encode()
        number, future = next(self._numbers), Future[Mapping[str, object]]()
        with self._send_lock:
            process = self._process or self._start()
            with self._lock:
                self._waiting[number] = process, future
            _send(process, _TRY, number, request)
        deadline = time.monotonic() + WALL_SECONDS_MAX
        while True:
            try:
                return _verdict(future.result(timeout=0.05 if stop is not None else WALL_SECONDS_MAX))
            except TimeoutError:
                is_late = time.monotonic() > deadline
                if not is_late and not (stop is not None and stop.is_set()):
                    continue
            with self._lock:
                self._waiting.pop(number, None)
            with self._send_lock:
                if self._process is process:
                    _send(process, _STOP, number)
            if is_late:
                raise QueueFull(
                    f"the grammar was not tried within {WALL_SECONDS_MAX:.0f} s, because the machine is too "
                    "busy; try again"
                )
            raise TrialStopped

    def close(self) -> None:
        """End the process for good."""
        self._is_closed = True
        with self._send_lock:
            if self._process is not None:
                self._process.kill()  # the reading thread does the rest

    def _start(self) -> HelperProcess:
        if self._is_closed:
            raise EngineStopped("the engine has stopped")
        now = time.monotonic()
        if len(self._starts) == STARTS_MAX and now - self._starts[0] < 60.0:
            raise RequestFailed(
                f"the process that tries grammars was ended {STARTS_MAX} times within a minute, and is not "
                "started again yet; try again later"
            )
        self._starts.append(now)
        try:
            process = HelperProcess(_WORKER, import_folders("octavo", "llguidance"), _ANSWER_BYTES_MAX)
        except OSError as error:
            raise RequestFailed(f"the process that tries grammars did not start: {error}") from error
        try:
            process.send(self._settings, START_SECONDS_MAX)
            process.receive(START_SECONDS_MAX)
        except HelperEnded:
            status = process.end()
            raise RequestFailed(f"the process that tries grammars did not start: {_how(status)}") from None
        self._process = process
        self._finalizer = weakref.finalize(self, process.kill)
        threading.Thread(
            target=_read, args=(weakref.ref(self), process), name="octavo-grammar-trials", daemon=True
        ).start()
        return process

    def _take_answer(self, number: int, answer: Mapping[str, object]) -> None:
        with self._lock:
            _, future = self._waiting.pop(number, (None, None))
        if future is not None:
            future.set_result(answer)

    def _take_end(self, process: HelperProcess) -> None:
        """The process has ended: fail all requests that wait for it."""
        with self._send_lock:  # so that no thread writes to its pipe, whose number may be reused
            if self._process is process:
                self._process = None
                assert self._finalizer is not None
                self._finalizer.detach()
            process.end()
        with self._lock:
            lost = {n: future for n, (its, future) in self._waiting.items() if its is process}
            for number in lost:
                del self._waiting[number]
        for future in lost.values():
            future.set_exception(RequestFailed("the process that tries grammars was ended; try again"))


def _send(process: HelperProcess, kind: bytes, number: int, body: bytes = b"") -> None:
    """Send to a process that may have ended; the reading thread detects that."""
    try:
        process.send(kind + number.to_bytes(_NUMBER_BYTES, "big") + body, SEND_SECONDS_MAX)
    except HelperEnded:
        process.kill()


def _read(trials: weakref.ref[GrammarTrials], process: HelperProcess) -> None:
    """Deliver answers to the waiting callers, until the process ends."""
    try:
        while True:
            frame = process.receive()
            owner = trials()
            if owner is not None:
                number = int.from_bytes(frame[:_NUMBER_BYTES], "big")
                owner._take_answer(number, json.loads(frame[_NUMBER_BYTES:]))
            del owner
    except (HelperEnded, ValueError):
        owner = trials()
        if owner is None:
            process.end()
        else:
            owner._take_end(process)


def _verdict(answer: Mapping[str, object]) -> Verdict:
    status, num_bytes, lark = answer.get("status"), answer.get("bytes"), answer.get("lark", "")
    too_much = Verdict(
        why_not=f"it takes more than {ADDRESS_SPACE_MAX >> 20:,} MiB to compile; allowed: a simpler one"
    )
    if isinstance(status, int):
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGPROF:
            why = f"it takes more than {CPU_SECONDS_MAX:.0f} s to compile; allowed: a simpler one"
            return Verdict(why_not=why, is_final=False)
        if code == -signal.SIGABRT:
            return too_much
        why = f"it ended the process that tried it ({_how(code)}); most likely it is nested too deeply"
        return Verdict(why_not=f"{why}; allowed: a simpler one", is_final=code != -signal.SIGKILL)
    if isinstance(num_bytes, int) and isinstance(lark, str):
        if num_bytes <= GROWTH_MAX:
            return Verdict(num_bytes, lark)
        return Verdict(why_not=f"it takes {num_bytes >> 20:,} MiB of memory; allowed: {GROWTH_MAX >> 20}")
    match answer.get("kind"):
        case "slow":
            why = f"it takes more than {MASK_SECONDS_MAX} s to say which tokens may come next"
            return Verdict(why_not=f"{why}; allowed: a simpler one", is_final=False)
        case "memory":
            return too_much
        case "failed":
            return Verdict(why_not=f"the trial of it failed: {answer.get('error')}", is_final=False)
    return Verdict(why_not=str(answer.get("error") or "it cannot be followed"))


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
