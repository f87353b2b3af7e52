"""How a test waits: for a condition, never for a time. No other module of the tests sleeps.

    wait_until(condition)     on a thread: another thread, a server or a process makes it hold
    await until(condition)    on an event loop: another task makes it hold, or a thread or process
    await turns(count)        every task that is ready runs, `count` times; no time passes for it

A condition is looked at again and again, so where there is an event to wait on, wait on that. The limit only
ends a test that would hang: it is far above what a loaded machine needs, and no promise depends on it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 60.0  # of every wait that another thread or process ends
_PAUSE_S = 0.001
_EAGER_TURNS = 100  # of an event loop whose tasks are usually through by then


def wait_until(condition: Callable[[], object]) -> None:
    """Let other threads and processes go on until it holds."""
    pause, deadline = threading.Event(), time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        pause.wait(_PAUSE_S)


async def until(condition: Callable[[], object | Awaitable[object]]) -> None:
    """Let other tasks go on until it holds; the condition may be a coroutine function."""
    deadline, turn = time.monotonic() + LIMIT_S, 0
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, "the condition never held"
        turn += 1
        await asyncio.sleep(0 if turn < _EAGER_TURNS else _PAUSE_S)


async def turns(count: int = 1) -> None:
    """Let every task that is ready run until it waits, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
