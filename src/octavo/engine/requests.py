"""The model's part of a request: its chat is rendered, and it is checked against vocabulary, context and
grammars. Nothing here knows the pool."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event

from octavo.engine.answers import TAIL_TOKENS, GrammarSource
from octavo.engine.outputs import ChatMessage, ModelCard
from octavo.errors import InvalidRequest, RequestTooLarge, require_range, shown
from octavo.grammar import ThinkingState
from octavo.kv_events.identity import EventSource, Identity
from octavo.params import CACHE_SALT_CHARS_MAX, SamplerParams
from octavo.sampling.grammars import CompiledGrammar
from octavo.sampling.guides import needs_guide
from octavo.text.control import RenderedText
from octavo.text.named_templates import GIVE_ONE
from octavo.text.tokenizer import Tokenizer
from octavo.types import DEFAULT_CHAT, ChatOptions, Request


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of the model that a client needs to check a request."""

    name: str
    context_length: int
    vocab_size: int
    grammars: GrammarSource | None = (
        None  # None: the model's tokens are unknown, so no grammar can be enforced
    )
    card: ModelCard = field(default_factory=ModelCard)
    identity: Identity = field(default_factory=Identity)  # names and tenants for routers
    event_source: EventSource | None = None  # where routers read KV events


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
) -> RenderedText:
    """The chat rendered by the model's own template. Raises InvalidRequest as that does, or without one."""
    if tokenizer.chat_template is None:
        raise InvalidRequest(
            f"this model has no chat template; allowed: plain prompts (/v1/completions), {GIVE_ONE}",
            param="messages",
        )
    return tokenizer.chat_template.render(messages, options)


def checked(request: Request, facts: ModelFacts, stop_ids: frozenset[int]) -> Request:
    """The request, checked against the model: token ids in the vocabulary, an enforceable grammar. Adds a
    seed, drawn if the client gives none, and the state of thinking after its prompt. Raises InvalidRequest or
    RequestTooLarge. The scheduler checks whether it fits the pool."""
    params, prompt, vocab_size = request.params, request.prompt, facts.vocab_size
    check_context(len(prompt), facts.context_length, params)  # first: checking many tokens is slow
    check_tokens("prompt", prompt, vocab_size)
    check_tokens("stop_token_ids", params.stop_token_ids, vocab_size)
    check_tokens("logit_bias", [token for token, _ in params.logit_bias], vocab_size)
    check_masks(params, vocab_size, stop_ids)
    _check_guide(params, facts)
    salt = request.cache_salt
    require_range("length of cache_salt", len(salt), 0, CACHE_SALT_CHARS_MAX, param="cache_salt")
    if params.beams is not None:
        require_range("beam_width", params.beams.width, 1, vocab_size, hint="the vocabulary")
    params = _with_state(params, prompt, facts)
    if params.grammar is not None:
        params = replace(params, grammar=params.grammar.of_tenant(request.tenant))
    seed = params.seed if params.seed is not None else secrets.randbits(63)
    return replace(request, params=params, seed=seed)


def _check_guide(params: SamplerParams, facts: ModelFacts) -> None:
    """Raise InvalidRequest if an output must be constrained, and the model's tokens are unknown."""
    if needs_guide(params) and facts.grammars is None:
        name = "max_thinking_tokens" if params.grammar is None else params.grammar.param
        raise InvalidRequest(f"{name} needs the model's tokens as text, which are not known here", param=name)


def compile_grammar(
    params: SamplerParams, facts: ModelFacts, tenant: str = "", stop: Event | None = None
) -> CompiledGrammar | None:
    """The compiled grammar of an output, if it has one, to be held until the request ends. Raises
    InvalidRequest, QueueFull, TrialStopped. May be slow the first time: not for the event loop."""
    if params.grammar is None:
        return None
    assert facts.grammars is not None  # as `checked` found
    return facts.grammars.compile(params.grammar.of_tenant(tenant), stop)


def _with_state(params: SamplerParams, prompt: Sequence[int], facts: ModelFacts) -> SamplerParams:
    """Set the state at the start of the output from the end of the prompt."""
    thinking = params.thinking
    if thinking is None or thinking.state is not None or facts.grammars is None:
        return params
    tail = b"".join(map(facts.grammars.token_bytes, prompt[-TAIL_TOKENS:]))
    state = thinking.state_after(tail)
    return replace(params, thinking=None if state is ThinkingState.NONE else replace(thinking, state=state))


def check_context(num_tokens: int, context_length: int, params: SamplerParams | None = None) -> None:
    """Raise RequestTooLarge unless a prompt of so many tokens leaves room for one more or, for an embedding,
    fits itself."""
    is_pooled = params is not None and params.pooling is not None
    allowed = context_length if is_pooled else context_length - 1
    if num_tokens > allowed:
        follows = "" if is_pooled else ", so that one can follow"
        # Clients recognise "maximum context length" as the sign that a larger model may do.
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
    """Raise InvalidRequest unless all ids are in the vocabulary and a token can always be sampled."""
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
