"""Log-probabilities of the raw logits: before temperature, penalties, bias and filters.

The normaliser is the native module's: a row's sum has a fixed order, independent of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.kernels.contract import Floats
from octavo.sampling.top_ids import descending, top_ids
from octavo.types import SampledToken


def logprobs_of(
    logits: Floats, tokens: Sequence[int] | npt.NDArray[np.integer], top: int
) -> tuple[SampledToken, ...]:
    """Token s's logprob under row s of `logits` (S, V), with the `top` likeliest of that row."""
    normalisers = log_normalisers(logits)
    return tuple(
        with_logprob(logits[index], float(normalisers[index]), int(token), top)
        for index, token in enumerate(tokens)
    )


def log_normalisers(logits: Floats) -> Floats:
    """log(sum(exp(row))) of each row: (S, V) -> (S,)."""
    out = np.empty(logits.shape[0], np.float32)
    _native.log_sum_exp(np.ascontiguousarray(logits, np.float32), out)
    return out


def with_logprob(row: Floats, normaliser: float, token: int, top: int) -> SampledToken:
    """One token's logprob under `row` (V,) and the `top` likeliest, lowest id first among equals."""
    base = np.float32(normaliser)
    ids = top_ids(row, top) if top else np.empty(0, np.int64)
    ids = ids[descending(row[ids])]
    likeliest = tuple(zip(ids.tolist(), (row[ids] - base).tolist(), strict=True))
    return SampledToken(token, float(row[token] - base), likeliest)
