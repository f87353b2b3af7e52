"""An engine without a thread: its caller runs the steps and receives each request's deltas. For one thread.

Tokenising and the making of outputs are in the layers above. This one has requests, steps, and the losses of
a broken step.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from octavo.api.params import RequestOrder
from octavo.api.prompts import ReadPrompt
from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.core import Engine
from octavo.engine.outputs import Delta
from octavo.engine.port import Cancel, FitRequest, Submit
from octavo.engine.requests import ModelFacts, checked, compile_grammar
from octavo.errors import EngineStopped, InvalidRequest, QueueFull, RequestFailed
from octavo.text.tokenizer import Tokenizer
from octavo.types import FinishReason, Request, Update

Take = Callable[[int, Delta], None]  # receives a request's id, and its delta


class Driver:
    """Requests in, deltas out. After `close` it raises EngineStopped."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, facts: ModelFacts) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._facts = facts
        self._vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.special_ids)
        self._ids = itertools.count(1)
        self._is_closed = False
        self._turn_lock = threading.RLock()  # held by the thread that queues requests or runs steps
        self._assemblers: dict[int, Assembler] = {}  # of queued, unfinished requests

    @property
    def num_unfinished(self) -> int:
        """Queued requests without their last delta."""
        return len(self._assemblers)

    def check_open(self) -> None:
        """Raise EngineStopped after `close`."""
        if self._is_closed:
            raise EngineStopped("this LLM was closed; make another one to go on")

    def new_request(self, prompt: ReadPrompt, order: RequestOrder, priority: int = 0) -> Request:
        """A checked request, not yet queued; lower priorities run earlier. Raises InvalidRequest or
        RequestTooLarge."""
        params = order.params_for(len(prompt.tokens), self._facts.context_length)
        requested = Request(
            next(self._ids),
            tuple(prompt.tokens),
            params,
            n=order.n,
            priority=-priority,
            arrival=self.engine.clock(),
            cache_salt=prompt.cache_salt,
        )
        request = checked(requested, self._facts, self.engine.config.stop_ids)
        with self._alone():
            request = self.engine.apply(FitRequest(request))
        compile_grammar(params, self._facts)  # refused here, and ready when it is queued
        return request

    def submit(self, request: Request) -> None:
        """Queue it. Raises QueueFull or InvalidRequest, and then queues nothing."""
        compiled = compile_grammar(request.params, self._facts)
        with self._alone():
            try:
                self._assemblers[request.request_id] = Assembler(request, self._vocabulary, compiled)
                self.engine.apply(Submit(request))
            except BaseException:
                self._assemblers.pop(request.request_id, None)
                raise
            self.engine.inbox.wake()  # a step may have work now

    def step(self) -> list[tuple[int, Delta]]:
        """Run one step of the engine; returns (request id, delta) for the requests that have one.

        A request that fails ends with a delta whose `finish` is ERROR. An exception means that all unfinished
        requests are lost (EngineStopped: by `close`), except InvalidRequest: another thread runs a step, and
        nothing is lost.
        """
        self.check_open()
        with self._alone():
            try:
                if self.engine.has_work and self.engine.idle:
                    self.engine.inbox.wait()  # for a transfer
                return self._deltas(self.engine.step())
            except BaseException as error:  # ctrl-c too: the state after half a step would fail later calls
                self._forget(error)
                raise

    def run(self, requests: Sequence[Request], take: Take, each_step: Callable[[], None]) -> None:
        """Run all these requests to their end. Raises InvalidRequest while others are unfinished or another
        thread is active, RequestFailed if one fails; then none is left."""
        with self._alone():
            self._run(requests, take, each_step)

    def _run(self, requests: Sequence[Request], take: Take, each_step: Callable[[], None]) -> None:
        if self._assemblers:
            raise InvalidRequest(
                f"{len(self._assemblers)} requests that were added are unfinished: call step() until "
                "num_unfinished is 0, then this"
            )
        ranked = sorted(requests, key=lambda request: -request.priority)
        try:
            self._turn(list(reversed(ranked)), take, each_step)
        except RequestFailed:
            raise
        except BaseException as error:  # between two steps; a broken step has left no request
            if self._assemblers or self.engine.has_work:
                self._forget(error)
            raise

    def cancel(self, request_id: int) -> None:
        """End a request with the next step; unknown ids are ignored, because it may have just finished."""
        self.engine.inbox.post(Cancel(request_id))

    def close(self) -> None:
        """Drop unfinished requests, store kept blocks in the offload tier, if there is one, and end all
        threads. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._assemblers.clear()
        for request_id in self.engine.request_ids:
            self.engine.apply(Cancel(request_id))
        while self.engine.has_transfers:
            if self.engine.idle:
                self.engine.inbox.wait()
            self.engine.step()
        self.engine.close()
        self._tokenizer.close()
        if self._facts.grammars is not None:
            self._facts.grammars.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For the thread that queues or runs steps; another one is refused, without waiting."""
        if not self._turn_lock.acquire(blocking=False):
            raise InvalidRequest(
                "another thread is in generate, chat, embed, beam_search, add_request or step of this LLM; "
                "allowed: one thread at a time; call it from one thread, or use AsyncLLM, which takes many "
                "requests at once"
            )
        try:
            yield
        finally:
            self._turn_lock.release()

    def _deltas(self, updates: Sequence[Update]) -> list[tuple[int, Delta]]:
        deltas = []
        for update in updates:
            assembler = self._assemblers.get(update.request_id)
            delta = None if assembler is None else assembler.take(update)
            if assembler is None or delta is None:
                continue  # tokens after a stop string
            deltas.append((update.request_id, delta))
            if delta.finish is not None and update.finish is None:
                self.engine.inbox.post(Cancel(update.request_id, update.choice))
            if assembler.finished:
                del self._assemblers[update.request_id]
        return deltas

    def _turn(self, unsent: list[Request], take: Take, each_step: Callable[[], None]) -> None:
        """Run steps until all is done. The bounded queue is refilled as it empties, so any number of prompts
        may be given."""
        engine = self.engine
        while unsent or engine.has_work:
            while unsent and engine.num_waiting < engine.config.max_rows:
                try:
                    self.submit(unsent[-1])
                except QueueFull:  # compiled grammars of running requests use all their memory
                    if not self._assemblers:
                        raise
                    break
                unsent.pop()
            for request_id, delta in self.step():
                if delta.finish in (FinishReason.ERROR, FinishReason.DEAD_END):
                    self._abandon()
                    raise RequestFailed(delta.error)
                take(request_id, delta)
            each_step()

    def _abandon(self) -> None:
        self._assemblers.clear()
        for request_id in self.engine.request_ids:
            self.cancel(request_id)
        while self.engine.has_work:
            self.step()

    def _forget(self, error: BaseException) -> None:
        """Forget every unfinished request."""
        self._assemblers.clear()
        self.engine.recover(error)
