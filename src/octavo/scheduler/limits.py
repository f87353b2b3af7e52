"""Which requests can ever run: pure functions, so anybody may ask before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.types import Request
from octavo.units import blocks_for

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import SchedulerConfig


def blocks_needed(request: Request, block_size: int) -> int:
    """Blocks of one of its sequences at its longest: the last token is sampled, never computed."""
    return blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)


def check_fits(request: Request, config: SchedulerConfig, num_blocks: int, block_size: int) -> None:
    """Raise unless the request could run alone: in the context, in `num_blocks`, in the rows."""
    if not request.prompt:
        raise InvalidRequest("the prompt is empty; allowed: at least 1 token", param="prompt")
    total = len(request.prompt) + request.max_tokens
    if total > config.context_length:
        raise RequestTooLarge(
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} is "
            f"{total:,} tokens; allowed: {config.context_length:,} (the context; setting context_length)",
            param="max_tokens" if len(request.prompt) < config.context_length else "prompt",
            code="context_length_exceeded",
        )
    needed = blocks_needed(request, block_size)
    if needed > num_blocks:
        raise RequestTooLarge(
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} needs "
            f"{needed:,} KV blocks; allowed: {num_blocks:,}, what pins leave of the pool (setting "
            "kv_memory); ask for fewer tokens",
            param="max_tokens",
            code="kv_pool_exceeded",
        )
    if not 1 <= request.n <= config.max_rows:
        raise InvalidRequest(
            f"n is {request.n}; allowed: 1 to {config.max_rows} (setting max_seqs)", param="n"
        )
