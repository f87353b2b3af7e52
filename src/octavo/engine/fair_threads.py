"""A few threads that tenants share: whose work waits gets the next free thread in turn, not who came first.

    waiting     a: [a1 a2 a3 a4]   b: [b1]         taken: a1, b1, a2, a3, a4

Thus a tenant with many long texts holds another up for as long as one of its texts takes, at most. Work of
one tenant is taken in the order in which it came.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from octavo.errors import EngineStopped, QueueFull

AnswerT = TypeVar("AnswerT")


class FairThreads:
    """Threads begin with the work. `waiting_max` is for each tenant. Any thread may call it."""

    def __init__(self, num_threads: int, waiting_max: int, name: str) -> None:
        self._num_threads = num_threads
        self._waiting_max = waiting_max
        self._name = name
        self._changed = threading.Condition()
        # All below are guarded by _changed. The next tenant first; one without waiting work is not in it.
        self._waiting: OrderedDict[str, deque[_Work[object]]] = OrderedDict()
        self._num_started = 0
        self._closed = False

    def submit(self, tenant: str, work: Callable[[], AnswerT]) -> Future[AnswerT]:
        """Have a thread do it. Raises QueueFull when too much work of the tenant waits, EngineStopped after
        `close`; a future that is cancelled in time is not begun."""
        item = _Work(work)
        with self._changed:
            if self._closed:
                raise EngineStopped("the engine has stopped")
            own = self._waiting.setdefault(tenant, deque())
            if len(own) >= self._waiting_max:
                own = self._waiting[tenant] = deque(one for one in own if not one.future.cancelled())
            if len(own) >= self._waiting_max:
                raise QueueFull(
                    f"{len(own):,} texts wait to be tokenised; allowed: {self._waiting_max:,} "
                    "(settings max_queue and max_seqs); try again shortly"
                )
            own.append(item)  # type: ignore[arg-type]
            if self._num_started < self._num_threads:
                name = f"{self._name}_{self._num_started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._num_started += 1
            self._changed.notify()
        return item.future

    def close(self) -> None:
        """Take no more work, fail what waits, and let the threads end when what they do is done."""
        with self._changed:
            self._closed = True
            left = [item for own in self._waiting.values() for item in own]
            self._waiting.clear()
            self._changed.notify_all()
        for item in left:  # without the lock: who waits is called from here
            item.fail(EngineStopped("the engine has stopped"))

    def _run(self) -> None:
        while (item := self._next()) is not None:
            item.run()
            del item  # it may hold a long text

    def _next(self) -> _Work[object] | None:
        """The next tenant's oldest work, waited for; None when there will be no more."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            tenant, own = self._waiting.popitem(last=False)
            item = own.popleft()
            if own:
                self._waiting[tenant] = own  # behind the others
            return item


class _Work(Generic[AnswerT]):
    def __init__(self, work: Callable[[], AnswerT]) -> None:
        self.future: Future[AnswerT] = Future()
        self._work = work

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            answer = self._work()
        except BaseException as error:  # noqa: BLE001  it belongs to who waits for it
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)
