"""What the model says about a request: its chat is rendered, and it is checked against vocabulary, context
and grammars. Nothing here knows the pool."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event

from octavo.engine.answers import TAIL_TOKENS, GrammarSource
from octavo.engine.model_card import ModelCard
from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest, RequestTooLarge, require_range, shown
from octavo.grammar import ThinkingState
from octavo.kv_events.identity import EventSource, Identity
from octavo.params import CACHE_SALT_CHARS_MAX, SamplerParams
from octavo.sampling.grammars import CompiledGrammar
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
    grammars: GrammarSource | None = (
        None  # None: the model's tokens are not known, so no output can follow one
    )
    card: ModelCard = field(default_factory=ModelCard)
    identity: Identity = field(default_factory=Identity)  # how routers read names and tenants
    event_source: EventSource | None = None  # where they read KV events


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


def checked(request: Request, facts: ModelFacts, stop_ids: frozenset[int]) -> Request:
    """The request, checked against the model: token ids in the vocabulary, an output that can follow what it
    must; with a seed, drawn where the client gives none, and the state of thinking that its prompt leaves.
    Raises InvalidRequest or RequestTooLarge. Whether it fits the pool, the scheduler checks."""
    params, prompt, vocab_size = request.params, request.prompt, facts.vocab_size
    check_context(len(prompt), facts.context_length, params)  # first: looking at many tokens takes a while
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
    """Raise InvalidRequest where an output must be led, and the model's tokens are not known."""
    if needs_guide(params) and facts.grammars is None:
        name = "max_thinking_tokens" if params.grammar is None else params.grammar.param
        raise InvalidRequest(f"{name} needs the model's tokens as text, which are not known here", param=name)


def compile_grammar(
    params: SamplerParams, facts: ModelFacts, tenant: str = "", stop: Event | None = None
) -> CompiledGrammar | None:
    """The compiled grammar that an output must follow, if any, to be held until the request ends. Raises
    InvalidRequest, QueueFull, TrialStopped. May take long the first time: not for the event loop."""
    if params.grammar is None:
        return None
    assert facts.grammars is not None  # as `checked` found
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
