"""Computes the prompt of a request and the names of its blocks, as its replica will.

The route's own handler runs over a model whose engine accepts nothing. What the handler would submit is the
prompt, for every API; what it refuses is refused with the same text. Grammars are not compiled: the replica
does that. The history of a turn is on its replica, so of a turn only the session's or response's id is found.

Nothing is sent here. Prefixes that an operator pinned for all tenants have names of their own, which are not
computed: such a request is routed by its tenant's names.
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
from octavo.memory.quota import SHARED
from octavo.routing.reports import pack_names, unpack_names
from octavo.routing.router import NamingScheme
from octavo.sampling.grammars import CompiledGrammar
from octavo.server.generation import Edge
from octavo.server.metrics import Metrics
from octavo.server.route import Route
from octavo.serving.client import EngineClient
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions
from octavo.types import Request as EngineRequest

_BLOCKS_AT_ONCE = 512  # hashed before the event loop runs other requests: about a millisecond


class _PromptFound(Exception):
    """The handler would submit this request."""

    def __init__(self, request: EngineRequest) -> None:
        super().__init__()
        self.request = request


class _IdNamed(Exception):
    """The request continues a session or a response with this id."""

    def __init__(self, kept_id: str) -> None:
        super().__init__()
        self.kept_id = kept_id


class PromptReader:
    """Finds prompts with a renderer's tokenizer and template. `waiting_max`: queued texts of a tenant."""

    def __init__(self, renderer: EngineClient, edge: Edge, waiting_max: int) -> None:
        grammars = renderer.facts.grammars
        facts = replace(renderer.facts, grammars=None if grammars is None else _UncheckedGrammars(grammars))
        host = _CapturingHost(frozenset(renderer.tokenizer.stop_ids))
        model = EngineClient(host, renderer.tokenizer, facts, waiting_max)
        model.sessions = _CapturingSessions(model)
        self._edge = replace(edge, model=model, metrics=Metrics())

    async def read(self, route: Route, request: Request) -> EngineRequest | str | Response:
        """The request that the handler would submit, with its prompt; or the id of the session or stored
        response that it continues; or the answer, if that needs no engine. Raises what the handler raises."""
        copy = Request(dict(request.scope), request.receive)  # the handler's timings stay out of the relay's
        try:
            return await route.handler(self._edge, copy)
        except _PromptFound as found:
            return found.request
        except _IdNamed as named:
            return named.kept_id


class BodyRecorder:
    """A request whose body is recorded as it is read, to be sent on unchanged."""

    def __init__(self, request: Request) -> None:
        self._receive = request.receive
        self.request = Request(request.scope, self._next)
        self.chunks: list[bytes] = []

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and message.get("body"):
            self.chunks.append(message["body"])
        return message


async def names_of(request: EngineRequest, namings: Mapping[str, NamingScheme]) -> dict[str, Sequence[int]]:
    """By fingerprint, the names of the blocks that a prefix hit may cover, in the form of reports.
    O(tokens)."""
    tokens, names = array("I", request.prompt), dict[str, Sequence[int]]()
    for fingerprint, naming in namings.items():
        size, stop = naming.block_size, hits_max(len(tokens), naming.block_size)
        root = root_name(request.tenant.encode(errors="surrogatepass"), *naming.root_parts)
        chain = NameChain(salted_root(root, request.cache_salt), size)
        if naming.shared and not request.cache_salt:
            chain.begin_with_shared(_shared_names(tokens[: stop * size], naming))
        for begin in range(0, stop, _BLOCKS_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            chain.extend(tokens[: min(stop, begin + _BLOCKS_AT_ONCE) * size])
        names[fingerprint] = unpack_names(pack_names(chain.names))
    return names


def _shared_names(tokens: array[int], naming: NamingScheme) -> list[bytes]:
    """The leading names that the operator shares with all tenants. O(all shared names)."""
    chain = NameChain(root_name(SHARED.encode(), *naming.root_parts), naming.block_size)
    chain.extend(tokens[: len(naming.shared) * naming.block_size])
    is_shared = [name in naming.shared for name in unpack_names(pack_names(chain.names))]
    return chain.names[: is_shared.index(False) if False in is_shared else None]


class _CapturingHost(NoEngine):
    """Ends a handler when it submits."""

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        raise _PromptFound(command.request)


class _UncheckedGrammars:
    """A `GrammarSource` that compiles nothing."""

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


class _CapturingSessions(Sessions):
    """The first turn of a new session is a prompt; of any other turn the id is found."""

    def __init__(self, model: EngineClient) -> None:
        super().__init__(model.submitter, model.encoder, model.control, SessionSupport())
        self.responses = _CapturingResponses(self._conversations, model)
        self._model = model

    async def turn(
        self, request: EngineRequest, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        if request.session != NEW:
            raise _IdNamed(request.session)
        raise await _first_turn(self._model, request, messages, options)


class _CapturingResponses(Responses):
    """Stores nothing. A response without a previous one is a prompt; of any other the previous id is
    found."""

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
    """The prompt of a session's first turn, whose errors are raised."""
    prompt = tuple(await model.encode_chat(messages, options, tenant=request.tenant))
    return _PromptFound(model.checked(replace(request, prompt=prompt)))
