"""A response that is being made: the codec of its events, which may be cancelled, and is stored at its end.

    in_progress -> completed     it ended by itself
                -> incomplete    max_output_tokens, or the end of the context
                -> failed        the engine failed, or a deadline passed
                -> cancelled     another request asked for it, or its client left

What is stored of it is a document: {"response": ..., "items": the conversation before its output}. It has its
last status, and is attached, before any client hears of the end, and may go on from it.
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
from octavo.server.answering import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step
from octavo.server.dialects.responses_answer import OutputWriter
from octavo.server.dialects.responses_tools import OfferedTools
from octavo.server.errors import JsonObject, error_body, message_of
from octavo.server.generation import SESSION_HEADER, Edge
from octavo.server.sse import encode_json, named_event
from octavo.types import FinishReason

END_WAIT_S = 1.0  # for the stream to end by itself: its client may have stopped reading


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """What a response answers. `items` are all, of which the last `num_own` are its request's."""

    items: Sequence[JsonObject]
    num_own: int


def document_of(response: JsonObject, items: Sequence[JsonObject]) -> bytes:
    """As it is stored."""
    return encode_json({"response": response, "items": items})


@dataclass(frozen=True, slots=True)
class Document:
    """A stored response: as it is told, and all items before its output."""

    response: JsonObject
    items: list[JsonObject]

    @property
    def output(self) -> list[JsonObject]:
        """What it said."""
        return cast("list[JsonObject]", self.response["output"])


def parse_document(document: bytes) -> Document:
    """What `document_of` wrote."""
    stored = json.loads(document)
    return Document(stored["response"], stored["items"])


class ResponseRun(AnswerCodec[Step]):
    """One response: what runs, and its codec. Its holder calls `cancel` in the end, whatever happened."""

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
        self.response = response  # as it is now
        self._edge = edge
        self._tenant = tenant
        self._context = context
        self._run = run
        self._id = str(response["id"])
        self._writer = OutputWriter(self._id, context.num_own, run, tools)
        self._ended = asyncio.Event()
        self._is_cancelled = False
        self._error: OctavoError | None = None  # why it failed
        self._finish: FinishReason | None = None  # of the engine
        self._why = ""
        self._last_events: list[JsonObject] = []  # from the end on
        self._numbers = itertools.count()
        edge.running.add(tenant, self._id, self)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer: no session, for it is none."""
        return {name: value for name, value in self._run.headers.items() if name != SESSION_HEADER}

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Those of the chat, until it is cancelled; raises what the chat fails with."""
        try:
            async with aclosing(self._run.steps()) as steps:
                async for step in steps:
                    if self._ended.is_set():
                        break  # another request has ended it, while this client did not read
                    yield step
        except OctavoError as error:
            if not self._is_cancelled:
                self._error = error
                raise

    def begin(self) -> list[JsonObject]:
        """It was created, and runs."""
        kinds = ("response.created", "response.in_progress")
        return [self._numbered({"type": kind, "response": self.response}) for kind in kinds]

    def step(self, step: Step) -> list[JsonObject]:
        """Events of its items."""
        self._finish, self._why = step.delta.finish, step.delta.error
        return [self._numbered(event) for event in self._writer.push(step)]

    def end(self) -> list[JsonObject]:
        """The last item's end, and the response's. It is stored before."""
        self._end()
        return [self._numbered(event) for event in self._last_events]

    def error(self, error: OctavoError) -> list[JsonObject]:
        """The same, with the error."""
        self._error = error
        return self.end()

    def whole(self) -> JsonObject:
        """The response."""
        return self.response

    async def stop(self) -> None:
        """It ends here, within about a second, and is stored; what it has said stays. A client that reads
        again gets the rest in order."""
        self._is_cancelled = True
        self._run.cancel()
        try:
            await asyncio.wait_for(self._ended.wait(), END_WAIT_S)
        except TimeoutError:
            self.cancel()

    def cancel(self) -> None:
        """Its client has all of it, or has left, which cancels it."""
        self._run.cancel()
        if not self._ended.is_set():
            self._is_cancelled = True
            self._end()

    def _end(self) -> None:
        """The end: stored, then told. Again does nothing."""
        if self._ended.is_set():
            return
        last = self._last(self._finish, self._why)
        events = list(self._writer.finish("completed" if last["status"] == "completed" else "incomplete"))
        self.response = self.response | last | {"output": self._writer.output, "usage": self._usage()}
        if self.response["store"]:
            document = document_of(self.response, self._context.items)
            self._edge.model.sessions.responses.attach(self._tenant, self._id, document)
        # Behind it: another front end that finds it running no more finds its document.
        self._edge.running.remove(self._tenant, self._id)
        self._ended.set()
        self._last_events = [*events, *self._endings(str(last["status"]))]

    def _endings(self, status: str) -> Iterator[JsonObject]:
        """The events of the response as a whole."""
        if self._error is not None:
            told = error_body(self._error)["error"]
            assert isinstance(told, dict)
            yield {"type": "error"} | {name: told[name] for name in ("code", "message", "param")}
        kind = "incomplete" if status == "cancelled" else status
        yield {"type": f"response.{kind}", "response": self.response}

    def _last(self, finish: FinishReason | None, why: str) -> JsonObject:
        """The fields that say how it ended."""
        if self._error is not None:
            return _failed(message_of(self._error))
        if self._is_cancelled and finish is None:
            return {"status": "cancelled"}
        if finish is FinishReason.LENGTH:
            return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        if finish is FinishReason.TIMEOUT:
            return _failed(why)
        return {"status": "completed", "completed_at": int(time.time())}

    def _usage(self) -> JsonObject:
        generation = self._run.generation
        usage = generation.usage_of(0)
        told = {} if generation.turn is None else generation.turn.to_json()
        num_prompt = usage.num_prompt or len(self._run.prompt)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": usage.num_cached, "cache_write_tokens": 0},
            "output_tokens": usage.num_output,
            "output_tokens_details": {"reasoning_tokens": self._writer.num_reasoning_tokens},
            "total_tokens": num_prompt + usage.num_output,
            # Ours: tokens of the conversation that were not tokenised again, and why there are none.
            **{name: told[name] for name in ("reused_tokens", "fallback") if name in told},
            **generation.cut_field(),
        }

    def _numbered(self, event: JsonObject) -> JsonObject:
        return event | {"sequence_number": next(self._numbers)}


def _failed(why: str) -> JsonObject:
    return {"status": "failed", "error": {"code": "server_error", "message": why}}
