"""A few threads that tenants share: the next free thread takes work of the next tenant in turn.

    waiting     a: [a1 a2 a3 a4]   b: [b1]         taken: a1, b1, a2, a3, a4

So a tenant with many long texts delays another by at most one of its texts; by none if a tenant may have
fewer threads at once than there are. Work of one tenant is taken in order of arrival.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from octavo.errors import EngineStopped, QueueFull

AnswerT = TypeVar("AnswerT")

TEXTS_WAIT = (
    "{:,} texts wait to be tokenised; allowed: {:,} (settings max_queue and max_seqs); try again shortly"
)


class FairThreads:
    """Threads start with the first work. `waiting_max` and `at_once_max` are per tenant; `full` is the error
    text for the waiting and the allowed number. Any thread may call it."""

    def __init__(
        self,
        num_threads: int,
        waiting_max: int,
        name: str,
        full: str = TEXTS_WAIT,
        at_once_max: int | None = None,
    ) -> None:
        self._num_threads = num_threads
        self._waiting_max = waiting_max
        self._name = name
        self._full = full
        self._at_once_max = num_threads if at_once_max is None else at_once_max
        self._changed = threading.Condition()
        # The following are guarded by _changed. The next tenant first; all have waiting work.
        self._waiting: OrderedDict[str, deque[_Work[object]]] = OrderedDict()
        self._at_work: Counter[str] = Counter()  # threads by tenant
        self._num_started = 0
        self._closed = False

    def submit(self, tenant: str, work: Callable[[], AnswerT]) -> Future[AnswerT]:
        """Run `work` on a thread. Raises QueueFull when too much work of the tenant waits, EngineStopped
        after `close`; a future that is cancelled in time is not begun."""
        item = _Work(work)
        with self._changed:
            if self._closed:
                raise EngineStopped("the engine has stopped")
            own = self._waiting.setdefault(tenant, deque())
            if len(own) >= self._waiting_max:
                own = self._waiting[tenant] = deque(one for one in own if not one.future.cancelled())
            if len(own) >= self._waiting_max:
                raise QueueFull(self._full.format(len(own), self._waiting_max))
            own.append(item)  # type: ignore[arg-type]
            if self._num_started < self._num_threads:
                name = f"{self._name}_{self._num_started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._num_started += 1
            self._changed.notify()
        return item.future

    def close(self) -> None:
        """Refuse new work, fail waiting work, and let the threads end after their current work."""
        with self._changed:
            self._closed = True
            left = [item for own in self._waiting.values() for item in own]
            self._waiting.clear()
            self._changed.notify_all()
        for item in left:  # without the lock: callbacks run here
            item.fail(EngineStopped("the engine has stopped"))

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            tenant, item = taken
            item.run()
            del item, taken  # it may hold a long text
            with self._changed:
                self._at_work[tenant] -= 1
                if not self._at_work[tenant]:
                    del self._at_work[tenant]
                self._changed.notify()

    def _next(self) -> tuple[str, _Work[object]] | None:
        """Wait for the oldest work of the next tenant that may use one more thread; None: the end."""
        with self._changed:
            while not self._closed:
                tenant = next((one for one in self._waiting if self._at_work[one] < self._at_once_max), None)
                if tenant is not None:
                    break
                self._changed.wait()
            else:
                return None
            own = self._waiting.pop(tenant)
            item = own.popleft()
            if own:
                self._waiting[tenant] = own  # behind the others
            self._at_work[tenant] += 1
            return tenant, item


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
        except BaseException as error:  # noqa: BLE001  it belongs to the waiting caller
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)
