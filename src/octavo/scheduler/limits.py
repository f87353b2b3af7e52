"""Which requests can ever run, and the `max_tokens` of each. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.errors import InvalidRequest, RequestTooLarge, shown
from octavo.memory.capacity import Capacity, blocks_needed, tokens_that_fit
from octavo.step.context import SchedulerConfig
from octavo.types import Request


def with_max_tokens(
    request: Request, context_length: int, room: Callable[[bool], int], block_size: int
) -> Request:
    """The request with its final `max_tokens`: the requested number, if the context has room for it.
    Otherwise the number that fits into the context and into `room(False)` blocks or, if no token fits, into
    the `room(True)` blocks without soft holds. At least 1."""
    if request.max_tokens:
        return request
    requested, num_prompt = request.params.max_tokens, len(request.prompt)
    left = context_length - num_prompt
    if requested is not None and requested <= left:
        return replace(request, max_tokens=requested)
    fits = tokens_that_fit(num_prompt, request.params, room(False), block_size)
    if fits < 1:
        fits = tokens_that_fit(num_prompt, request.params, room(True), block_size)
    return replace(request, max_tokens=max(1, min(left, fits)))


def check_salt(request: Request) -> None:
    """Raise InvalidRequest if blocks of a salted request would be kept for others."""
    kept = "session" if request.session else "pin" if request.fills_pin else ""
    if request.cache_salt and kept:
        raise InvalidRequest(
            f"cache_salt is given; allowed with a {kept}: none (leave out one of the two)", param="cache_salt"
        )


def check_fits(request: Request, config: SchedulerConfig, hard: Capacity, own: int, block_size: int) -> None:
    """Raise if the request could not run alone: in the context, in the rows, and in the blocks that hard
    holders leave (`own` of theirs are its own)."""
    if not request.prompt:
        raise InvalidRequest("the prompt is empty; allowed: at least 1 token", param="prompt")
    # A prompt whose embedding is wanted ends with a placeholder, which has no position.
    total = len(request.prompt) + (request.max_tokens if request.params.pooling is None else 0)
    if total > config.context_length:
        raise RequestTooLarge(
            f"{_length_text(request)} is {total:,} tokens; this model's maximum context length is "
            f"{config.context_length:,} tokens (setting context_length)",
            param="max_tokens" if len(request.prompt) < config.context_length else "prompt",
            code="context_length_exceeded",
        )
    needed = blocks_needed(request, block_size)
    fills_pin = bool(request.fills_pin)
    if needed > hard.room(request.tenant, own=own, fills_pin=fills_pin):
        bound, code = _bound(request, needed, hard.visible_to(request.tenant), own)
        raise RequestTooLarge(
            f"{_length_text(request)} needs {needed:,} KV blocks; allowed: {bound}; ask for fewer tokens",
            param="max_tokens" if request.params.pooling is None else "prompt",
            code=code,
        )
    if not 1 <= request.n <= config.max_rows:
        raise InvalidRequest(
            f"n is {shown(request.n)}; allowed: 1 to {config.max_rows} (setting max_seqs)", param="n"
        )
    _check_beams(request, config)
    _check_pooling(request)


def _length_text(request: Request) -> str:
    """The greatest length of a request, as text."""
    prompt, params = f"prompt of {len(request.prompt):,} tokens", request.params
    if params.pooling is not None:
        return prompt
    in_beams = "" if params.beams is None else f" in {params.beams.width} beams"
    return f"{prompt} plus max_tokens of {request.max_tokens:,}{in_beams}"


def _bound(request: Request, needed: int, visible: Capacity, own: int) -> tuple[str, str]:
    """The bound that it exceeds, as text, and the error's code; no number that other tenants change."""
    policy, quota = visible.policy(request.tenant), "kv_quota_exceeded"
    if policy.request_maximum is not None and needed > policy.request_maximum and not request.fills_pin:
        of_one = "what one request of its tenant may need"
        return f"{policy.request_maximum:,}, {of_one} (`request_maximum` in the tenants file)", quota
    room = visible.room_in_maximum(request.tenant, own)
    if policy.maximum is not None and needed > room:
        return f"{room:,}, what pins leave of its tenant's maximum (`maximum` in the tenants file)", quota
    room = visible.room_in_pool(request.tenant, own)
    blocks = f"{room:,}, what pins leave of the pool"
    if needed <= room:
        blocks = "fewer, because others have pinned some of the pool"
    return f"{blocks} (setting kv_memory)", "kv_pool_exceeded"


def _check_beams(request: Request, config: SchedulerConfig) -> None:
    """Raise unless all beams can run at once and the best `n` of them can be returned."""
    beams = request.params.beams
    if beams is None:
        return
    if beams.width > config.max_rows:
        raise InvalidRequest(
            f"beam_width is {beams.width}; allowed: 1 to {config.max_rows} (setting max_seqs)",
            param="beam_width",
        )
    if request.n > beams.width:
        raise InvalidRequest(
            f"n is {request.n} and beam_width {beams.width}; allowed: no more than beam_width", param="n"
        )


def _check_pooling(request: Request) -> None:
    """Raise if a pooling request uses a feature that it cannot have."""
    if request.params.pooling is None:
        return
    if request.max_tokens != 1:
        raise InvalidRequest(
            f"max_tokens is {request.max_tokens}; allowed with pooling: 1, whose placeholder ends it",
            param="max_tokens",
        )
    if request.n != 1:
        raise InvalidRequest(f"n is {request.n}; allowed with pooling: 1", param="n")
    if request.session or request.fills_pin:
        raise InvalidRequest("pooling is set; allowed in a session or a pin: none", param="pooling")
