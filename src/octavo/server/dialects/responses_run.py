"""A response that is being made: read as events, told whole or as a stream, cancelled, and stored at its end.

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
from octavo.server.chat_run import ChatRun
from octavo.server.dialects.responses_answer import OutputWriter
from octavo.server.dialects.responses_tools import Offered
from octavo.server.errors import JsonObject, error_body, message_of
from octavo.server.generation import SESSION_HEADER, Edge
from octavo.server.sse import encode_json
from octavo.types import FinishReason

END_WAIT_S = 1.0  # for the stream to end by itself: its client may have stopped reading


@dataclass(frozen=True, slots=True)
class Conversation:
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


class ResponseRun:
    """One response; whoever holds it sees to it that `close` is called."""

    def __init__(
        self,
        edge: Edge,
        tenant: str,
        response: JsonObject,
        conversation: Conversation,
        run: ChatRun,
        tools: Offered,
    ) -> None:
        self.response = response  # as it is told now
        self.error: OctavoError | None = None  # why it failed
        self._edge = edge
        self._tenant = tenant
        self._conversation = conversation
        self._run = run
        self._id = str(response["id"])
        self._writer = OutputWriter(self._id, conversation.num_own, run, tools)
        self._ended = asyncio.Event()
        self._is_cancelled = False
        self._finish: FinishReason | None = None  # of the engine
        self._why = ""
        self._last_events: list[JsonObject] = []  # from the end on
        self._numbers = itertools.count()
        edge.running.add(tenant, self._id, self)

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers tell of it: no session, for it is none."""
        told = self._run.generation.headers
        return {name: value for name, value in told.items() if name != SESSION_HEADER}

    async def events(self) -> AsyncGenerator[JsonObject, None]:
        """All events, numbered; nothing is raised but bugs of ours."""
        for kind in ("response.created", "response.in_progress"):
            yield self._numbered({"type": kind, "response": self.response})
        try:
            async with aclosing(self._run.steps()) as steps:
                async for step in steps:
                    if self._ended.is_set():
                        break  # another request has ended it, while this client did not read
                    self._finish, self._why = step.piece.delta.finish, step.piece.delta.error
                    # All at once: while one is sent, the writer may be told to finish.
                    for event in list(self._writer.push(step)):
                        yield self._numbered(event)
        except OctavoError as error:
            if not self._is_cancelled:
                self.error = error
        self._end()
        for event in self._last_events:
            yield self._numbered(event)

    async def whole(self) -> JsonObject:
        """The response when it has ended. Raises the error that it failed with, where it has said nothing."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        if self.error is not None:
            raise self.error
        return self.response

    async def end(self) -> None:
        """It ends here, within about a second, and is stored; what it has said stays. A client that reads
        again is told the rest in order."""
        self._is_cancelled = True
        self._run.generation.cancel()
        try:
            await asyncio.wait_for(self._ended.wait(), END_WAIT_S)
        except TimeoutError:
            self.close()

    def close(self) -> None:
        """Its client has all of it, or has left, which cancels it."""
        self._run.generation.cancel()
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
        self._edge.running.remove(self._tenant, self._id)
        if self.response["store"]:
            document = document_of(self.response, self._conversation.items)
            self._edge.model.sessions.responses.attach(self._tenant, self._id, document)
        self._ended.set()
        self._last_events = [*events, *self._endings(str(last["status"]))]

    def _endings(self, status: str) -> Iterator[JsonObject]:
        """The events of the response as a whole."""
        if self.error is not None:
            told = error_body(self.error)["error"]
            assert isinstance(told, dict)
            yield {"type": "error"} | {name: told[name] for name in ("code", "message", "param")}
        kind = "incomplete" if status == "cancelled" else status
        yield {"type": f"response.{kind}", "response": self.response}

    def _last(self, finish: FinishReason | None, why: str) -> JsonObject:
        """The fields that say how it ended."""
        if self.error is not None:
            return _failed(message_of(self.error))
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
            **generation.told_cut(),
        }

    def _numbered(self, event: JsonObject) -> JsonObject:
        return event | {"sequence_number": next(self._numbers)}


def _failed(why: str) -> JsonObject:
    return {"status": "failed", "error": {"code": "server_error", "message": why}}
