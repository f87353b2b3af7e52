"""The decoder, one for all families: it uses the parts that a layer has and skips those that it lacks.

    x   = embedding[tokens] * embedding_scale (+ learned positions)
    x  += [post norm] o(attend(rope([norm] q(n)), rope([norm] k(n)), v(n)))          n = [norm](x)
    x  += [post norm] down(act(gate(n)) * up(n))   or   down(act(up(n)))              n = [norm](x)
                      or   sum over a token's experts of weight * down(act(gate(n)) * up(n))
    logits = [cap] output(norm(x[rows]) * logit_scale)

A function over an `Ops` object, whose buffers it never reads: it knows no NumPy, no threads, no devices. The
chunks of a step are flattened into T rows; only `attend` and `store` know the sequence of a row.

If several ranks compute the model (`model/split.py`), each product computes a rank's own outputs, and all
ranks' outputs are gathered before the next product: x, norms and sums are complete on every rank.
"""

from __future__ import annotations

from typing import TypeVar

from octavo.kernels.contract import AttentionSpec, Batch, Linear, StepOps
from octavo.model.spec import CosSin, LayerWeights, Mixture, Model, ModelSpec, Norm
from octavo.model.split import rows_of_heads

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
        if index == last:  # only the rows that need logits are read from here on
            x, attended = ops.take(x, batch.logit_rows), ops.take(attended, batch.logit_rows)
        seen = _added(ops, model.spec, x, _attention_output(ops, model, layer, attended))
        fed = _feed_forward(ops, model, layer, x if model.spec.parallel else seen)
        x = _added(ops, model.spec, seen, fed)
    return _norm(ops, model.spec, model.weights.final_norm, x)


def project(ops: StepOps[T, I, P], model: Model, hidden: T) -> T:
    """(R, E) -> (R, V): raw logits, scaled and capped if the model does that."""
    scale, cap = model.spec.logit_scale, model.spec.logit_soft_cap
    # Hidden rows, not logits: there are fewer of them.
    logits = ops.linear(hidden if scale == 1.0 else ops.scale(hidden, scale), model.weights.output)
    logits = _gathered(ops, model, logits, model.spec.vocab_size)
    return logits if cap is None else ops.soft_cap(logits, cap)


def _embed(ops: StepOps[T, I, P], model: Model, batch: Batch[I]) -> T:
    """(T, E): the input of the first layer."""
    split = model.split
    starts = () if split.is_whole else split.starts(model.spec.vocab_size)
    x = ops.embed(model.weights.embedding, batch.tokens, starts)
    if model.spec.embedding_scale != 1.0:
        x = ops.scale(x, model.spec.embedding_scale)
    if model.weights.positions is not None:
        x = ops.add(x, ops.embed(model.weights.positions, batch.positions))
    return x


def _attend(
    ops: StepOps[T, I, P], model: Model, index: int, layer: LayerWeights, pool: P, batch: Batch[I], x: T
) -> T:
    """(T, H * D): the attention of the rank's heads in layer `index`. K and V are stored first and read back
    as stored."""
    spec, rope, split = model.spec, model.rope_tables[index], model.split
    normed = _norm_or_same(ops, spec, layer.attention_norm, x)
    heads, kv_heads = split.heads(spec.num_heads), split.kv_heads(spec.num_kv_heads)
    q = _apply_rope(ops, model, batch, _linear(ops, layer.q, normed), layer.q_norm, rope.q, heads)
    k = _apply_rope(ops, model, batch, _linear(ops, layer.k, normed), layer.k_norm, rope.k, kv_heads)
    ops.store(pool, index, k, _linear(ops, layer.v, normed), batch)
    how = AttentionSpec(spec.attention_scale, spec.window(index), spec.attention_soft_cap, layer.sinks)
    return ops.attend(pool, index, q, batch, how)


def _attention_output(ops: StepOps[T, I, P], model: Model, layer: LayerWeights, attended: T) -> T:
    """(T, E): the attention branch."""
    spec = model.spec
    whole = _gathered_heads(ops, model, attended)
    branch = _gathered(ops, model, _linear(ops, layer.o, whole), spec.hidden_size)
    return _norm_or_same(ops, spec, layer.attention_post_norm, branch)


def _gathered(ops: StepOps[T, I, P], model: Model, x: T, count: int) -> T:
    """(T, own outputs) -> (T, count): a product's outputs of all ranks."""
    return x if model.split.is_whole else ops.gather(x, model.split.widths(count))


def _gathered_heads(ops: StepOps[T, I, P], model: Model, x: T) -> T:
    """(T, own heads * D) -> (T, H * D)."""
    split, spec = model.split, model.spec
    width = spec.num_heads // split.num_ranks * spec.head_size
    return x if split.is_whole else ops.gather(x, (width,) * split.num_ranks)


def _apply_rope(
    ops: StepOps[T, I, P],
    model: Model,
    batch: Batch[I],
    heads: T,
    norm: Norm | None,
    rope: CosSin | None,
    own: range,
) -> T:
    """(T, own heads * D): normed if the family does that, and rotated by position. A norm over all heads
    reads all of them, on every rank."""
    spec = model.spec
    if norm is not None and not spec.norms_after_rope:
        heads = ops.rms_norm(heads, norm.weight, spec.norm_eps)
        if not model.split.is_whole and norm.weight.shape[0] != spec.head_size:
            rows = rows_of_heads(own, spec.head_size)
            heads = ops.columns(heads, rows.start, rows.stop)
    if rope is not None:
        heads = ops.rope(heads, batch.positions, rope.cos, rope.sin, spec.head_size)
    if norm is not None and spec.norms_after_rope:
        heads = ops.rms_norm(heads, norm.weight, spec.norm_eps)
    return heads


def _feed_forward(ops: StepOps[T, I, P], model: Model, layer: LayerWeights, x: T) -> T:
    """(T, E): the feed-forward branch: the shared part, the experts, or both."""
    spec = model.spec
    normed = _norm_or_same(ops, spec, layer.ffn_norm, x)
    shared = None if layer.up is None else _shared_part(ops, model, layer, layer.up, normed)
    fed = shared if layer.mixture is None else _routed_part(ops, model, layer.mixture, normed)
    assert fed is not None, "a layer has a feed-forward part"
    if shared is not None and layer.mixture is not None:
        fed = ops.add(shared, fed)
    return _norm_or_same(ops, spec, layer.ffn_post_norm, fed)


def _shared_part(ops: StepOps[T, I, P], model: Model, layer: LayerWeights, up: Linear, normed: T) -> T:
    """down(act(gate) * up), or down(act(up))."""
    assert layer.down is not None
    spec = model.spec
    inner = _linear(ops, up, normed)
    if layer.gate is None:
        inner = ops.activate(inner, spec.activation)
    else:
        inner = ops.gated(_linear(ops, layer.gate, normed), inner, spec.activation)
    inner = _gathered(ops, model, inner, spec.ffn_size if layer.mixture is None else spec.expert_ffn_size)
    return _gathered(ops, model, _linear(ops, layer.down, inner), spec.hidden_size)


def _routed_part(ops: StepOps[T, I, P], model: Model, mixture: Mixture, normed: T) -> T:
    """The weighted sum of the experts that the router chose for each token."""
    spec, split = model.spec, model.split
    assert spec.routing is not None
    logits = _linear(ops, mixture.router, normed)
    widths = () if split.is_whole else split.widths(spec.expert_ffn_size)
    fed = ops.experts(normed, logits, mixture.experts, spec.routing, spec.activation, widths)
    return _gathered(ops, model, fed, spec.hidden_size)


def _added(ops: StepOps[T, I, P], spec: ModelSpec, x: T, branch: T) -> T:
    """x + branch, scaled first if the family does that."""
    return ops.add(x, branch if spec.residual_scale == 1.0 else ops.scale(branch, spec.residual_scale))


def _norm(ops: StepOps[T, I, P], spec: ModelSpec, norm: Norm, x: T) -> T:
    """LayerNorm or RMSNorm, by family."""
    if spec.norm == "rms":
        return ops.rms_norm(x, norm.weight, spec.norm_eps)
    assert norm.bias is not None, "a LayerNorm has a bias"
    return ops.layer_norm(x, norm.weight, norm.bias, spec.norm_eps)


def _norm_or_same(ops: StepOps[T, I, P], spec: ModelSpec, norm: Norm | None, x: T) -> T:
    """x, normed if the family does that."""
    return x if norm is None else _norm(ops, spec, norm, x)


def _linear(ops: StepOps[T, I, P], linear: Linear, x: T) -> T:
    """x W^T + bias."""
    return ops.linear(x, linear.weight, linear.bias)
