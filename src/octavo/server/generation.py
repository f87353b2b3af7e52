"""The engine's streams of one HTTP request: one per prompt, cancelled together.

Choices are numbered over all prompts: choice c of prompt p is p * n + c, as OpenAI numbers them.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
from starlette.requests import Request

from octavo.conversations.turns import Turn
from octavo.engine.outputs import Delta, TokenInfo
from octavo.engine.stream import DeltaStream
from octavo.errors import EngineStopped, InvalidRequest, RequestFailed, TimedOut, UnknownModel
from octavo.grammar import Grammar
from octavo.params import SamplerParams
from octavo.routing.slots import with_slot
from octavo.server.errors import JsonObject
from octavo.server.feeds import Feeds
from octavo.server.large_bodies import LargeBodies
from octavo.server.metrics import Metrics, RequestWatch
from octavo.server.openai_schema import UsageOptions
from octavo.server.running import RunningAnswers
from octavo.server.sse import wait_for_disconnect
from octavo.server.tenant_registry import TenantRegistry
from octavo.serving.client import EngineClient
from octavo.types import FinishReason, Usage
from octavo.types import Request as EngineRequest

ResultT = TypeVar("ResultT")

SESSION_HEADER = "X-Octavo-Session"
NOT_ENFORCED_HEADER = "X-Octavo-Not-Enforced"
LET_GO_HEADER = "X-Octavo-Let-Go"  # its former name
CUT_HEADER = "X-Octavo-Max-Tokens-Cut-To"
NOT_ENFORCED_CHARS_MAX = 1000  # of that header
CHAT_HAS_SESSIONS = "on /v1/chat/completions, whose turns make a session"


class ClientGone(Exception):
    """The client disconnected before its answer was complete; a response would not be read."""


@dataclass(frozen=True, slots=True)
class Edge:
    """The context of every route's handler."""

    model: EngineClient
    metrics: Metrics
    feeds: Feeds  # of the live map
    body_bytes_max: int
    large_bodies: LargeBodies
    roster: TenantRegistry | None = None
    started_at: int = 0  # when the server started, in seconds of the epoch
    slot: int | None = None  # of a replica of a cluster: the ids that clients get contain it
    openapi: Callable[[], bytes] = lambda: b"{}"
    docs: Callable[[], bytes] = lambda: b""
    cluster: Callable[[], JsonObject] | None = None  # the replicas; None: no cluster
    running: RunningAnswers = field(default_factory=RunningAnswers)

    def named(self, given: str) -> str:
        """An id as clients get it."""
        return given if self.slot is None else with_slot(self.slot, given)

    def check_model(self, name: str | None) -> None:
        """Raise UnknownModel unless `name` is the served model; leaving it out is allowed."""
        if name is not None and name != self.model.name:
            raise UnknownModel(
                f"there is no model {name[:100]!r} here; this server has: {self.model.name}", param="model"
            )

    def check_tenant(self, name: str) -> None:
        """Raise InvalidRequest unless `name` is a tenant that an operator may name."""
        if self.roster is not None and not self.roster.tenants.has(name):
            raise InvalidRequest(
                f"there is no tenant {name[:80]!r}; allowed: one of the tenants file, or shared",
                param="tenant",
            )


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """A delta with its choice and its prompt."""

    index: int  # of the choice, over all prompts
    prompt: int
    delta: Delta


class Generation:
    """The running streams of one request. Its owner calls `cancel` at the end, in every case."""

    def __init__(
        self,
        streams: Sequence[DeltaStream],
        firsts: Sequence[TokenInfo],
        n: int,
        watch: RequestWatch,
        turn: Turn | None = None,
        *,
        scores_only: bool = False,
        grammar: Grammar | None = None,
        cut_to: int | None = None,
        named: Callable[[str], str] = str,
    ) -> None:
        self._named = named
        self.turn = turn  # of a session, if it is one
        self._cut_to = cut_to  # the tokens left in the context, if max_tokens is more
        self._grammar = grammar  # which its choices follow
        self._scores_only = scores_only  # only the prompt is scored: the engine's token is dropped
        self._streams = streams
        self._firsts = firsts  # by prompt: its first token, for which there are no logits
        self._n = n
        self._watch = watch
        self._usage: dict[int, Usage] = {}  # by choice over all prompts
        self._prompt_infos: list[list[TokenInfo]] = [[] for _ in streams]  # by prompt, as far as received

    @property
    def headers(self) -> dict[str, str]:
        """The engine's id of each prompt's request, as /v1/requests/{id} takes it; the session's id; what of
        a schema is not enforced; max_tokens, if it was cut."""
        ids = [self._named(str(stream.request_id)) for stream in self._streams]
        headers = {"X-Octavo-Request": ",".join(ids)}
        if self._grammar is not None and self._grammar.not_enforced:
            text = _as_header("; ".join(self._grammar.not_enforced))
            headers |= {NOT_ENFORCED_HEADER: text, LET_GO_HEADER: text}
        if self._cut_to is not None:
            headers[CUT_HEADER] = str(self._cut_to)
        return headers if self.turn is None else headers | {SESSION_HEADER: self.turn.session_id}

    def session_field(self) -> JsonObject:
        """The answer's field about the session, if there is one."""
        return {} if self.turn is None else {"session": self.turn.to_json()}

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self._streams) * self._n

    def cancel(self) -> None:
        """Stop everything that still runs; idempotent."""
        for stream in self._streams:
            stream.cancel()
        self._watch.cancel_rest(self.num_choices)

    async def steps(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Every delta of every choice, as it arrives. Raises InvalidRequest for a choice at a dead end,
        RequestFailed or EngineStopped for one that failed, and TimedOut without any output."""
        if len(self._streams) == 1:
            async for delta in self._streams[0]:
                yield self._record(0, delta)
        else:
            async with aclosing(self._merged()) as merged:
                async for prompt, delta in merged:
                    yield self._record(prompt, delta)
        self._watch.finish()

    def _record(self, prompt: int, delta: Delta) -> ChoiceDelta:
        """Count the delta and return it with its choice; raises the error that it ends with."""
        if self._scores_only:
            delta = _without_output(delta)
        index = prompt * self._n + delta.choice
        self._watch.record(index, delta)
        if delta.finish is not None:
            self._check_end(delta)
        self._usage[index] = delta.usage
        self._prompt_infos[prompt].extend(delta.prompt_logprobs)
        return ChoiceDelta(index, prompt, delta)

    def _check_end(self, delta: Delta) -> None:
        """Raise the error of a choice that ended without an answer."""
        match delta.finish:
            case FinishReason.DEAD_END:
                raise InvalidRequest(delta.error, code="dead_end")
            case FinishReason.ERROR:
                raise RequestFailed(delta.error or "the request failed")
            case FinishReason.CANCELLED:
                raise EngineStopped("the request was cancelled because the server is stopping")
            case FinishReason.TIMEOUT if not self._has_output(delta):
                raise TimedOut(delta.error)

    def _has_output(self, delta: Delta) -> bool:
        """Whether there was any output before the timeout."""
        return bool(delta.usage.num_output) or any(usage.num_output for usage in self._usage.values())

    def prompt_infos(self, prompt: int) -> tuple[TokenInfo, ...]:
        """The tokens of a prompt with their logprobs, if requested; the first has none.

        They arrive in slices over several steps, and are complete with the prompt's first output token.
        """
        return (self._firsts[prompt], *self._prompt_infos[prompt])

    def usage_field(self, options: UsageOptions) -> JsonObject:
        """The usage field of a chunk that is not the last; empty unless requested."""
        if options.every:
            return {"usage": self.usage()}
        return {"usage": None} if options.last else {}

    def usage_chunk(self, head: JsonObject, options: UsageOptions) -> Sequence[JsonObject]:
        """The last chunk of a stream; none unless requested."""
        return ({**head, "choices": [], "usage": self.usage()},) if options.last else ()

    def usage_of(self, index: int) -> Usage:
        """The cost of a choice so far."""
        return self._usage.get(index, Usage(0, 0, 0, 0))

    def usage(self) -> JsonObject:
        """OpenAI's usage so far: a prompt counts once for all its choices."""
        leaders = [self._usage[i] for i in range(0, self.num_choices, self._n) if i in self._usage]
        prompt = sum(usage.num_prompt for usage in leaders)
        output = sum(usage.num_output for usage in self._usage.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(usage.num_cached for usage in leaders)},
            # Octavo's fields: the cost in memory. A block that several choices share counts for each.
            "cached_tokens": sum(usage.num_cached for usage in leaders),
            "draft_tokens": sum(usage.num_drafted for usage in self._usage.values()),
            "accepted_draft_tokens": sum(usage.num_accepted for usage in self._usage.values()),
            "preemptions": sum(usage.preemptions for usage in self._usage.values()),
            "blocks_peak": sum(usage.blocks_peak for usage in self._usage.values()),
            "block_seconds": round(sum(usage.block_seconds for usage in self._usage.values()), 3),
            **self.cut_field(),
        }

    def cut_field(self) -> JsonObject:
        """The usage field for a max_tokens that was cut to the context."""
        return {} if self._cut_to is None else {"max_tokens_cut_to": self._cut_to}

    async def _merged(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """The deltas of several prompts, each with its prompt's index, as they arrive."""
        queue: asyncio.Queue[tuple[int, Delta] | BaseException | None] = asyncio.Queue(maxsize=64)
        pumps = [asyncio.create_task(self._pump(p, queue)) for p in range(len(self._streams))]
        try:
            running = len(pumps)
            while running:
                item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(
        self, prompt: int, queue: asyncio.Queue[tuple[int, Delta] | BaseException | None]
    ) -> None:
        try:
            async for delta in self._streams[prompt]:
                await queue.put((prompt, delta))
        except Exception as error:  # noqa: BLE001  the reader of the queue raises it again
            await queue.put(error)
        await queue.put(None)


async def submit_all(
    edge: Edge,
    prompts: Sequence[Sequence[int]],
    wanted: EngineRequest,
    watch: RequestWatch,
    *,
    scores_only: bool = False,
) -> Generation:
    """Submit a request for every prompt, or for none: when one is refused, the others are cancelled."""
    params, n = wanted.params, wanted.n
    watch.record_params(params, n)
    submissions = [
        asyncio.ensure_future(edge.model.submit(replace(wanted, prompt=tuple(prompt)))) for prompt in prompts
    ]
    try:
        streams = await asyncio.gather(*submissions)
    except BaseException:
        for one in submissions:
            one.cancel()
        for answer in await asyncio.gather(*submissions, return_exceptions=True):
            if not isinstance(answer, BaseException):
                answer.cancel()
        raise
    firsts = [TokenInfo(prompt[0], edge.model.token_bytes(prompt[0])) for prompt in prompts]
    return Generation(
        streams,
        firsts,
        n,
        watch,
        scores_only=scores_only,
        grammar=params.grammar,
        cut_to=cut_max_tokens(params, max(map(len, prompts)), edge.model.context_length),
        named=edge.named,
    )


def cut_max_tokens(params: SamplerParams, num_prompt: int, context_length: int) -> int | None:
    """The tokens left in the context after a prompt, if max_tokens is more; else None."""
    left = context_length - num_prompt
    return left if params.max_tokens is not None and params.max_tokens > left else None


def answer_head(prefix: str, kind: str, model: str) -> JsonObject:
    """The fields before the choices in OpenAI's answers and chunks."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }


def _as_header(text: str) -> str:
    """`text` as printable ASCII, cut to the header's limit. Names in it are a client's."""
    safe = json.dumps(text[:NOT_ENFORCED_CHARS_MAX])[1:-1].replace('\\"', '"').replace("\x7f", "?")
    return safe if len(safe) <= NOT_ENFORCED_CHARS_MAX else safe[: NOT_ENFORCED_CHARS_MAX - 3] + "..."


def _without_output(delta: Delta) -> Delta:
    """A delta without its output. A finish by stop is reported as by length."""
    ended = delta.finish in (FinishReason.STOP, FinishReason.LENGTH)
    return replace(
        delta,
        text="",
        tokens=(),
        usage=msgspec.structs.replace(delta.usage, num_output=0),
        finish=FinishReason.LENGTH if ended else delta.finish,
        stop=None,
    )


@asynccontextmanager
async def hold_grammar(
    edge: Edge, request: Request, params: SamplerParams, tenant: str
) -> AsyncGenerator[None]:
    """Compile the grammar that an answer must follow, if any, and hold it while its request is queued. Raises
    ClientGone when the client disconnects, which ends the compilation."""
    held = None
    if params.grammar is not None:
        held = await until_disconnect(request, edge.model.compilers.compiled(params, tenant))
    yield
    del held


def refuse_session(request: Request, allowed: str) -> None:
    """Raise InvalidRequest if the header names a session on a route that has none."""
    if SESSION_HEADER in request.headers:
        raise InvalidRequest(f"the header {SESSION_HEADER} is given; allowed: {allowed}", param="session")


async def until_disconnect(request: Request, work: Coroutine[object, object, ResultT]) -> ResultT:
    """The result of `work`. If the client disconnects first, cancel it and raise ClientGone."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGone
        return worker.result()
    finally:
        watcher.cancel()
        worker.cancel()
        await asyncio.wait({worker, watcher})
