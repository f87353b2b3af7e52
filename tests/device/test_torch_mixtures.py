"""Mixtures over torch's ops: near the processor's, rows apart, refused where kernels lack them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.blocks import floats_tensor

from octavo.device.eager import EagerOps
from octavo.device.recording import Node, NodeRecorder
from octavo.errors import UnsupportedModel
from octavo.kernels.contract import Expert, Linear, Routing
from octavo.kernels.reference import ReferenceOps

pytestmark = pytest.mark.full

ROUTINGS = {
    "mixtral": Routing(2, "softmax", normalised=True),
    "olmoe": Routing(8, "softmax"),
    "gpt-oss": Routing(4, "softmax_of_chosen"),
    "llama4": Routing(1, "sigmoid", weighs_input=True),
}


def make_experts(ops: ReferenceOps | EagerOps) -> list[Expert]:
    """Nine of 96, the same for either backend."""
    rng = np.random.default_rng(5)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = ops.matrix(floats_tensor(rng.normal(0, 0.3, (outputs, inputs)).astype(np.float32)))
        return Linear(weight, ops.vector(rng.normal(0, 0.1, outputs).astype(np.float32)))

    return [Expert(linear(96, 64), linear(96, 64), linear(64, 96)) for _ in range(9)]


@pytest.mark.parametrize("name", ROUTINGS)
def test_rows_are_near_the_processors_and_as_if_alone(name: str) -> None:
    rng, routing = np.random.default_rng(1), ROUTINGS[name]
    activation = "swiglu_clamped" if name == "gpt-oss" else "silu"
    x, logits = (rng.standard_normal((25, width)).astype(np.float32) for width in (64, 9))
    logits[3] = 1.0  # equal ones
    logits[6, 3] = np.nan
    reference, eager = ReferenceOps(), EagerOps(torch.device("cpu"))
    wanted = reference.experts(x, logits, make_experts(reference), routing, activation)
    experts = make_experts(eager)

    def run(first: int, last: int) -> torch.Tensor:
        given = (torch.from_numpy(values[first:last]) for values in (x, logits))
        return eager.experts(*given, experts, routing, activation)

    together = run(0, 25)
    np.testing.assert_allclose(together.numpy(), wanted, rtol=2e-5, atol=2e-5)
    alone = torch.cat([run(i, i + 1) for i in range(25)])
    assert together.numpy().tobytes() == alone.numpy().tobytes()


def test_compiled_kernels_refuse_a_mixture_by_name() -> None:
    experts = make_experts(EagerOps(torch.device("cpu")))
    with pytest.raises(UnsupportedModel, match=r"a mixture of 9 experts, .* allowed: --backend native"):
        NodeRecorder().experts(Node(), Node(), experts, ROUTINGS["mixtral"], "silu")
