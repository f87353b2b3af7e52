"""The synchronous front door, for scripts: prompts in, finished outputs out. No thread; the caller turns the
engine.

from octavo import LLM, SamplingParams
llm = LLM("smollm2-135m")
print(llm.generate(["The capital of France is"], SamplingParams(max_tokens=16, temperature=0))[0].text)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from octavo.config import StartOptions
from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.core import Cancel
from octavo.engine.outputs import ChatMessage, Delta, TokenInfo
from octavo.engine.requests import encode_rendered, make_request, render_chat
from octavo.engine.start import build_engine
from octavo.errors import InvalidRequest, RequestFailed
from octavo.types import FinishReason, Request, SamplingParams, Update, Usage

Prompt = str | Sequence[int]
Message = ChatMessage | Mapping[str, str]


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
    """A model in this process. `model` is an alias, a folder, a .gguf file or a Hugging Face repository."""

    def __init__(
        self,
        model: str | None = None,
        options: StartOptions | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        options = options or StartOptions()
        if options.pace is None:  # whoever waits for all answers gains nothing from steady streams
            options = replace(options, pace=False)
        self.started = build_engine(model, options, progress)
        self.engine = self.started.engine
        self.tokenizer = self.started.loaded.tokenizer
        self._vocabulary = Vocabulary(self.tokenizer.token_bytes, self.tokenizer.special_ids)
        self._num_requests = 0
        self._assemblers: dict[int, Assembler] = {}  # of requests that were added and have not finished

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams], *, n: int = 1
    ) -> list[Output]:
        """Complete every prompt (text or token ids), batched as memory allows; outputs in the order of
        prompts.

        Raises InvalidRequest before anything runs if a prompt or its parameters are wrong, or while requests
        that were added are unfinished; RequestFailed if one fails.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(each)} params for {len(prompts)} prompts; allowed: one, or one each")
        tokens = [self.tokenizer.encode(p) if isinstance(p, str) else list(p) for p in prompts]
        return self._run(tokens, each, n)

    def chat(self, chats: Sequence[Sequence[Message]], params: SamplingParams, *, n: int = 1) -> list[Output]:
        """Answer every chat, rendered with the model's own template. A message may be a dict, as in OpenAI's
        API.

        Raises as `generate`, and InvalidRequest when there is no template, when it refuses a chat, or when a
        message lacks its fields.
        """
        rendered = [render_chat(self.tokenizer, [_message(m) for m in messages]) for messages in chats]
        tokens = [encode_rendered(self.tokenizer, one) for one in rendered]
        return self._run(tokens, [params] * len(tokens), n)

    def close(self) -> None:
        """Drop unfinished requests, store what is to be kept below, if there is anything, and let go of all
        threads."""
        self._assemblers.clear()
        for request_id in self.engine.scheduler.live_requests():
            self.engine.scheduler.cancel(request_id)
        transfers = self.engine.scheduler.transfers
        while transfers.could_store or transfers.in_flight:
            if self.engine.idle:
                self.engine.inbox.wait()
            self.engine.step()
        self.engine.executor.close()
        self.tokenizer.close()

    def add_request(self, prompt: Prompt, params: SamplingParams, *, n: int = 1) -> int:
        """Queue a prompt (text or token ids) for whoever calls `step` instead of `generate`; its request id.

        Raises InvalidRequest, RequestTooLarge or QueueFull; then nothing was queued.
        """
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        request = self._request(tokens, params, n)
        self._submit(request)
        return request.request_id

    def step(self) -> list[tuple[int, Delta]]:
        """Turn the engine once: (request id, what it got) of those that were added; not all get something.

        A request that fails ends with a delta whose `finish` is ERROR. An exception means that all unfinished
        ones are lost.
        """
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

    def _request(self, prompt: Sequence[int], params: SamplingParams, n: int) -> Request:
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

    def _run(self, prompts: list[list[int]], params: list[SamplingParams], n: int) -> list[Output]:
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
            while unsent and len(scheduler.waiting) < scheduler.config.max_rows:
                self._submit(unsent.pop())
            for request_id, delta in self.step():
                if delta.finish is FinishReason.ERROR:
                    self._abandon()
                    raise RequestFailed(delta.error)
                outputs[request_id].choices[delta.choice].extend(delta)

    def _abandon(self) -> None:
        self._assemblers.clear()
        for request_id in self.engine.scheduler.live_requests():
            self.cancel(request_id)
        while self.engine.has_work:
            self.step()

    def _forget(self, error: BaseException) -> None:
        """Every unfinished request is lost."""
        self._assemblers.clear()
        self.engine.recover(error)


def _message(given: Message) -> ChatMessage:
    if isinstance(given, ChatMessage):
        return given
    if (
        isinstance(given, Mapping)
        and isinstance(given.get("role"), str)
        and isinstance(given.get("content"), str)
    ):
        return ChatMessage(given["role"], given["content"], given.get("name"))
    raise InvalidRequest(
        f"a chat message is {given!r:.80}; allowed: ChatMessage, or a dict with role and content as text; "
        "chat() takes a list of chats, each a list of messages",
        param="messages",
    )
