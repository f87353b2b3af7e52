"""How many numbers a model has learned, as its makers count them."""

import dataclasses

import numpy as np
from tests.tiny import VOCAB, tiny_model

from octavo.kernels.contract import Linear
from octavo.kernels.native_ops import NativeOps

LAYER = (
    64 * 64 + 32 * 64 + 32 * 64 + 64 * 64 + 3 * 96 * 64 + 2 * 64
)  # q, k, v, o, three of the FFN, two norms


def test_a_tied_embedding_counts_once_and_an_untied_output_too():
    weights = tiny_model(NativeOps()).weights
    tied = VOCAB * 64 + 2 * LAYER + 64
    assert weights.num_parameters == tied
    untied = dataclasses.replace(weights, output=tiny_model(NativeOps(), seed=1).weights.embedding)
    assert untied.num_parameters == tied + VOCAB * 64


def test_biases_norms_of_heads_and_learned_positions_count():
    ops = NativeOps()
    weights = tiny_model(ops).weights
    layer = weights.layers[0]
    bias = ops.vector(np.zeros(64, np.float32))
    more = dataclasses.replace(layer, q=Linear(layer.q.weight, bias), q_norm=layer.ffn_norm)
    changed = dataclasses.replace(
        weights, layers=(more, *weights.layers[1:]), positions=weights.layers[0].q.weight
    )
    assert changed.num_parameters == weights.num_parameters + 64 + 64 + 64 * 64
