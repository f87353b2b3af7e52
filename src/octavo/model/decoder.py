"""The decoder, once for all families: what a layer has it uses, what it lacks it leaves out.

    x   = embedding[tokens] * embedding_scale (+ learned positions)
    x  += [post norm] o(attend(rope([norm] q(n)), rope([norm] k(n)), v(n)))         n = norm(x)
    x  += [post norm] down(act(gate(n)) * up(n))   or   down(act(up(n)))             n = norm(x)
    logits = [cap] output(norm(x[rows]))

A function over an `Ops` object, whose buffers it never looks into: it knows no NumPy, no threads, no devices.
The chunks of a step are flattened into T rows; only `attend` and `store` know which sequence a row is of.
"""

from __future__ import annotations

from typing import TypeVar

from octavo.kernels.contract import AttentionSpec, Batch, StepOps
from octavo.model.spec import LayerWeights, Linear, Model, ModelSpec, Norm

T = TypeVar("T")  # the backend's own, opaque here: buffers, a batch's integers, its pool
I = TypeVar("I")  # noqa: E741
P = TypeVar("P")


def hidden_states(ops: StepOps[T, I, P], model: Model, pool: P, batch: Batch[I]) -> T:
    """Run the step's tokens through all layers; (R, E), the final-normed rows `batch.logit_rows`.

    Writes K and V of every token into its slot of `pool`.
    """
    x = _embed(ops, model, batch)
    last = len(model.weights.layers) - 1
    for index, layer in enumerate(model.weights.layers):
        attended = _attend(ops, model, index, layer, pool, batch, x)
        if index == last:  # nothing but the wanted rows is read from here on
            x, attended = ops.take(x, batch.logit_rows), ops.take(attended, batch.logit_rows)
        x = ops.add(x, _attention_output(ops, model.spec, layer, attended))
        x = ops.add(x, _feed_forward(ops, model.spec, layer, x))
    return _norm(ops, model.spec, model.weights.final_norm, x)


def project(ops: StepOps[T, I, P], model: Model, hidden: T) -> T:
    """(R, E) -> (R, V): raw logits, capped where the model caps them."""
    logits = ops.linear(hidden, model.weights.output)
    cap = model.spec.logit_soft_cap
    return logits if cap is None else ops.soft_cap(logits, cap)


def _embed(ops: StepOps[T, I, P], model: Model, batch: Batch[I]) -> T:
    """(T, E): what the first layer reads."""
    x = ops.embed(model.weights.embedding, batch.tokens)
    if model.spec.embedding_scale != 1.0:
        x = ops.scale(x, model.spec.embedding_scale)
    if model.weights.positions is not None:
        x = ops.add(x, ops.embed(model.weights.positions, batch.positions))
    return x


def _attend(
    ops: StepOps[T, I, P], model: Model, index: int, layer: LayerWeights, pool: P, batch: Batch[I], x: T
) -> T:
    """(T, H * D): what the heads of layer `index` see. K and V are stored first and read back as stored."""
    spec = model.spec
    normed = _norm(ops, spec, layer.attention_norm, x)
    q = _rotated(ops, model, batch, _linear(ops, layer.q, normed), layer.q_norm)
    k = _rotated(ops, model, batch, _linear(ops, layer.k, normed), layer.k_norm)
    ops.store(pool, index, k, _linear(ops, layer.v, normed), batch)
    how = AttentionSpec(spec.attention_scale, spec.window(index), spec.attention_soft_cap)
    return ops.attend(pool, index, q, batch, how)


def _attention_output(ops: StepOps[T, I, P], spec: ModelSpec, layer: LayerWeights, attended: T) -> T:
    """(T, E): the attention branch."""
    return _post_norm(ops, spec, layer.attention_post_norm, _linear(ops, layer.o, attended))


def _rotated(ops: StepOps[T, I, P], model: Model, batch: Batch[I], heads: T, norm: Norm | None) -> T:
    """(T, heads * D): normed head by head where the family does that, then turned by its position."""
    if norm is not None:
        heads = ops.rms_norm(heads, norm.weight, model.spec.norm_eps)
    if model.rope_tables is None:
        return heads
    cos, sin = model.rope_tables
    return ops.rope(heads, batch.positions, cos, sin, model.spec.head_size)


def _feed_forward(ops: StepOps[T, I, P], spec: ModelSpec, layer: LayerWeights, x: T) -> T:
    """(T, E): the feed-forward branch."""
    normed = _norm(ops, spec, layer.ffn_norm, x)
    up = _linear(ops, layer.up, normed)
    if layer.gate is None:
        inner = ops.activate(up, spec.activation)
    else:
        inner = ops.gated(_linear(ops, layer.gate, normed), up, spec.activation)
    return _post_norm(ops, spec, layer.ffn_post_norm, _linear(ops, layer.down, inner))


def _norm(ops: StepOps[T, I, P], spec: ModelSpec, norm: Norm, x: T) -> T:
    """LayerNorm or RMSNorm, as the family has it."""
    if spec.norm == "rms":
        return ops.rms_norm(x, norm.weight, spec.norm_eps)
    assert norm.bias is not None, "a LayerNorm has a bias"
    return ops.layer_norm(x, norm.weight, norm.bias, spec.norm_eps)


def _post_norm(ops: StepOps[T, I, P], spec: ModelSpec, norm: Norm | None, branch: T) -> T:
    """The branch, normed before it is added where the family does that."""
    return branch if norm is None else _norm(ops, spec, norm, branch)


def _linear(ops: StepOps[T, I, P], linear: Linear, x: T) -> T:
    """x W^T + bias."""
    return ops.linear(x, linear.weight, linear.bias)
