"""A mixture of experts in torch, op after op: `kernels/experts_reference.py` on any device.

Scores and sums are float64, each sum in an order that the numbers of experts decide, so a row's bits are its
own. Which experts a step needs is asked of the device: this waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.functions import exp, sum_in_order
from octavo.kernels.contract import Expert, Routing


@dataclass(frozen=True, slots=True)
class ExpertChoices:
    """Of each row: its experts, ascending int64, and how much each counts, float64; (T, top_k) both."""

    experts: Tensor
    weights: Tensor


def route(logits: Tensor, routing: Routing) -> ExpertChoices:
    """(T, X) -> the choices of each row; where a logit is NaN the first experts, and weights that are NaN."""
    lost = torch.isnan(logits).any(dim=1, keepdim=True)
    sound = torch.where(lost, 0.0, logits).to(torch.float64)
    order = torch.sort(sound, dim=1, descending=True, stable=True).indices[:, : routing.top_k]
    experts = torch.sort(order, dim=1).values
    chosen = sound.gather(1, experts)
    scores = {
        "softmax": lambda: _softmax(sound).gather(1, experts),
        "softmax_of_chosen": lambda: _softmax(chosen),
        "sigmoid": lambda: 1.0 / (1.0 + exp(-chosen)),
    }
    weights = scores[routing.scoring]()
    if routing.normalised:
        weights = weights / sum_in_order(weights)
    return ExpertChoices(experts, torch.where(lost, torch.nan, weights))


def mix(
    x: Tensor,
    choices: ExpertChoices,
    experts: Sequence[Expert],
    weighs_input: bool,
    apply: Callable[[Expert, Tensor], Tensor],
) -> Tensor:
    """(T, E) -> (T, E): each row's sum; `apply` is called once for each expert chosen, with its rows."""
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for number in choices.experts.unique().tolist():
        rows, places = torch.nonzero(choices.experts == number, as_tuple=True)
        weights = choices.weights[rows, places][:, None]
        given = x[rows]
        if weighs_input:
            given = (given.to(torch.float64) * weights).to(torch.float32)
        made = apply(experts[number], given).to(torch.float64)
        total[rows] += made if weighs_input else made * weights
    return total.to(torch.float32)


def _softmax(x: Tensor) -> Tensor:
    powers = exp(x - x.amax(dim=1, keepdim=True))
    return powers / sum_in_order(powers)
