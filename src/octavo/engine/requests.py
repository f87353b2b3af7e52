"""From what a client asks to a checked Request: everything that can be refused is refused here."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event

from octavo.engine.answers import TAIL_TOKENS
from octavo.engine.core import Engine
from octavo.engine.model_card import ModelCard
from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest, RequestTooLarge, require_range, shown
from octavo.grammar import ThinkingState
from octavo.memory.capacity import Capacity
from octavo.params import CACHE_SALT_CHARS_MAX, NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.retention.limits import check_fits, tokens_that_fit
from octavo.sampling.grammars import CompiledGrammar, Grammars
from octavo.sampling.guides import needs_guide
from octavo.text.control import Rendered
from octavo.text.named_templates import GIVE_ONE
from octavo.text.tokenizer import Tokenizer
from octavo.types import DEFAULT_CHAT, ChatOptions, Request


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a client must know of the model to check a request."""

    name: str
    context_length: int
    vocab_size: int
    grammars: Grammars | None = None  # None: the model's tokens are not known, so no output can follow one
    card: ModelCard = field(default_factory=ModelCard)


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
) -> Rendered:
    """The chat as the model's own template writes it. Raises InvalidRequest as that does, or without one."""
    if tokenizer.chat_template is None:
        raise InvalidRequest(
            f"this model has no chat template; allowed: plain prompts (/v1/completions), {GIVE_ONE}",
            param="messages",
        )
    return tokenizer.chat_template.render(messages, options)


def encode_rendered(tokenizer: Tokenizer, rendered: Rendered) -> list[int]:
    """Its token ids; the template writes its own begin token."""
    if rendered.parts is not None:
        return tokenizer.encode_parts(rendered.parts)
    return tokenizer.encode(rendered.text, add_bos=False)


def make_request(
    request_id: int,
    prompt: Sequence[int],
    params: SamplerParams,
    engine: Engine,
    facts: ModelFacts,
    *,
    n: int = 1,
    priority: int = 0,
    tenant: str = "",
    timeouts: Timeouts = NO_TIMEOUTS,
    fills_pin: str = "",
    session: str = "",
    session_ttl: float = 0.0,
    cache_salt: str = "",
) -> Request:
    """A checked Request: token ids in the vocabulary, max_tokens resolved, a missing seed drawn."""
    check_context(len(prompt), facts.context_length, params)  # first: looking at many tokens takes a while
    config, block_size = engine.config, engine.block_size
    capacities = engine.capacities  # read once: the engine's thread replaces it
    hard, everything = capacities.hard, capacities.everything
    if fills_pin or session:
        # It may take the blocks that are kept for it, or are its own; the engine checks that again.
        hard = everything = Capacity(hard.num_blocks, {}, {})
    # What is kept of idle sessions gives way to what was asked for, and to the prompt, but not to a guess.
    fits = tokens_that_fit(len(prompt), params, everything.room(tenant), block_size)
    if fits < 1:
        fits = tokens_that_fit(len(prompt), params, hard.room(tenant), block_size)
    left = facts.context_length - len(prompt)
    is_bounded = params.max_tokens is not None and params.max_tokens <= left  # more is a bound, not a demand
    max_tokens = params.max_tokens if is_bounded and params.max_tokens else max(1, min(left, fits))
    check_tokens("prompt", prompt, facts.vocab_size)
    check_tokens("stop_token_ids", params.stop_token_ids, facts.vocab_size)
    check_tokens("logit_bias", [token for token, _ in params.logit_bias], facts.vocab_size)
    check_masks(params, facts.vocab_size, config.stop_ids)
    check_guide(params, facts)
    params = _with_state(params, prompt, facts)
    if params.grammar is not None:
        params = replace(params, grammar=params.grammar.of_tenant(tenant))
    require_range("length of cache_salt", len(cache_salt), 0, CACHE_SALT_CHARS_MAX, param="cache_salt")
    if params.beams is not None:
        require_range("beam_width", params.beams.width, 1, facts.vocab_size, hint="the vocabulary")
    seed = params.seed if params.seed is not None else secrets.randbits(63)
    request = Request(
        request_id,
        tuple(prompt),
        params,
        max_tokens,
        seed,
        n,
        tenant,
        priority,
        engine.clock(),
        timeouts,
        fills_pin,
        session,
        session_ttl,
        cache_salt,
    )
    check_fits(request, config, hard, 0, block_size)
    return request


def check_guide(params: SamplerParams, facts: ModelFacts) -> None:
    """Raise InvalidRequest where an output must be led, and the model's tokens are not known."""
    if needs_guide(params) and facts.grammars is None:
        name = "max_thinking_tokens" if params.grammar is None else params.grammar.param
        raise InvalidRequest(f"{name} needs the model's tokens as text, which are not known here", param=name)


def compile_grammar(
    params: SamplerParams, facts: ModelFacts, tenant: str = "", stop: Event | None = None
) -> CompiledGrammar | None:
    """The compiled grammar that an output must follow, if any, to be held until the request ends. Raises
    InvalidRequest, QueueFull, TrialStopped. May take long the first time: not for the event loop."""
    check_guide(params, facts)
    if params.grammar is None:
        return None
    assert facts.grammars is not None
    return facts.grammars.compile(params.grammar.of_tenant(tenant), stop)


def _with_state(params: SamplerParams, prompt: Sequence[int], facts: ModelFacts) -> SamplerParams:
    """Where its output begins is told by the end of the prompt."""
    thinking = params.thinking
    if thinking is None or thinking.state is not None or facts.grammars is None:
        return params
    tail = b"".join(map(facts.grammars.token_bytes, prompt[-TAIL_TOKENS:]))
    state = thinking.state_after(tail)
    return replace(params, thinking=None if state is ThinkingState.NONE else replace(thinking, state=state))


def check_context(num_tokens: int, context_length: int, params: SamplerParams | None = None) -> None:
    """Raise RequestTooLarge unless a prompt of so many tokens leaves room for one more, or, where its
    embedding is wanted, fits itself."""
    is_pooled = params is not None and params.pooling is not None
    allowed = context_length if is_pooled else context_length - 1
    if num_tokens > allowed:
        follows = "" if is_pooled else ", so that one can follow"
        # "maximum context length" are the words by which clients know that a larger model may do.
        raise RequestTooLarge(
            f"the prompt has {num_tokens:,} tokens; allowed: {allowed:,}{follows}: "
            f"this model's maximum context length is {context_length:,} tokens (setting context_length)",
            param="prompt",
            code="context_length_exceeded",
        )


def check_tokens(param: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest unless every id is in the vocabulary. O(n), without a Python loop."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"token id {shown(wrong)} in {param}; allowed: 0 to {vocab_size - 1:,} (the vocabulary)",
            param=param,
        )


def check_masks(params: SamplerParams, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Raise InvalidRequest unless all ids are in the vocabulary and a token is left to be sampled, whatever
    was sampled before."""
    check_tokens("banned_sequences", list(chain.from_iterable(params.banned_sequences)), vocab_size)
    if params.allowed_token_ids is None:
        return
    check_tokens("allowed_token_ids", params.allowed_token_ids, vocab_size)
    never = {sequence[-1] for sequence in params.banned_sequences}
    if params.min_tokens:
        never |= params.end_ids(stop_ids)
    if never.issuperset(params.allowed_token_ids):
        raise InvalidRequest(
            f"allowed_token_ids has {len(params.allowed_token_ids):,} tokens, and each of them ends one of "
            "banned_sequences (bad_words) or, before min_tokens, the answer; allowed: at least one other",
            param="allowed_token_ids",
        )
