"""From a file's tensors to `ModelWeights`, in one form for all files.

In that form linears are (outputs, inputs); q, k and v are separate, and gate and up too; rope is in halves;
norms have their offset added. A tensor that no rule consumed is an error: an unknown variation must not be
ignored. Of each matrix the rank's rows are read (`split.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Linear
from octavo.model.mixture_weights import read_mixture
from octavo.model.reader import WeightReader, by_head_order, halves_order
from octavo.model.spec import LayerWeights, ModelWeights, Norm
from octavo.model.split import rows_of_heads


def read_weights(reader: WeightReader) -> ModelWeights:
    """Convert all tensors of `reader`. Raises BadModelFile (a tensor missing or of a wrong shape),
    UnsupportedModel (unknown), unless the reader collects them. O(weights), one tensor at a time."""
    description = reader.description
    spec, family = description.spec, description.family
    own = reader.split.rows(spec.vocab_size)
    embedding = reader.matrix("embedding", 0, (spec.vocab_size, spec.hidden_size), own=own)
    positions = None
    if family.learned_positions:
        shape = (spec.context_length, spec.hidden_size)
        positions = reader.matrix("positions", 0, shape, 0 if reader.is_gguf else family.positions_skipped)
    layers = tuple(_read_layer(reader, layer) for layer in range(spec.num_layers))
    final_norm = reader.norm("final_norm", 0, spec.hidden_size)
    if description.tied and not (description.is_part and reader.has("output", 0)):
        output = embedding
        reader.used.add(reader.name("output", 0) + ".weight")  # some files repeat it
    else:
        output = reader.matrix("output", 0, (spec.vocab_size, spec.hidden_size), own=own)
    reader.refuse_leftovers()
    return ModelWeights(embedding, layers, final_norm, output, positions)


@dataclass(frozen=True, slots=True)
class _Projections:
    """The projections of attention."""

    q: Linear
    k: Linear
    v: Linear


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """The dense feed-forward part; empty if a mixture shares no expert."""

    up: Linear | None = None
    down: Linear | None = None
    gate: Linear | None = None


def _read_layer(reader: WeightReader, layer: int) -> LayerWeights:
    description = reader.description
    spec, family = description.spec, description.family
    hidden, queries = spec.hidden_size, spec.num_heads * spec.head_size
    keys = spec.num_kv_heads * spec.head_size
    of_heads = family.qk_norm == "head"
    # Norms after rope have no weights, and exist only in layers with rope.
    unweighted = None
    if spec.norms_after_rope and spec.rope(layer) is not None:
        unweighted = Norm(reader.vector_of(np.ones(spec.head_size, np.float32)), is_learned=False)
    projections = _read_projections(reader, layer)
    is_mixed = any(description.mixed_layers[layer : layer + 1])
    feed_forward = (_read_shared if is_mixed else _read_feed_forward)(reader, layer)
    return LayerWeights(
        q=projections.q,
        k=projections.k,
        v=projections.v,
        o=reader.linear("o", layer, (hidden, queries), own=reader.split.rows(hidden)),
        up=feed_forward.up,
        down=feed_forward.down,
        gate=feed_forward.gate,
        mixture=read_mixture(reader, layer) if is_mixed else None,
        attention_norm=reader.optional_norm("attention_norm", layer, hidden),
        ffn_norm=reader.optional_norm("ffn_norm", layer, hidden),
        q_norm=unweighted or reader.optional_norm("q_norm", layer, spec.head_size if of_heads else queries),
        k_norm=unweighted or reader.optional_norm("k_norm", layer, spec.head_size if of_heads else keys),
        attention_post_norm=reader.optional_norm("attention_post_norm", layer, hidden),
        ffn_post_norm=reader.optional_norm("ffn_post_norm", layer, hidden),
        sinks=reader.sinks(layer, spec.num_heads) if family.sinks else None,
    )


def _read_projections(reader: WeightReader, layer: int) -> _Projections:
    spec, family = reader.description.spec, reader.description.family
    hidden, keys = spec.hidden_size, spec.num_kv_heads * spec.head_size
    queries = spec.num_heads * spec.head_size
    own = _own_heads(reader)
    rope = spec.rope(layer)
    q_order = k_order = None
    if rope is not None and reader.kind in family.interleaved_in:
        q_order = halves_order(queries, spec.num_heads, rope.dims)
        k_order = halves_order(keys, spec.num_kv_heads, rope.dims)
    # A GGUF file may have fused tensors that other files of the family keep separate.
    if family.fused_qkv or (reader.is_gguf and reader.has("qkv", layer)):
        order = None
        if family.fused_qkv == "by head" and not reader.is_gguf:
            order = by_head_order(spec.num_heads, spec.head_size)
        elif q_order is not None and k_order is not None:
            values = np.arange(keys, dtype=np.intp)
            order = np.concatenate([q_order, queries + k_order, queries + keys + values])
        return _Projections(*reader.split_linear("qkv", layer, (queries, keys, keys), hidden, own, order))
    return _Projections(
        q=reader.linear("q", layer, (queries, hidden), q_order, own=own[0]),
        k=reader.linear("k", layer, (keys, hidden), k_order, own=own[1]),
        v=reader.linear("v", layer, (keys, hidden), own=own[2]),
    )


def _own_heads(reader: WeightReader) -> tuple[range, range, range]:
    """Rows of q, k and v that the rank has; all of q's and k's where a norm reads all heads together."""
    spec, split = reader.description.spec, reader.split
    heads, kv_heads = split.heads(spec.num_heads), split.kv_heads(spec.num_kv_heads)
    v = rows_of_heads(kv_heads, spec.head_size)
    if reader.description.family.qk_norm == "all":
        return range(spec.num_heads * spec.head_size), range(spec.num_kv_heads * spec.head_size), v
    return rows_of_heads(heads, spec.head_size), v, v


def _read_feed_forward(reader: WeightReader, layer: int) -> _FeedForward:
    spec, family = reader.description.spec, reader.description.family
    hidden, ffn = spec.hidden_size, spec.ffn_size
    own = reader.split.rows(ffn)
    if family.fused_gate_up:
        gate, up = reader.split_linear("up", layer, (ffn, ffn), hidden, (own, own))
        return _FeedForward(up, _read_down(reader, "down", layer, ffn), gate)
    return _FeedForward(
        gate=_read_inner(reader, "gate", layer, ffn) if family.gated else None,
        up=_read_inner(reader, "up", layer, ffn),
        down=_read_down(reader, "down", layer, ffn),
    )


def _read_inner(reader: WeightReader, role: str, layer: int, inner: int) -> Linear:
    """A gate or up projection."""
    shape = (inner, reader.description.spec.hidden_size)
    return reader.linear(role, layer, shape, own=reader.split.rows(inner))


def _read_down(reader: WeightReader, role: str, layer: int, inner: int) -> Linear:
    hidden = reader.description.spec.hidden_size
    return reader.linear(role, layer, (hidden, inner), own=reader.split.rows(hidden))


def _read_shared(reader: WeightReader, layer: int) -> _FeedForward:
    """The shared expert of a mixture, if there is one."""
    spec, facts = reader.description.spec, reader.description.family.mixture
    if facts is None or not facts.shares_one:
        return _FeedForward()
    return _FeedForward(
        gate=_read_inner(reader, "shared_gate", layer, spec.expert_ffn_size),
        up=_read_inner(reader, "shared_up", layer, spec.expert_ffn_size),
        down=_read_down(reader, "shared_down", layer, spec.expert_ffn_size),
    )
