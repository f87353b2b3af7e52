"""The prompt that a request will have on its replica, and its blocks' names.

The route's own handler runs here over a model whose engine takes nothing: what it would submit is the prompt,
whatever API the request came by, and what it refuses is refused here, in the same words. Grammars are not
compiled: the replica does that. A turn goes on from what its replica keeps, so only the id that it names is
known here.

It knows no replica, and passes nothing on. Prefixes that an operator pinned for all tenants have names of
their own, which are not computed here: such a request is routed as one of its tenant alone.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Event

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from octavo.conversations.conversations import Conversations
from octavo.conversations.responses import Responses
from octavo.conversations.sessions import NEW, Sessions, SessionSupport
from octavo.conversations.turns import Turn
from octavo.engine.answers import GrammarSource
from octavo.engine.host import Receiver
from octavo.engine.no_engine import NoEngine
from octavo.engine.port import Submit
from octavo.grammar import Grammar
from octavo.memory.names import NameChain, hits_max, root_name, salted_root
from octavo.routing.reports import packed, unpacked
from octavo.routing.router import Naming
from octavo.sampling.grammars import CompiledGrammar
from octavo.server.generation import Edge
from octavo.server.metrics import Metrics
from octavo.server.route import Route
from octavo.serving.client import EngineClient
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions
from octavo.types import Request as EngineRequest

_BLOCKS_AT_ONCE = 512  # named before other requests go on: about a millisecond


class _PromptFound(Exception):
    """The handler has come to where it submits this."""

    def __init__(self, request: EngineRequest) -> None:
        super().__init__()
        self.request = request


class _IdNamed(Exception):
    """The request goes on from what is kept under this id."""

    def __init__(self, kept_id: str) -> None:
        super().__init__()
        self.kept_id = kept_id


class PromptReader:
    """Finds prompts with a renderer's tokenizer and template. `waiting_max`: texts of a tenant that wait."""

    def __init__(self, renderer: EngineClient, edge: Edge, waiting_max: int) -> None:
        grammars = renderer.facts.grammars
        facts = replace(renderer.facts, grammars=None if grammars is None else _UncheckedGrammars(grammars))
        host = _NotingHost(frozenset(renderer.tokenizer.stop_ids))
        model = EngineClient(host, renderer.tokenizer, facts, waiting_max)
        model.sessions = _NotingSessions(model)
        self._edge = replace(edge, model=model, metrics=Metrics())

    async def read(self, route: Route, request: Request) -> EngineRequest | str | Response:
        """What the handler would submit, with its prompt; or the id of a session or a stored response that it
        goes on from; or its answer, where that needs no engine. Raises what the handler raises."""
        noted = Request(dict(request.scope), request.receive)  # the handler's stopwatch is not this relay's
        try:
            return await route.handler(self._edge, noted)
        except _PromptFound as found:
            return found.request
        except _IdNamed as named:
            return named.kept_id


class BodyRecorder:
    """A request whose body can be read once, and is kept as it came, to be passed on."""

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self.request = Request(request.scope, self._next)
        self.chunks: list[bytes] = []

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and message.get("body"):
            self.chunks.append(message["body"])
        return message


async def names_of(request: EngineRequest, namings: Mapping[str, Naming]) -> dict[str, Sequence[int]]:
    """The names of the blocks that a prefix hit may cover, in order, by fingerprint, as reports have them.
    O(tokens)."""
    tokens, names = array("I", request.prompt), dict[str, Sequence[int]]()
    for fingerprint, naming in namings.items():
        size, stop = naming.block_size, hits_max(len(tokens), naming.block_size)
        root = root_name(request.tenant.encode(errors="surrogatepass"), *naming.root_parts)
        chain = NameChain(salted_root(root, request.cache_salt), size)
        for begin in range(0, stop, _BLOCKS_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            chain.extend(tokens[: min(stop, begin + _BLOCKS_AT_ONCE) * size])
        names[fingerprint] = unpacked(packed(chain.names))
    return names


class _NotingHost(NoEngine):
    """Ends a handler where it submits."""

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        raise _PromptFound(command.request)


class _UncheckedGrammars:
    """The `GrammarSource` of one who leaves compiling to others."""

    def __init__(self, grammars: GrammarSource) -> None:
        self.token_bytes = grammars.token_bytes

    def known(self, grammar: Grammar) -> CompiledGrammar | None:
        return None

    def check(self, grammar: Grammar, stop: Event | None = None) -> object:
        return None

    def compile(self, grammar: Grammar, stop: Event | None = None) -> CompiledGrammar | None:
        return None

    def close(self) -> None:
        pass


class _NotingSessions(Sessions):
    """Knows no session: the first turn of a new one is a prompt, and any other names its id."""

    def __init__(self, model: EngineClient) -> None:
        super().__init__(model.submitter, model.encoder, model.control, SessionSupport())
        self.responses = _NotingResponses(self._conversations, model)
        self._model = model

    async def turn(
        self, request: EngineRequest, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        if request.session != NEW:
            raise _IdNamed(request.session)
        raise await _first_turn(self._model, request, messages, options)


class _NotingResponses(Responses):
    """Keeps no response: one that goes on from none is a prompt, and any other names that one's id."""

    def __init__(self, conversations: Conversations, model: EngineClient) -> None:
        super().__init__(conversations, 0.0)
        self._model = model

    async def create(
        self, tenant: str, response_id: str, document: bytes, previous_id: str | None = None
    ) -> None:
        pass

    def drop(self, tenant: str, response_id: str) -> None:
        pass

    def find(self, tenant: str, response_id: str) -> bytes:
        raise _IdNamed(response_id)

    async def turn(
        self, request: EngineRequest, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        raise await _first_turn(self._model, request, messages, options)


async def _first_turn(
    model: EngineClient, request: EngineRequest, messages: Sequence[ChatMessage], options: ChatOptions
) -> _PromptFound:
    """Raises as a session's first turn does."""
    prompt = tuple(await model.encode_chat(messages, options, tenant=request.tenant))
    return _PromptFound(model.checked(replace(request, prompt=prompt)))
