"""The filters that cut the tail of a distribution: top-k, top-p, min-p.

Each takes scores (log-probabilities up to a constant, the greatest of them 0) of tokens with ascending ids,
and returns the indices to keep, ascending. Probabilities are float64 and summed in one fixed order, so that
the same row keeps the same tokens in any batch.
"""

from __future__ import annotations

import numpy as np

from octavo.kernels.contract import Floats
from octavo.params import SamplerParams
from octavo.sampling.top_ids import Ids, descending, top_ids

# A nucleus rarely holds more tokens than this; the exact fallback sorts the whole row.
_NUCLEUS_GUESS = 512


def keep_ids(scores: Floats, params: SamplerParams) -> Ids | None:
    """The ids that top-k, then top-p, then min-p keep of `scores` (V,), ascending; None: all."""
    kept: Ids | None = None
    if 0 < params.top_k < scores.shape[0]:
        kept = top_ids(scores, params.top_k)
    if params.top_p < 1.0:
        kept = _within(kept, nucleus(_at(scores, kept), params.top_p))
    if params.min_p > 0.0:
        kept = _within(kept, likely_enough(_at(scores, kept), params.min_p))
    return kept


def filters(params: SamplerParams) -> bool:
    """Whether any filter is on."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def nucleus(scores: Floats, top_p: float) -> Ids:
    """The fewest likeliest tokens whose probabilities add up to `top_p`, including the one that crosses it.

    Source: Holtzman et al. 2020. O(V), and O(V log V) only if the nucleus is wide.
    """
    target = top_p * float(np.exp(scores, dtype=np.float64).sum())
    # The likeliest few are a prefix of the whole order, and a running sum of a prefix is a prefix of the
    # running sum.
    guess = top_ids(scores, _NUCLEUS_GUESS)
    for candidates in (guess, None):
        chosen = _at(scores, candidates)
        order = descending(chosen)
        reached = np.cumsum(np.exp(chosen[order], dtype=np.float64))
        crossing = int(np.searchsorted(reached, target, side="left"))
        if crossing < reached.shape[0] or chosen.shape[0] == scores.shape[0]:
            break
    return np.sort(_within(candidates, order[: crossing + 1]))


def likely_enough(scores: Floats, min_p: float) -> Ids:
    """Tokens at least `min_p` times as likely as the likeliest, which stays. Source: Nguyen et al. 2024."""
    probabilities = np.exp(scores, dtype=np.float64)
    return np.flatnonzero(probabilities >= min_p * probabilities.max())


def _at(scores: Floats, kept: Ids | None) -> Floats:
    """The kept scores; None: all."""
    return scores if kept is None else scores[kept]


def _within(kept: Ids | None, inner: Ids) -> Ids:
    """Indices into `kept` as indices into the whole row."""
    return inner if kept is None else kept[inner]
