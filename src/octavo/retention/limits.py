"""Which requests can ever run: pure functions, which any thread may ask before anything is queued."""

from __future__ import annotations

from octavo.errors import InvalidRequest, RequestTooLarge, shown
from octavo.memory.capacity import Capacity
from octavo.params import SamplerParams
from octavo.step.config import SchedulerConfig
from octavo.types import Request
from octavo.units import blocks_for


def share_of(bound: int, num_tenants: int) -> int:
    """What each of so many tenants may always have of what all together have a `bound` for: half of it is
    shared out, the other half is for those that come first. 0 where there is no other tenant."""
    return max(1, bound // (2 * num_tenants)) if num_tenants > 1 else 0


def blocks_needed(request: Request, block_size: int) -> int:
    """Blocks of one of its sequences at its longest: the last token is sampled, never computed.

    Beams run together or not at all, so they count together: they share the full blocks of the prompt.
    """
    longest = blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)
    beams = request.params.beams
    if beams is None:
        return longest
    shared = len(request.prompt) // block_size
    return shared + beams.width * (longest - shared)


def tokens_that_fit(num_prompt: int, params: SamplerParams, num_blocks: int, block_size: int) -> int:
    """The greatest max_tokens whose `blocks_needed` are no more than `num_blocks`; below 1: there is none."""
    shared, width = (0, 1) if params.beams is None else (num_prompt // block_size, params.beams.width)
    each = shared + (num_blocks - shared) // width
    return each * block_size + 1 - num_prompt


def check_fits(request: Request, config: SchedulerConfig, hard: Capacity, own: int, block_size: int) -> None:
    """Raise unless the request could run alone: in the context, beside all that hard holders keep (of which
    `own` blocks are its own), in the rows."""
    if not request.prompt:
        raise InvalidRequest("the prompt is empty; allowed: at least 1 token", param="prompt")
    # A prompt whose embedding is wanted ends with a placeholder, which has no position.
    total = len(request.prompt) + (request.max_tokens if request.params.pooling is None else 0)
    if total > config.context_length:
        raise RequestTooLarge(
            f"{_asked(request)} is {total:,} tokens; this model's maximum context length is "
            f"{config.context_length:,} tokens (setting context_length)",
            param="max_tokens" if len(request.prompt) < config.context_length else "prompt",
            code="context_length_exceeded",
        )
    needed = blocks_needed(request, block_size)
    fills_pin = bool(request.fills_pin)
    if needed > hard.room(request.tenant, own=own, fills_pin=fills_pin):
        bound, code = _bound(request, needed, hard.as_told_to(request.tenant), own)
        raise RequestTooLarge(
            f"{_asked(request)} needs {needed:,} KV blocks; allowed: {bound}; ask for fewer tokens",
            param="max_tokens" if request.params.pooling is None else "prompt",
            code=code,
        )
    if not 1 <= request.n <= config.max_rows:
        raise InvalidRequest(
            f"n is {shown(request.n)}; allowed: 1 to {config.max_rows} (setting max_seqs)", param="n"
        )
    _check_beams(request, config)
    _check_pooling(request)


def _asked(request: Request) -> str:
    """How long it may become, in words."""
    prompt, params = f"prompt of {len(request.prompt):,} tokens", request.params
    if params.pooling is not None:
        return prompt
    in_beams = "" if params.beams is None else f" in {params.beams.width} beams"
    return f"{prompt} plus max_tokens of {request.max_tokens:,}{in_beams}"


def _bound(request: Request, needed: int, told: Capacity, own: int) -> tuple[str, str]:
    """What such a request may need, of what, and the error's code; no number that other tenants move."""
    policy, quota = told.policy(request.tenant), "kv_quota_exceeded"
    if policy.request_maximum is not None and needed > policy.request_maximum and not request.fills_pin:
        of_one = "what one request of its tenant may need"
        return f"{policy.request_maximum:,}, {of_one} (`request_maximum` in the tenants file)", quota
    room = told.room_of_its_own(request.tenant, own)
    if policy.maximum is not None and needed > room:
        return f"{room:,}, what pins leave of its tenant's maximum (`maximum` in the tenants file)", quota
    room = told.room_in_pool(request.tenant, own)
    blocks = f"{room:,}, what pins leave of the pool"
    if needed <= room:
        blocks = "fewer, because others have pinned some of the pool"
    return f"{blocks} (setting kv_memory)", "kv_pool_exceeded"


def _check_beams(request: Request, config: SchedulerConfig) -> None:
    """Raise unless the best of the request's beams can be returned, and all of them can run at once."""
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
    """Raise unless a request that wants its prompt's embedding is a plain one."""
    if request.params.pooling is None:
        return
    assert request.max_tokens == 1, "its placeholder ends it"
    if request.n != 1:
        raise InvalidRequest(f"n is {request.n}; allowed with pooling: 1", param="n")
    if request.session or request.fills_pin:
        raise InvalidRequest("pooling is set; allowed in a session or a pin: none", param="pooling")
