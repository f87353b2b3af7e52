"""The engine's inbox: other threads put commands in, the engine's thread takes them out between two steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic

from octavo.engine.port import Command, FinishTransfer, ReplyT
from octavo.errors import OctavoError
from octavo.types import TransferDone


@dataclass(frozen=True, slots=True)
class Envelope(Generic[ReplyT]):
    """A command, and the future of its reply, if its sender waits for one."""

    command: Command[ReplyT]
    reply: Future[ReplyT] | None

    def fail(self, error: BaseException) -> None:
        """Fail a command that is not executed, unless its sender has disconnected or has its reply."""
        reply = self.reply
        if reply is None or reply.done():
            return
        if reply.running() or reply.set_running_or_notify_cancel():
            reply.set_exception(error)


class Inbox:
    """A first-in, first-out queue. Any thread may call."""

    def __init__(self) -> None:
        self._envelopes: deque[Envelope[object]] = deque()
        self._arrived = threading.Condition()
        self._woken = False
        self._closed: OctavoError | None = None

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """Append; the future is done when the engine has executed it. Cancelling the future before that
        withdraws the command."""
        reply: Future[ReplyT] = Future()
        self._put(Envelope(command, reply))
        return reply

    def post(self, command: Command[ReplyT]) -> None:
        """Append, without a reply. A refusal is dropped."""
        self._put(Envelope(command, None))

    def finish_transfer(self, done: TransferDone) -> None:
        """A transfer has ended."""
        self.post(FinishTransfer(done))

    def wake(self) -> None:
        """End a wait without a command."""
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def drain(self) -> list[Envelope[object]]:
        """Take all commands, oldest first."""
        with self._arrived:
            envelopes, self._envelopes = list(self._envelopes), deque()
        return envelopes

    def put_back(self, envelopes: Iterable[Envelope[object]]) -> None:
        """Return commands that were drained and not executed: they go before all later ones."""
        with self._arrived:
            self._envelopes = deque([*envelopes, *self._envelopes])
            self._arrived.notify()

    def unread(self) -> list[Command[object]]:
        """The queued commands, oldest first."""
        with self._arrived:
            return [envelope.command for envelope in self._envelopes]

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for a command, `wake`, or the timeout."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._envelopes or self._woken, timeout_s)
            self._woken = False

    def close(self, error: OctavoError) -> None:
        """No thread reads it any more: all commands in it, and all later ones, fail with this error."""
        with self._arrived:
            self._closed = error
            envelopes, self._envelopes = self._envelopes, deque()
        for envelope in envelopes:
            envelope.fail(error)

    def _put(self, envelope: Envelope[ReplyT]) -> None:
        with self._arrived:
            error = self._closed
            if error is None:
                self._envelopes.append(envelope)  # type: ignore[arg-type]  # invariant in the type of its reply
                self._arrived.notify()
        if error is not None:
            envelope.fail(error)
