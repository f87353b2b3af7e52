"""The most blocks that a request may need, and the most tokens that fit into a number of blocks."""

from __future__ import annotations

from octavo.params import SamplerParams
from octavo.types import Request
from octavo.units import blocks_for


def blocks_needed(request: Request, block_size: int) -> int:
    """Pool blocks for one of its sequences at full length; the last token is sampled, never computed.

    Beams run together or not at all, so they count together. They share the full blocks of the prompt.
    """
    if request.hot_blocks:
        return request.hot_blocks
    longest = blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)
    beams = request.params.beams
    if beams is None:
        return longest
    shared = len(request.prompt) // block_size
    return shared + beams.width * (longest - shared)


def slots_needed(request: Request, block_size: int) -> int:
    """Offload slots for the cold blocks of all its sequences at full length; 0: it has none. They share the
    full blocks of the prompt."""
    if not request.hot_blocks:
        return 0
    longest = blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)
    shared = len(request.prompt) // block_size
    return shared + request.n * (longest - shared)


def tokens_that_fit(num_prompt: int, params: SamplerParams, num_blocks: int, block_size: int) -> int:
    """The largest max_tokens whose `blocks_needed` is at most `num_blocks`; less than 1: there is none."""
    shared, width = (0, 1) if params.beams is None else (num_prompt // block_size, params.beams.width)
    each = shared + (num_blocks - shared) // width
    return each * block_size + 1 - num_prompt
