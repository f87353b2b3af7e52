"""A mixture of experts in NumPy: the choice of experts, their weights, and the order of the sum.

    logits (T, X)  ->  Choices: experts (T, top_k) ascending, weights (T, top_k)
    out = w_1 e_1(x) + w_2 e_2(x) + ...    or   e_1(w_1 x) + e_2(w_2 x) + ...      experts in ascending order

It knows no kind of weights: the caller passes an expert as a function of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Expert, Floats, Routing
from octavo.kernels.elementwise import exp


@dataclass(frozen=True, slots=True)
class Choices:
    """Each row's experts in ascending order, and their weights; (T, top_k) both."""

    experts: npt.NDArray[np.intp]
    weights: Floats


def route(logits: Floats, routing: Routing) -> Choices:
    """(T, X) -> the choices of each row.

    If a logit is NaN: the first experts, with NaN weights.
    """
    lost = np.asarray(np.isnan(logits).any(axis=1))
    sound = np.where(lost[:, None], np.float32(0), logits)  # equal logits: the first experts are chosen
    order = np.argsort(-sound, axis=1, kind="stable")[:, : routing.top_k]
    experts = np.sort(order, axis=1)
    chosen = np.take_along_axis(sound, experts, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        match routing.scoring:
            case "softmax":
                weights = np.take_along_axis(_softmax(sound), experts, axis=1)
            case "softmax_of_chosen":
                weights = _softmax(chosen)
            case "sigmoid":
                weights = np.float32(1) / (np.float32(1) + exp(-chosen))
            case _:
                raise ValueError(
                    f"unknown scoring {routing.scoring!r}; known: softmax, softmax_of_chosen, sigmoid"
                )
        if routing.normalised:
            weights = weights / _sum(weights)
    weights[lost] = np.nan
    return Choices(experts, weights)


def mix(
    x: Floats,
    choices: Choices,
    experts: Sequence[Expert],
    weighs_input: bool,
    apply: Callable[[Expert, Floats], Floats],
) -> Floats:
    """(T, E) -> (T, E), or the width of `apply`'s result: each row's sum. `apply` is called once for each
    chosen expert, with its rows."""
    out: Floats | None = None
    has_sum = np.zeros(len(x), np.bool_)
    for number in np.unique(choices.experts):
        rows, places = np.nonzero(choices.experts == number)
        weights = choices.weights[rows, places][:, None]
        given = np.ascontiguousarray(x[rows] * weights if weighs_input else x[rows])
        made = apply(experts[number], given)
        made = made if weighs_input else made * weights
        out = np.zeros((len(x), made.shape[1]), np.float32) if out is None else out
        out[rows] = np.where(has_sum[rows, None], out[rows] + made, made)
        has_sum[rows] = True
    return np.zeros_like(x) if out is None else out


def _softmax(x: Floats) -> Floats:
    powers = exp(x - x.max(axis=1, keepdims=True))
    scores: Floats = powers / _sum(powers)
    return scores


def _sum(x: Floats) -> Floats:
    """(T, n) -> (T, 1): one after the other in double, rounded once."""
    return np.add.accumulate(x, axis=-1, dtype=np.float64)[..., -1:].astype(np.float32)
