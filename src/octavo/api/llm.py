"""The synchronous API, for scripts: prompts in, finished outputs out, as vLLM's `LLM`. It has no thread: the
caller runs the engine's steps.

    from octavo import LLM, SamplingParams
    llm = LLM("smollm2-135m")
    outputs = llm.generate("The capital of France is", SamplingParams(temperature=0))
    print(outputs[0].outputs[0].text)
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Self, Unpack

from octavo.api.driver import Driver
from octavo.api.gather import OutputGatherer
from octavo.api.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
)
from octavo.api.params import BeamSearchParams, PoolingParams, RequestOrder, SamplingParams, order_of
from octavo.api.per_prompt import (
    each_params,
    each_priority,
    refuse_lora,
    refuse_task,
    request_numbers,
    tokenization_of,
)
from octavo.api.progress import UseTqdm, WorkBar
from octavo.api.prompts import (
    Chat,
    Prompt,
    Prompts,
    ReadPrompt,
    chat_options,
    listed_chats,
    listed_prompts,
    read_chat,
    read_prompt,
)
from octavo.api.settings import Settings, resolve_settings
from octavo.api.tokenizer import TokenizerView
from octavo.config import StartOptions
from octavo.engine.core import Engine
from octavo.engine.outputs import Delta
from octavo.errors import InvalidRequest, require_range
from octavo.params import SamplerParams
from octavo.serving.embedding import vector_of
from octavo.serving.start import build_engine
from octavo.text.tokenizer import Tokenizer

# Parameters of a call; `SamplerParams`, the engine's own, pass unchanged.
OneParams = SamplingParams | SamplerParams
Params = OneParams | Sequence[OneParams] | None  # one for all, one for each, or the default ones


class LLM:
    """A model in this process. `model` is an alias, a folder, a .gguf file or a Hugging Face repository;
    `settings` are Octavo's own or vLLM's, by name, on top of `options`; `progress` receives each phase.

    Close it, or use it in a `with` statement; afterwards it raises EngineStopped. Raises ConfigError or
    ModelError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options: StartOptions | None = None,
        progress: Callable[[str], None] = lambda text: None,
        **settings: Unpack[Settings],
    ) -> None:
        name = None if model is None else os.fspath(model)
        resolved = resolve_settings(name, options, settings)
        options = resolved.options
        if options.pace is None:  # steady streams are useless to a caller that waits for all answers
            options = replace(options, pace=False)
        self.started = build_engine(name, options, progress)
        self._driver = Driver(self.started.engine, self.tokenizer, self.started.facts)
        self._seeds = None if resolved.seed is None else random.Random(resolved.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """For benchmarks and tests: the engine whose steps the caller runs."""
        return self._driver.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The engine's own; programs use `get_tokenizer`."""
        return self.started.loaded.tokenizer

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer, by the names of transformers."""
        return TokenizerView(self.tokenizer)

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults. They are neutral: a model's generation_config is not read."""
        return SamplingParams()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        *,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt (text, token ids, or a dict with either) or every one of a list, batched as
        memory allows; outputs in the order of prompts. Lower `priority` runs earlier.

        Raises InvalidRequest before anything runs if a prompt or its parameters are wrong, or while requests
        that were added are unfinished; RequestFailed if one fails; EngineStopped after `close`.
        """
        self._driver.check_open()
        refuse_lora(lora_request)
        listed = listed_prompts(prompts)
        orders = self._orders(sampling_params, len(listed))
        how = tokenization_of(tokenization_kwargs)
        read = [
            read_prompt(prompt, self.tokenizer, add_special_tokens=how.add_special_tokens)
            for prompt in listed
        ]
        orders = [how.applied_to(order) for order in orders]
        found = self._run(read, orders, use_tqdm, each_priority(priority, len(read)))
        return [gathered.output() for gathered in found]

    def chat(
        self,
        messages: Chat | Sequence[Chat] | str,
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: object = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer one chat or every one of a list, rendered with the model's own template. Messages are dicts
        as in OpenAI's API. `tools` are passed to the template; the model's calls stay in the text.

        Raises as `generate`, and InvalidRequest when there is no template, when it refuses a chat, or when a
        message lacks its fields.
        """
        self._driver.check_open()
        refuse_lora(lora_request)
        if chat_template is not None or chat_template_content_format not in ("auto", "string", "openai"):
            raise InvalidRequest(
                "chat_template is given; allowed: None here, and chat_template_kwargs; "
                "LLM(chat_template=...) sets one for all chats",
                param="chat_template",
            )
        chats = listed_chats(messages)
        orders = self._orders(sampling_params, len(chats))
        options = chat_options(add_generation_prompt, continue_final_message, chat_template_kwargs, tools)
        read = [read_chat(chat, options, self.tokenizer) for chat in chats]
        found = self._run(read, orders, use_tqdm, each_priority(priority, len(read)))
        return [gathered.output() for gathered in found]

    def embed(
        self,
        prompts: Prompts,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of one prompt, or of every one of a list: hidden states, pooled. Raises as
        `generate`."""
        self._driver.check_open()
        refuse_lora(lora_request)
        how = tokenization_of(tokenization_kwargs, truncate_prompt_tokens)
        params, card = pooling_params or PoolingParams(), self.started.facts.card
        order = how.applied_to(params.order(card.pooling))
        if params.dimensions is not None:
            most = card.hidden_size
            require_range("dimensions", params.dimensions, 1, most, whole=True, hint="the hidden size")
        listed = listed_prompts(prompts)
        read = [
            read_prompt(prompt, self.tokenizer, add_special_tokens=how.add_special_tokens)
            for prompt in listed
        ]
        outputs = []
        for gathered in self._run(read, [order] * len(read), use_tqdm, [0] * len(read)):
            whole = gathered.output()
            vector = vector_of(gathered.embedding, params.dimensions, normalize=params.normalize)
            embedded = EmbeddingOutput(vector.tolist())
            outputs.append(
                EmbeddingRequestOutput(
                    whole.request_id, embedded, whole.prompt_token_ids, True, whole.num_cached_tokens
                )
            )
        return outputs

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        lora_request: object = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` likeliest outputs of each prompt, best first, searched as transformers does;
        at most `concurrency_limit` prompts at once. Raises as `generate`."""
        self._driver.check_open()
        refuse_lora(lora_request)
        order = params.order()
        read = [read_prompt(prompt, self.tokenizer) for prompt in listed_prompts(prompts)]
        if concurrency_limit is not None:
            require_range("concurrency_limit", concurrency_limit, 1, 10**9, whole=True)
        at_once = max(1, len(read) if concurrency_limit is None else concurrency_limit)
        found: list[OutputGatherer] = []
        for start in range(0, len(read), at_once):
            some = read[start : start + at_once]
            found += self._run(some, [order] * len(some), use_tqdm, [0] * len(some))
        return [found_beams(gathered.output(), self.tokenizer) for gathered in found]

    def encode(self, *given: object, pooling_task: str = "", use_tqdm: UseTqdm = True) -> NoReturn:
        """Refused."""
        refuse_task("encode", "embed(), for embeddings")

    def score(self, *given: object, use_tqdm: UseTqdm = True) -> NoReturn:
        """Refused."""
        refuse_task("score", "embed(): the score of two texts is the dot product of their vectors")

    def classify(self, *given: object, use_tqdm: UseTqdm = True) -> NoReturn:
        """Refused."""
        refuse_task("classify", "generate() with structured_outputs=StructuredOutputsParams(choice=[...])")

    def reward(self, *given: object, use_tqdm: UseTqdm = True) -> NoReturn:
        """Refused."""
        refuse_task("reward", "generate() with logprobs")

    def add_request(self, prompt: Prompt, params: OneParams | None = None) -> int:
        """Queue a prompt for a caller of `step` instead of `generate`; returns its request id.

        Raises InvalidRequest, RequestTooLarge, QueueFull or EngineStopped; then nothing was queued.
        """
        self._driver.check_open()
        (order,) = self._orders(params, 1)
        read = read_prompt(prompt, self.tokenizer)
        request = self._driver.new_request(self._cut(read, order), order)
        self._driver.submit(request)
        return request.request_id

    def step(self) -> list[tuple[int, Delta]]:
        """Run one step of the engine; returns (request id, delta) for the added requests that have one.

        A request that fails ends with a delta whose `finish` is ERROR. An exception means that all unfinished
        requests are lost; EngineStopped, that `close` dropped them.
        """
        return self._driver.step()

    def cancel(self, request_id: int | str) -> None:
        """End a request with the next step; unknown ids are ignored, because it may have just finished."""
        self.abort(request_id)

    def abort(self, request_ids: int | str | Iterable[int | str]) -> None:
        """`cancel` for one id or several: as `add_request` returns them, or an output's `request_id`. Raises
        InvalidRequest for other values, and then cancels none."""
        for request_id in request_numbers(request_ids):
            self._driver.cancel(request_id)

    @property
    def num_unfinished(self) -> int:
        """Added requests without their last delta."""
        return self._driver.num_unfinished

    def close(self) -> None:
        """Drop unfinished requests, store kept blocks in the offload tier, if there is one, and end all
        threads. Idempotent."""
        self._driver.close()

    def _orders(self, given: object, count: int) -> list[RequestOrder]:
        """The orders of `count` prompts, with seeds if the engine has one."""
        read: dict[int, RequestOrder] = {}  # by the parameters' identity: most calls have one for all
        each = each_params(given, count)
        for params in each:
            if id(params) not in read:
                read[id(params)] = order_of(params, self.tokenizer)
        orders = [read[id(params)] for params in each]
        seeds = self._seeds
        return orders if seeds is None else [order.with_seed(seeds.getrandbits(63)) for order in orders]

    def _cut(self, prompt: ReadPrompt, order: RequestOrder) -> ReadPrompt:
        """The prompt, truncated as requested."""
        room = self.started.facts.context_length - (order.params.pooling is None)
        return prompt.cut_to(order.truncate_prompt_tokens, room)

    def _run(
        self,
        prompts: Sequence[ReadPrompt],
        orders: Sequence[RequestOrder],
        use_tqdm: UseTqdm,
        priority: Sequence[int],
    ) -> list[OutputGatherer]:
        """Answer all prompts, in order."""
        arrival = time.time()
        found: dict[int, OutputGatherer] = {}
        requests = []
        for prompt, order, rank in zip(prompts, orders, priority, strict=True):
            request = self._driver.new_request(self._cut(prompt, order), order, rank)
            gathered = OutputGatherer(str(request.request_id), prompt.text, request.prompt, order, arrival)
            found[request.request_id] = gathered
            requests.append(request)
        bar = WorkBar("Processed prompts", len(requests), use_tqdm, time.monotonic())

        def take(request_id: int, delta: Delta) -> None:
            gathered = found[request_id]
            gathered.take(delta, time.time())
            read = delta.usage.num_prompt if gathered.finished else 0
            bar.count(ended=int(gathered.finished), input_tokens=read, output_tokens=len(delta.tokens))

        try:
            self._driver.run(requests, take, lambda: bar.draw(time.monotonic()))
        finally:
            bar.close()
        return list(found.values())


def found_beams(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    """The outputs of a search, each with its prompt in front."""
    sequences = []
    for found in output.outputs:
        tokens = [*output.prompt_token_ids, *found.token_ids]
        sequences.append(
            BeamSearchSequence(
                tokens,
                found.logprobs or [],
                found.cumulative_logprob or 0.0,
                tokenizer.decode(tokens, skip_special=False),
                found.finish_reason,
                found.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)
