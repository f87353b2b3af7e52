"""The cost of schemas for outputs, and the gain of forced tokens: the real engine over a real model, all
variants in each round.

    free        rows without a grammar, greedy: every token costs a step
    masked      the same rows, each with its own schema that forces almost nothing: the cost of masks
    extraction  each fills in a record of many fields: the cost token by token
    forwarded   the same, with forced tokens computed together with the sample before them
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from octavo.api.llm import LLM
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.grammar import Grammar, of_schema
from octavo.params import SamplerParams

VARIANTS = ("free", "masked", "extraction", "forwarded")
RECORD_TOKENS_MAX = 500
_TEXT = (
    "Invoice {n}: Anna Berg of 12 Main Street, Rome, ordered {n} chairs and 2 tables on 3 May 2024 and has "
    "paid by card. As JSON:"
)


@dataclass(frozen=True, slots=True)
class StructuredResult:
    """One variant, the medians of its rounds."""

    variant: str
    rows: int
    output_tokens: int
    forced_tokens: int
    steps: int
    tokens_per_second: float
    mask_share: float  # of the step time


def measure_structured(
    model: str | None, rows: int, tokens: int, rounds: int, show: Callable[[str], None] = lambda text: None
) -> Iterator[StructuredResult]:
    """Measure all variants. Raises ConfigError, ModelError."""
    if rows < 1 or rounds < 1:
        raise ConfigError(f"rows is {rows} and rounds {rounds}; allowed: 1 and more")
    options = StartOptions(
        context_length=1024, max_seqs=max(rows, 2), prefix_caching=False, pace=False, speculate="off"
    )
    measured: dict[str, list[StructuredResult]] = {variant: [] for variant in VARIANTS}
    with LLM(model, options) as llm:
        for number in range(rounds + 1):
            for variant in VARIANTS:
                show(f"round {number} of {rounds}: {variant} ...")
                measured[variant].append(_measure(llm, variant, rows, tokens))
    for results in measured.values():
        kept = results[1:]  # the first is the warm-up
        speeds = statistics.median(result.tokens_per_second for result in kept)
        share = statistics.median(result.mask_share for result in kept)
        yield replace(kept[-1], tokens_per_second=speeds, mask_share=share)


def _measure(llm: LLM, variant: str, rows: int, tokens: int) -> StructuredResult:
    params = [_params(variant, row, tokens) for row in range(rows)]
    prompts = [_TEXT.format(n=row + 1) for row in range(rows)]
    before = llm.engine.stats
    llm.started.runner.walker.fast_forward = variant == "forwarded"
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds, after = time.perf_counter() - begun, llm.engine.stats
    count = sum(len(output.outputs[0].token_ids) for output in outputs)
    return StructuredResult(
        variant,
        rows,
        count,
        after.forced_tokens - before.forced_tokens,
        after.steps - before.steps,
        count / seconds,
        (after.mask_seconds - before.mask_seconds) / (after.step_seconds - before.step_seconds),
    )


def _params(variant: str, row: int, tokens: int) -> SamplerParams:
    if variant == "free":
        return SamplerParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    grammar = _words(row) if variant == "masked" else _record(row)
    most = tokens if variant == "masked" else RECORD_TOKENS_MAX
    return SamplerParams(max_tokens=most, temperature=0.0, grammar=grammar)


def _words(row: int) -> Grammar:
    """A schema: an unbounded list of words."""
    item = {"type": "string", "maxLength": 40 + row}
    return of_schema({"type": "array", "items": item, "minItems": 1000})


def _record(row: int) -> Grammar:
    """A schema: twelve fields whose values are in the text."""
    text, number = (
        {"type": "string", "maxLength": 12 + row % 4},
        {"type": "integer", "minimum": 0, "maximum": 99},
    )
    fields = {
        f"invoice_number_{row}": number,
        "customer_first_name": text,
        "customer_last_name": text,
        "billing_address": {
            "type": "object",
            "properties": {"street_name": text, "house_number": number, "city": text},
            "required": ["street_name", "house_number", "city"],
            "additionalProperties": False,
        },
        "ordered_chairs": number,
        "ordered_tables": number,
        "payment_method": {"enum": ["card", "cash", "transfer"]},
        "is_already_paid": {"type": "boolean"},
    }
    return of_schema(
        {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    )
