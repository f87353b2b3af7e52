"""Changes of the logits before sampling: penalties, the client's bias, forbidden ends, masks.

Every function changes one row (V,) in place. The order is fixed: repetition, frequency and presence, bias,
minimum length, masks (`masks.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Floats, Ints
from octavo.params import SamplerParams
from octavo.sampling.masks import Masks


def adjusts(params: SamplerParams, num_output: int) -> bool:
    """True when `adjust` would change anything after `num_output` output tokens."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or bool(params.logit_bias)
        or num_output < params.min_tokens
        or params.allowed_token_ids is not None
        or bool(params.banned_sequences)
    )


def adjust(
    row: Floats,
    params: SamplerParams,
    masks: Masks | None,
    history: Ints,
    num_prompt: int,
    stop_ids: frozenset[int],
) -> None:
    """Apply `params` to `row` (V,), given the tokens before it, prompt then output; `masks` are those of
    `params`."""
    output = history[num_prompt:]
    if params.repetition_penalty != 1.0:
        penalise_repetition(row, history, params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        penalise_output(row, output, params.frequency_penalty, params.presence_penalty)
    if params.logit_bias:
        add_bias(row, params.logit_bias)
    if output.shape[0] < params.min_tokens:
        # With ignore_eos an end-of-sequence token ends nothing, so it need not be forbidden.
        forbid(row, params.end_ids(stop_ids))
    if masks is not None:
        masks.apply(row, output)


def penalise_repetition(row: Floats, seen: Ints, penalty: float) -> None:
    """Divide positive and multiply other logits of all tokens seen. Source: Keskar et al. 2019."""
    ids = np.unique(seen)
    values = row[ids]
    factor = np.float32(penalty)
    row[ids] = np.where(values > 0, values / factor, values * factor)


def penalise_output(row: Floats, output: Ints, frequency: float, presence: float) -> None:
    """Subtract `frequency` per occurrence and `presence` once for every token of the output."""
    ids, counts = np.unique(output, return_counts=True)
    row[ids] -= np.float32(frequency) * counts.astype(np.float32) + np.float32(presence)


def add_bias(row: Floats, bias: tuple[tuple[int, float], ...]) -> None:
    """Add each token's bias; ids outside the vocabulary were refused at submission."""
    ids: npt.NDArray[np.int64] = np.fromiter((token for token, _ in bias), np.int64, len(bias))
    values = np.fromiter((value for _, value in bias), np.float32, len(bias))
    np.add.at(row, ids, values)


def forbid(row: Floats, ids: frozenset[int]) -> None:
    """Make these tokens impossible."""
    row[[token for token in ids if token < row.shape[0]]] = -np.inf
