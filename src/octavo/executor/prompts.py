"""Logprobs of prompts, in slices: a long prompt's logits never exist at once."""

from __future__ import annotations

from octavo.executor.forward import Forward
from octavo.executor.rows import Rows
from octavo.sampling.logprobs import logprobs_of
from octavo.types import SampledToken, StepPlan

PROMPT_SLICE = 64


def prompt_logprobs(plan: StepPlan, rows: Rows, forward: Forward) -> dict[int, tuple[SampledToken, ...]]:
    """Logprobs of prompt tokens after the positions [logits_from, stop) of their chunks, by sequence."""
    found: dict[int, tuple[SampledToken, ...]] = {}
    first = 0
    for chunk in plan.ended:
        entry = rows[chunk.row]
        count = min(chunk.stop, entry.num_prompt - 1) - chunk.logits_from
        top = entry.params.prompt_logprobs
        if count > 0 and top is not None:
            following = rows.tokens[chunk.row, chunk.logits_from + 1 : chunk.logits_from + 1 + count]
            scored: list[SampledToken] = []
            for start in range(0, count, PROMPT_SLICE):
                stop = min(start + PROMPT_SLICE, count)
                logits = forward.logits(range(first + start, first + stop))
                scored += logprobs_of(logits, following[start:stop], top)
            found[chunk.seq_id] = tuple(scored)
        first += chunk.stop - chunk.logits_from
    return found
