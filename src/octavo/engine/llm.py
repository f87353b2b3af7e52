"""The synchronous front door, for scripts: prompts in, finished outputs out. No thread; the caller turns the
engine.

from octavo import LLM, SamplerParams
llm = LLM("smollm2-135m")
print(llm.generate("The capital of France is", SamplerParams(max_tokens=16, temperature=0))[0].text)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from octavo.config import StartOptions
from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.core import Cancel
from octavo.engine.outputs import ChatMessage, Delta, TokenInfo
from octavo.engine.requests import encode_rendered, make_request, render_chat
from octavo.engine.start import build_engine
from octavo.errors import EngineStopped, InvalidRequest, RequestFailed, as_tokens, is_number, shown
from octavo.params import TOKENS_MAX, SamplerParams
from octavo.types import DEFAULT_CHAT, ChatOptions, FinishReason, Request, Update, Usage

Prompt = str | Sequence[int]
Message = ChatMessage | Mapping[str, str]
Chat = Sequence[Message]
Params = SamplerParams | Sequence[SamplerParams] | None  # one for all, one for each, or the default ones

_PROMPTS = "text, a list of token ids, or a list of such prompts"
_CHATS = "a list of messages, or a list of such chats"


@dataclass(slots=True)
class Completion:
    """One finished choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None
    prompt_logprobs: list[TokenInfo] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))

    def extend(self, delta: Delta) -> None:
        """Append a delta."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.token_ids += [info.token for info in delta.tokens]
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish, self.stop, self.usage = delta.finish, delta.stop, delta.usage


@dataclass(frozen=True, slots=True)
class Output:
    """All choices of one prompt."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Completion, ...]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


class LLM:
    """A model in this process. `model` is an alias, a folder, a .gguf file or a Hugging Face repository.

    Close it, or use it in a `with` statement; after that it raises EngineStopped.
    """

    def __init__(
        self,
        model: str | None = None,
        options: StartOptions | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        options = options or StartOptions()
        if options.pace is None:  # a caller that waits for all answers gains nothing from steady streams
            options = replace(options, pace=False)
        self.started = build_engine(model, options, progress)
        self.engine = self.started.engine
        self.tokenizer = self.started.loaded.tokenizer
        self._vocabulary = Vocabulary(self.tokenizer.token_bytes, self.tokenizer.special_ids)
        self._num_requests = 0
        self._closed = False
        self._assemblers: dict[int, Assembler] = {}  # of requests that were added and have not finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, n: int = 1
    ) -> list[Output]:
        """Complete one prompt (text or token ids) or every one of a list, batched as memory allows; outputs
        in the order of prompts.

        Raises InvalidRequest before anything runs if a prompt or its parameters are wrong, or while requests
        that were added are unfinished; RequestFailed if one fails; EngineStopped after `close`.
        """
        self._check_open()
        each = _prompts(prompts)
        params = _params(params, len(each))
        return self._run([self._tokens(prompt) for prompt in each], params, n)

    def chat(
        self,
        chats: Chat | Sequence[Chat],
        params: Params = None,
        *,
        n: int = 1,
        options: ChatOptions = DEFAULT_CHAT,
    ) -> list[Output]:
        """Answer one chat or every one of a list, rendered with the model's own template. A message may be a
        dict, as in OpenAI's API.

        Raises as `generate`, and InvalidRequest when there is no template, when it refuses a chat, or when a
        message lacks its fields.
        """
        self._check_open()
        each = _chats(chats)
        params = _params(params, len(each))
        rendered = [render_chat(self.tokenizer, messages, options) for messages in each]
        tokens = [encode_rendered(self.tokenizer, one) for one in rendered]
        return self._run(tokens, params, n)

    def close(self) -> None:
        """Drop unfinished requests, store what is to be kept below, if there is anything, and let go of all
        threads. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._assemblers.clear()
        for request_id in self.engine.scheduler.live.live_requests():
            self.engine.scheduler.cancel(request_id)
        transfers = self.engine.scheduler.transfers
        while transfers.could_store or transfers.in_flight:
            if self.engine.idle:
                self.engine.inbox.wait()
            self.engine.step()
        self.engine.executor.close()
        self.tokenizer.close()

    def add_request(self, prompt: Prompt, params: SamplerParams | None = None, *, n: int = 1) -> int:
        """Queue a prompt (text or token ids) for a caller of `step` instead of `generate`; its request id.

        Raises InvalidRequest, RequestTooLarge, QueueFull or EngineStopped; then nothing was queued.
        """
        self._check_open()
        (own,) = _params(params, 1)
        request = self._request(self._tokens(prompt), own, n)
        self._submit(request)
        return request.request_id

    def step(self) -> list[tuple[int, Delta]]:
        """Turn the engine once: (request id, what it got) of those that were added; not all get something.

        A request that fails ends with a delta whose `finish` is ERROR. An exception means that all unfinished
        ones are lost; EngineStopped, that they were lost by `close`.
        """
        self._check_open()
        try:
            if self.engine.has_work and self.engine.idle:
                self.engine.inbox.wait()  # for a transfer
            return self._deltas(self.engine.step())
        except BaseException as error:  # ctrl-c too: what a step left half done would fail every later call
            self._forget(error)
            raise

    def cancel(self, request_id: int) -> None:
        """End a request with the next step; unknown ids are ignored, because it may have just finished."""
        self.engine.inbox.put(Cancel(request_id))

    @property
    def num_unfinished(self) -> int:
        """Requests that were added and have not had their last delta."""
        return len(self._assemblers)

    def _deltas(self, updates: Sequence[Update]) -> list[tuple[int, Delta]]:
        deltas = []
        for update in updates:
            assembler = self._assemblers.get(update.request_id)
            delta = None if assembler is None else assembler.take(update)
            if assembler is None or delta is None:
                continue  # what came behind a stop string
            deltas.append((update.request_id, delta))
            if delta.finish is not None and update.finish is None:
                self.engine.inbox.put(Cancel(update.request_id, update.choice))
            if assembler.finished:
                del self._assemblers[update.request_id]
        return deltas

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStopped("this LLM was closed; make another one to go on")

    def _tokens(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return as_tokens("a prompt", prompt, TOKENS_MAX, of="tokens of a prompt")

    def _request(self, prompt: Sequence[int], params: SamplerParams, n: int) -> Request:
        self._num_requests += 1
        return make_request(self._num_requests, prompt, params, self.engine, self.started.facts, n=n)

    def _submit(self, request: Request) -> None:
        try:
            self._assemblers[request.request_id] = Assembler(request, self._vocabulary)
            self.engine.scheduler.submit(request)
        except BaseException:
            self._assemblers.pop(request.request_id, None)
            raise
        self.engine.inbox.wake()  # a step may find work now

    def _run(self, prompts: Sequence[Sequence[int]], params: list[SamplerParams], n: int) -> list[Output]:
        if self._assemblers:
            raise InvalidRequest(
                f"{len(self._assemblers)} requests that were added are unfinished: call step() until "
                "num_unfinished is 0, then this"
            )
        requests = [self._request(prompt, each, n) for prompt, each in zip(prompts, params, strict=True)]
        outputs = {r.request_id: Output(r.prompt, tuple(Completion() for _ in range(r.n))) for r in requests}
        try:
            self._turn(list(reversed(requests)), outputs)
        except RequestFailed:
            raise
        except BaseException as error:  # between two steps; one that broke has left nothing
            if self._assemblers or self.engine.has_work:
                self._forget(error)
            raise
        return list(outputs.values())

    def _turn(self, unsent: list[Request], outputs: dict[int, Output]) -> None:
        """Step until all is done. The bounded queue is fed as it empties, so any number of prompts may be
        given."""
        scheduler = self.engine.scheduler
        while unsent or self.engine.has_work:
            while unsent and len(scheduler.live.waiting) < scheduler.config.max_rows:
                self._submit(unsent.pop())
            for request_id, delta in self.step():
                if delta.finish is FinishReason.ERROR:
                    self._abandon()
                    raise RequestFailed(delta.error)
                outputs[request_id].choices[delta.choice].extend(delta)

    def _abandon(self) -> None:
        self._assemblers.clear()
        for request_id in self.engine.scheduler.live.live_requests():
            self.cancel(request_id)
        while self.engine.has_work:
            self.step()

    def _forget(self, error: BaseException) -> None:
        """Every unfinished request is lost."""
        self._assemblers.clear()
        self.engine.recover(error)


def _prompts(given: object) -> list[Prompt]:
    """A list of prompts, or one that stands alone."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes | Mapping) or not isinstance(given, Collection):
        raise InvalidRequest(f"prompts is {shown(given)}; allowed: {_PROMPTS}", param="prompt")
    prompts = list(given)
    return [prompts] if prompts and is_number(prompts[0]) else prompts


def _chats(given: object) -> list[list[ChatMessage]]:
    """A list of chats, or one that stands alone."""
    if not isinstance(given, list | tuple):
        raise InvalidRequest(f"chats is {shown(given)}; allowed: {_CHATS}", param="messages")
    chats = [given] if given and isinstance(given[0], ChatMessage | Mapping) else given
    for chat in chats:
        if not isinstance(chat, list | tuple):
            raise InvalidRequest(f"a chat is {shown(chat)}; allowed: {_CHATS}", param="messages")
    return [[_message(message) for message in chat] for chat in chats]


def _params(given: object, count: int) -> list[SamplerParams]:
    """One for each of `count` prompts."""
    if given is None or isinstance(given, SamplerParams):
        return [given or SamplerParams()] * count
    each: list[SamplerParams] = []
    for params in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(params, SamplerParams):
            raise InvalidRequest(
                f"params holds {shown(params)}; allowed: SamplerParams, or a list with one for each prompt",
                param="params",
            )
        each.append(params)
    if len(each) != count:
        raise InvalidRequest(
            f"{len(each)} params for {count} prompts; allowed: one, or one each", param="params"
        )
    return each


def _message(given: Message) -> ChatMessage:
    fields: Mapping[str, object] = {}
    if isinstance(given, ChatMessage):
        fields = {"role": given.role, "content": given.content, "name": given.name}
    elif isinstance(given, Mapping):
        fields = given
    role, content, name = fields.get("role"), fields.get("content"), fields.get("name")
    if isinstance(role, str) and isinstance(content, str) and isinstance(name, str | None):
        return ChatMessage(role, content, name)
    raise InvalidRequest(
        f"a chat message is {shown(given)}; allowed: ChatMessage, or a dict with role and content as text "
        f"(and perhaps a name); chat() takes {_CHATS}",
        param="messages",
    )
