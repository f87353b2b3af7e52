"""A response in progress: the codec of its events. It can be cancelled, and is stored at its end.

    in_progress -> completed     it ended by itself
                -> incomplete    max_output_tokens, or the end of the context
                -> failed        the engine failed, or a deadline passed
                -> cancelled     by another request, or because its client left

The stored document is {"response": ..., "items": the conversation before its output}. It is attached, with
the final status, before any client gets the last event: a client may continue from the response at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from octavo.errors import OctavoError
from octavo.server.answer_driver import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step
from octavo.server.dialects.responses_answer import OutputWriter
from octavo.server.dialects.responses_tools import OfferedTools
from octavo.server.errors import JsonObject, error_body, message_of
from octavo.server.generation import SESSION_HEADER, Edge
from octavo.server.sse import encode_json, named_event
from octavo.types import FinishReason

END_WAIT_S = 1.0  # until a cancelled stream is ended here: its client may have stopped reading


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """The conversation before a response's output. The last `num_own` items are its request's."""

    items: Sequence[JsonObject]
    num_own: int


def document_of(response: JsonObject, items: Sequence[JsonObject]) -> bytes:
    """The document to store."""
    return encode_json({"response": response, "items": items})


@dataclass(frozen=True, slots=True)
class Document:
    """A stored response, and all items before its output."""

    response: JsonObject
    items: list[JsonObject]

    @property
    def output(self) -> list[JsonObject]:
        """The response's own items."""
        return cast("list[JsonObject]", self.response["output"])


def parse_document(document: bytes) -> Document:
    """Read a document of `document_of`."""
    stored = json.loads(document)
    return Document(stored["response"], stored["items"])


class ResponseRun(AnswerCodec[Step]):
    """One response: the running chat, and its codec. The driver calls `cancel` at the end in any case."""

    framing = Framing(named_event)

    def __init__(
        self,
        edge: Edge,
        tenant: str,
        response: JsonObject,
        context: ResponseContext,
        run: ChatRun,
        tools: OfferedTools,
    ) -> None:
        self.response = response  # the current state
        self._edge = edge
        self._tenant = tenant
        self._context = context
        self._run = run
        self._id = str(response["id"])
        self._writer = OutputWriter(self._id, context.num_own, run, tools)
        self._ended = asyncio.Event()
        self._is_cancelled = False
        self._error: OctavoError | None = None  # why it failed
        self._finish: FinishReason | None = None  # the engine's
        self._finish_error = ""
        self._last_events: list[JsonObject] = []  # set at the end
        self._numbers = itertools.count()
        edge.running.add(tenant, self._id, self)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer, without the session's: a response is no session of the client."""
        return {name: value for name, value in self._run.headers.items() if name != SESSION_HEADER}

    async def steps(self) -> AsyncGenerator[Step, None]:
        """The chat's steps until the response ends. Raises the chat's error, unless it was cancelled."""
        try:
            async with aclosing(self._run.steps()) as steps:
                async for step in steps:
                    if self._ended.is_set():
                        break  # another request cancelled it while this client did not read
                    yield step
        except OctavoError as error:
            if not self._is_cancelled:
                self._error = error
                raise

    def begin(self) -> list[JsonObject]:
        """The events before the first step."""
        kinds = ("response.created", "response.in_progress")
        return [self._numbered({"type": kind, "response": self.response}) for kind in kinds]

    def step(self, step: Step) -> list[JsonObject]:
        """Events of its items."""
        self._finish, self._finish_error = step.delta.finish, step.delta.error
        return [self._numbered(event) for event in self._writer.push(step)]

    def end(self) -> list[JsonObject]:
        """Store the response, then return the last item's events and the response's."""
        self._end()
        return [self._numbered(event) for event in self._last_events]

    def error(self, error: OctavoError) -> list[JsonObject]:
        """The event of a response that failed."""
        self._error = error
        return self.end()

    def whole(self) -> JsonObject:
        """The response."""
        return self.response

    async def stop(self) -> None:
        """Cancel and store the response, within about a second; its output so far stays. If its client reads
        on, it gets the rest of the events in order."""
        self._is_cancelled = True
        self._run.cancel()
        try:
            await asyncio.wait_for(self._ended.wait(), END_WAIT_S)
        except TimeoutError:
            self.cancel()

    def cancel(self) -> None:
        """End the response: its client has all of it, or left, in which case it counts as cancelled."""
        self._run.cancel()
        if not self._ended.is_set():
            self._is_cancelled = True
            self._end()

    def _end(self) -> None:
        """Store the response, then make its last events. Idempotent."""
        if self._ended.is_set():
            return
        outcome = self._outcome()
        events = list(self._writer.finish("completed" if outcome["status"] == "completed" else "incomplete"))
        self.response = self.response | outcome | {"output": self._writer.output, "usage": self._usage()}
        if self.response["store"]:
            document = document_of(self.response, self._context.items)
            self._edge.model.sessions.responses.attach(self._tenant, self._id, document)
        # After it: a front end that finds no running response must find the document.
        self._edge.running.remove(self._tenant, self._id)
        self._ended.set()
        self._last_events = [*events, *self._final_events(str(outcome["status"]))]

    def _final_events(self, status: str) -> Iterator[JsonObject]:
        """The events of the response as a whole."""
        if self._error is not None:
            body = error_body(self._error)["error"]
            assert isinstance(body, dict)
            yield {"type": "error"} | {name: body[name] for name in ("code", "message", "param")}
        kind = "incomplete" if status == "cancelled" else status
        yield {"type": f"response.{kind}", "response": self.response}

    def _outcome(self) -> JsonObject:
        """The status, and the fields that explain it."""
        if self._error is not None:
            return _failed(message_of(self._error))
        if self._is_cancelled and self._finish is None:
            return {"status": "cancelled"}
        if self._finish is FinishReason.LENGTH:
            return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        if self._finish is FinishReason.TIMEOUT:
            return _failed(self._finish_error)
        return {"status": "completed", "completed_at": int(time.time())}

    def _usage(self) -> JsonObject:
        generation = self._run.generation
        usage = generation.usage_of(0)
        turn = {} if generation.turn is None else generation.turn.to_json()
        num_prompt = usage.num_prompt or len(self._run.prompt)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": usage.num_cached, "cache_write_tokens": 0},
            "output_tokens": usage.num_output,
            "output_tokens_details": {"reasoning_tokens": self._writer.num_reasoning_tokens},
            "total_tokens": num_prompt + usage.num_output,
            # Ours: tokens of the conversation that were not tokenised again, or why none were reused.
            **{name: turn[name] for name in ("reused_tokens", "fallback") if name in turn},
            **generation.cut_field(),
        }

    def _numbered(self, event: JsonObject) -> JsonObject:
        return event | {"sequence_number": next(self._numbers)}


def _failed(message: str) -> JsonObject:
    return {"status": "failed", "error": {"code": "server_error", "message": message}}
