"""Bodies that are costly to parse: beyond a number of items, another process parses them.

    is_large --no--> parsed on the event loop, in a few milliseconds
             --yes-> a queue for each tenant --> one of `HELPERS_MAX` processes (`body_worker`)
                     parsed, checked as its route would --> an error, or the fields that the route reads

An accepted body is returned in pieces, because parsing it in one call would hold the interpreter's lock and
stop every stream. `Route.check` is the check of a route.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import weakref
from asyncio import wrap_future
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from octavo import errors
from octavo.engine.fair_threads import FairThreads
from octavo.errors import InvalidRequest, RequestFailed
from octavo.helper_process import HelperEnded, HelperProcess, HelperTimeout, import_folders
from octavo.server.errors import JsonObject
from octavo.server.json_pieces import from_pieces

ITEMS_MAX: Final = 10_000
HELPERS_MAX: Final = 2
WAITING_MAX: Final = 64  # bodies of a tenant
SECONDS_MAX: Final = 30.0
MEMORY_MAX: Final = 1 << 30
ENDED_MAX: Final = 6  # processes ended by bodies in a minute; then no other is started
ACCEPTED, REFUSED = b"+", b"-"  # how an answer begins

_AT_ONCE_MAX = 1  # bodies of a tenant, where there are tenants
_START_SECONDS_MAX = 60.0
_ANSWER_BYTES_MAX = 64 << 20
_FULL = "{:,} large bodies wait to be read; allowed: {:,}; try again shortly"
_TEXT_BYTES_PER_ITEM, _NUMBER_BYTES_PER_ITEM = 64, 8  # that are parsed as long as one item
_NOT_BETWEEN_ITEMS = bytes(set(range(256)) - set(b",:[{"))
_WORKER = Path(__file__).with_name("body_worker.py")


def is_large(chunks: Sequence[bytes]) -> bool:
    """Whether parsing takes as long as for `ITEMS_MAX` items, by the number of separators and brackets
    outside of strings, of escapes, and of bytes. O(bytes), about a nanosecond each."""
    size = sum(map(len, chunks))
    if size <= ITEMS_MAX:
        return False
    if size // _TEXT_BYTES_PER_ITEM > ITEMS_MAX:
        return True
    body = b"".join(chunks)
    escapes = body.count(b"\\")
    if max(escapes, body.count(b'"') // 2) > ITEMS_MAX:
        return True
    if _num_items(body) + escapes <= ITEMS_MAX:
        return False  # even if none of them is inside a string
    if escapes:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _num_items(b"".join(body.split(b'"')[::2])) + escapes > ITEMS_MAX


def _num_items(outside: bytes) -> int:
    """The most items that text outside of strings can have; long numbers count as several."""
    return max(len(outside.translate(None, _NOT_BETWEEN_ITEMS)), len(outside) // _NUMBER_BYTES_PER_ITEM)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model that a check needs."""

    context_length: int
    vocab_size: int

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """None: they need the tokenizer."""
        return ()


class LargeBodies:
    """Reads large bodies in other processes, which are started on first use."""

    def __init__(self, sizes: ModelSizes) -> None:
        self._sizes = sizes
        # Only one of them is used: a server has named tenants, or none.
        self._threads = FairThreads(HELPERS_MAX, WAITING_MAX, "octavo-body", _FULL)
        self._tenants_threads = FairThreads(HELPERS_MAX, WAITING_MAX, "octavo-body", _FULL, _AT_ONCE_MAX)
        self._idle: list[HelperProcess] = []  # appending and popping are atomic
        self._ended: deque[float] = deque(maxlen=ENDED_MAX)  # times; appending is atomic
        weakref.finalize(self, _end_all, self._idle)

    async def read(self, tenant: str, method: str, path: str, chunks: Sequence[bytes]) -> JsonObject:
        """The fields that the route of this method and path reads. Raises QueueFull, InvalidRequest as the
        route would, and RequestFailed if no process can be started, or too many were ended. Cancelling the
        call removes a body that waits, and kills the process of one that is being parsed."""
        head = json.dumps({"method": method, "path": path}).encode() + b"\n"
        threads = self._tenants_threads if tenant else self._threads
        cancellation = _Cancellation()
        try:
            return await wrap_future(
                threads.submit(tenant, lambda: self._read([head, *chunks], cancellation))
            )
        except asyncio.CancelledError:
            cancellation.set()
            raise

    def close(self) -> None:
        """Stop reading, and end the processes."""
        self._threads.close()
        self._tenants_threads.close()
        _end_all(self._idle)

    def _read(self, request: Sequence[bytes], cancellation: _Cancellation) -> JsonObject:
        """Raises _ReadCancelled if the reader was cancelled."""
        helper = self._pop_idle() or self._start_helper()
        if not cancellation.assign(helper):
            self._idle.append(helper)
            raise _ReadCancelled
        try:
            answer = helper.exchange(request, SECONDS_MAX)
        except HelperTimeout:
            self._ended.append(time.monotonic())
            raise InvalidRequest(
                f"the body took more than {SECONDS_MAX:.0f} s to read; allowed: up to {SECONDS_MAX:.0f} s; "
                "send fewer items, or divide them among several requests",
                code="invalid_json",
            ) from None
        except HelperEnded as error:
            if cancellation.is_set:
                raise _ReadCancelled from None
            self._ended.append(time.monotonic())
            raise InvalidRequest(
                f"the body ended the process that reads it ({error}); allowed: fewer items",
                code="invalid_json",
            ) from None
        if not cancellation.assign(None):
            helper.end()
            raise _ReadCancelled
        self._idle.append(helper)
        if answer[:1] == ACCEPTED:
            return from_pieces(memoryview(answer)[len(ACCEPTED) :])
        refusal = json.loads(answer[len(REFUSED) :])
        raise getattr(errors, refusal.pop("kind"))(**refusal)

    def _pop_idle(self) -> HelperProcess | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _start_helper(self) -> HelperProcess:
        now = time.monotonic()
        if len(self._ended) == ENDED_MAX and now - self._ended[0] < 60.0:
            raise RequestFailed(
                f"the process that reads large bodies was ended {ENDED_MAX} times within a minute, and is "
                "not started again yet; try again later"
            )
        try:
            helper = HelperProcess(
                _WORKER, [*import_folders("octavo"), *filter(None, sys.path)], _ANSWER_BYTES_MAX
            )
            helper.exchange(json.dumps(asdict(self._sizes)).encode(), _START_SECONDS_MAX)
        except (OSError, HelperTimeout, HelperEnded) as error:
            self._ended.append(time.monotonic())
            raise RequestFailed(f"the process that reads large bodies did not start: {error}") from error
        return helper


class _ReadCancelled(Exception):
    """The reader was cancelled."""


class _Cancellation:
    """Cancels the reading of one body, by killing the process that works for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: HelperProcess | None = None
        self.is_set = False

    def set(self) -> None:
        """Kill the process that works for the body, if any; a later `assign` returns False."""
        with self._lock:
            self.is_set = True
            if self._helper is not None:
                self._helper.kill()

    def assign(self, helper: HelperProcess | None) -> bool:
        """Record the process that works for the body, which `set` kills; False if it was set before."""
        with self._lock:
            self._helper = helper
            return not self.is_set


def _end_all(helpers: list[HelperProcess]) -> None:
    while helpers:
        helpers.pop().end()
