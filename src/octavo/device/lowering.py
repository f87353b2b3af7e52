"""From recorded nodes to launches of kernels: fuses nodes, in one way for all families.

    q, k, v products of one input                 one product over stacked weights
    norms of q and k, rope, K and V to slots      one store; norms over all heads go before it
    gate, up and their product                    one product, with interleaved weights
    a sum and the norm of it                      one norm, which writes the sum in place
    embedding, its scale, learned positions       one gather

So a layer of Llama is eight kernels: norm, product, store, attention, product, norm, product, product.
Patterns that a family lacks are skipped, and a node that matches none becomes a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo.device.compiled_step import CompiledStep
from octavo.device.layout import DevicePool
from octavo.device.ranks.collectives import RankGroup
from octavo.device.triton.attention import AttentionForm
from octavo.device.triton.elementwise import activate, scale, soft_cap
from octavo.device.triton.embedding import TokenPlaces, embed
from octavo.device.triton.linear import linear, linear_gated
from octavo.device.triton.norms import layer_norm, rms_norm
from octavo.device.triton.store import HeadTransform, store_heads
from octavo.device.weights import biases_of, interleaved, own, own_matrix, stacked
from octavo.errors import UnsupportedModel
from octavo.kernels.contract import AttentionSpec, Vector
from octavo.kernels.recording import (
    POSITIONS,
    Activation,
    Attention,
    Columns,
    Embed,
    GatedActivation,
    Gather,
    MixtureOfExperts,
    Node,
    Product,
    Record,
    Rope,
    RowNorm,
    Scale,
    SoftCap,
    StoreKv,
    Sum,
    Take,
)

Values = dict[Node, Tensor]
Launch = Callable[[Values, CompiledStep], object]


@dataclass(frozen=True, slots=True)
class Program:
    """Launches in order, the nodes that each is the last to read, and the node of the result."""

    launches: Sequence[Launch]
    done_with: Sequence[Sequence[Node]]
    result: Node

    def run(self, step: CompiledStep) -> Tensor:
        """The result for one step; every launch goes to torch's current stream."""
        values: Values = {}
        for launch, done in zip(self.launches, self.done_with, strict=True):
            launch(values, step)
            for node in done:
                del values[node]
        return values[self.result]


def lower(record: Record, pool: DevicePool, group: RankGroup | None = None) -> Program:
    """A record as launches over this pool. Weights that are read together are stacked. `group`: the ranks
    whose columns a record gathers.

    Raises UnsupportedModel for a mixture: only the device knows the number of rows of an expert, while the
    host fixes the sizes of launches and captured steps; a grouped product would need a kernel of its own. The
    same for a model split over ranks with a norm over all heads together.
    """
    for node in record.nodes:
        if isinstance(node, MixtureOfExperts):
            raise UnsupportedModel(
                f"the model is a mixture of {len(node.experts)} experts, for which the GPU's kernels have no "
                "product; allowed: --backend native, or --backend torch --device cpu"
            )
        if isinstance(node, Columns):
            raise UnsupportedModel(
                "the model has a norm over all heads of a layer together, which the GPU's kernels do not "
                "split; allowed: --tensor-parallel-size 1, or --backend torch --device cpu"
            )
    lowering, result = _Lowering(record.nodes, pool, group), record.result
    for node in record.nodes:
        lowering.lower(node)
    last = {node: index for index, reads in enumerate(lowering.reads) for node in reads}
    done: list[list[Node]] = [[] for _ in lowering.launches]
    for node, index in last.items():
        if node is not result:
            done[index].append(node)
    return Program(lowering.launches, done, result)


@dataclass(frozen=True, slots=True)
class _Heads:
    """A product whose rows are heads, and their rope."""

    product: Product
    norm: RowNorm | None
    rope: Rope | None
    nodes: tuple[Node, ...]


@dataclass
class _Lowering:
    nodes: Sequence[Node]
    pool: DevicePool
    group: RankGroup | None
    launches: list[Launch] = field(default_factory=list)
    reads: list[tuple[Node, ...]] = field(default_factory=list)  # of each launch
    _fused: set[Node] = field(default_factory=set)  # parts of another node's launch
    _sums: dict[Node, Sum] = field(default_factory=dict)  # by the norm that computes them

    def __post_init__(self) -> None:
        attended = {node.layer: node for node in self.nodes if isinstance(node, Attention)}
        for node in self.nodes:
            if isinstance(node, StoreKv):
                for heads in (node.k, node.v, attended[node.layer].q):
                    self._fused.update(_heads_of(heads).nodes)
            elif isinstance(node, GatedActivation):
                self._fused.update((node.gate, node.up))
            elif isinstance(node, Sum) and _is_embedding(node):
                self._fused.update(_parts_of_embedding(node)[1:])
            elif isinstance(node, Scale) and isinstance(node.x, Embed):
                self._fused.add(node.x)
        for node in self.nodes:
            if isinstance(node, RowNorm) and isinstance(node.x, Sum) and self._is_free(node, node.x):
                self._sums[node] = node.x
                self._fused.add(node.x)

    def _is_free(self, norm: RowNorm, added: Sum) -> bool:
        """Whether the norm is the first reader of the sum, so that it can compute it."""
        return norm not in self._fused and added not in self._fused and not _is_embedding(added)

    def lower(self, node: Node) -> None:
        """Append the node's launch, unless it is a part of another one."""
        if node in self._fused:
            return
        if isinstance(node, StoreKv):
            self._store(node)
        elif isinstance(node, Attention):
            self._attend(node)
        elif isinstance(node, RowNorm):
            self._norm(node)
        elif isinstance(node, Product):
            self._product(node)
        elif isinstance(node, GatedActivation):
            self._gate(node)
        elif isinstance(node, Embed | Scale | Sum):
            self._embed_or_add(node)
        elif isinstance(node, Gather):
            assert self.group is not None
            x, gather, widths = node.x, self.group.gather_columns, node.widths
            self._launch(lambda values, step: _put(values, node, gather(values[x], widths)), x)
        elif isinstance(node, Take):
            x = node.x
            self._launch(lambda values, step: _put(values, node, _wanted(values[x], step)), x)
        elif isinstance(node, Activation):
            x, activation = node.x, node.activation
            self._launch(lambda values, step: activate(_like(values, node, x), values[x], activation), x)
        else:
            assert isinstance(node, SoftCap), f"no kernel for {node}"
            x, cap = node.x, node.cap
            self._launch(lambda values, step: soft_cap(_like(values, node, x), values[x], cap), x)

    def _launch(self, launch: Launch, *reads: Node) -> None:
        self.launches.append(launch)
        self.reads.append(reads)

    def _store(self, node: StoreKv) -> None:
        [attended] = [n for n in self.nodes if isinstance(n, Attention) and n.layer == node.layer]
        q, k, v = (_heads_of(x) for x in (attended.q, node.k, node.v))
        assert q.product.x is k.product.x is v.product.x, "q, k and v read one input"
        x = q.product.x
        matrices = [own_matrix(heads.product.weight) for heads in (q, k, v)]
        widths = [matrix.shape[0] for matrix in matrices]
        weight = stacked(matrices)
        biases = biases_of([heads.product.bias for heads in (q, k, v)], matrices)
        bias = None if biases is None else torch.cat(biases)
        pool, layer, queries = self.pool, node.layer, attended.q
        transform = _transform_of(q, k, pool.shape.head_size)
        whole = [_norm_of_row(heads, pool.shape.head_size) for heads in (q, k)]
        starts = [0, widths[0]]

        def launch(values: Values, step: CompiledStep) -> None:
            rows = values[x]
            qkv = rows.new_empty((rows.shape[0], sum(widths)))
            linear(qkv, rows, weight, bias)
            for norm, start, width in zip(whole, starts, widths, strict=False):
                if norm is not None:
                    part = qkv[:, start : start + width]
                    rms_norm(part, part, own(norm.weight), norm.eps)
            made = _put(values, queries, rows.new_empty((rows.shape[0], widths[0])))
            store_heads(
                made, qkv, pool, layer, step.attention, step.tokens.chunks, step.tokens.positions, transform
            )

        self._launch(launch, x)

    def _attend(self, node: Attention) -> None:
        form, pool, layer, q = _form_of(node.spec), self.pool, node.layer, node.q
        self._launch(
            lambda values, step: step.attend(_like(values, node, q), values[q], pool, layer, form), q
        )

    def _norm(self, node: RowNorm) -> None:
        weight, bias, eps = own(node.weight), node.bias, node.eps
        added = self._sums.get(node)
        x, branch = (node.x, None) if added is None else (added.x, added.y)

        def launch(values: Values, step: CompiledStep) -> None:
            rows, other = values[x], None if branch is None else values[branch]
            out = _like(values, node, x)
            if bias is None:
                rms_norm(out, rows, weight, eps, other)
            else:
                layer_norm(out, rows, weight, own(bias), eps, other)
            if added is not None:
                values[added] = rows  # written in place

        self._launch(launch, x, *([] if branch is None else [branch]))

    def _product(self, node: Product) -> None:
        x, weight = node.x, own_matrix(node.weight).data
        bias = None if node.bias is None else own(node.bias)

        def launch(values: Values, step: CompiledStep) -> None:
            rows = values[x]
            out = _put(values, node, rows.new_empty((rows.shape[0], weight.shape[0])))
            linear(out, rows, weight, bias)

        self._launch(launch, x)

    def _gate(self, node: GatedActivation) -> None:
        gate, up, activation = node.gate, node.up, node.activation
        assert isinstance(gate, Product)
        assert isinstance(up, Product)
        assert gate.x is up.x, "gate and up read one input"
        matrices, x = [own_matrix(product.weight) for product in (gate, up)], gate.x
        weight, width = interleaved(*matrices), matrices[0].shape[0]
        biases = biases_of([gate.bias, up.bias], matrices)
        bias = None if biases is None else torch.stack(biases, 1).flatten()

        def launch(values: Values, step: CompiledStep) -> None:
            rows = values[x]
            out = _put(values, node, rows.new_empty((rows.shape[0], width)))
            linear_gated(out, rows, weight, activation, bias)

        self._launch(launch, x)

    def _embed_or_add(self, node: Embed | Scale | Sum) -> None:
        if isinstance(node, Scale) and not isinstance(node.x, Embed):
            x, factor = node.x, node.factor
            self._launch(lambda values, step: scale(_like(values, node, x), values[x], factor), x)
            return
        if isinstance(node, Sum) and not _is_embedding(node):
            first, second = node.x, node.y
            self._launch(
                lambda values, step: _put(values, node, values[first] + values[second]), first, second
            )
            return
        parts = _parts_of_embedding(node)
        [tokens] = [n for n in parts if isinstance(n, Embed) and n.rows is not POSITIONS]
        learned = [n for n in parts if isinstance(n, Embed) and n.rows is POSITIONS]
        factors = [n.factor for n in parts if isinstance(n, Scale)] or [1.0]
        table = own_matrix(tokens.table).data
        places = own_matrix(learned[0].table).data if learned else None
        if tokens.starts:
            assert self.group is not None
            split = SplitTable(table, tokens.starts, self.group)
            self._launch(lambda values, step: _put(values, node, split.rows(step.tokens, factors[0], places)))
            return

        def launch(values: Values, step: CompiledStep) -> None:
            num_tokens = step.tokens.positions.shape[0]
            out = _put(values, node, table.new_empty((num_tokens, table.shape[1])))
            embed(out, table, step.tokens, factors[0], places)

        self._launch(launch)


def _heads_of(node: Node) -> _Heads:
    """The product, and the norm of heads and the rope over it, if any."""
    nodes, rope, norm = [node], None, None
    if isinstance(node, Rope):
        rope, node = node, node.x
        nodes.append(node)
    if isinstance(node, RowNorm):
        norm, node = node, node.x
        nodes.append(node)
    assert isinstance(node, Product), "heads are products"
    return _Heads(node, norm, rope, tuple(nodes))


def _norm_of_row(heads: _Heads, head_size: int) -> RowNorm | None:
    """The norm if it is over all heads together."""
    return heads.norm if heads.norm is not None and heads.norm.weight.shape[0] != head_size else None


def _transform_of(q: _Heads, k: _Heads, head_size: int) -> HeadTransform:
    """The store's transformation of each head of q and k."""
    assert (q.rope is None) == (k.rope is None), "queries and keys both have rope, or neither"
    q_norm, k_norm = (None if _norm_of_row(heads, head_size) is not None else heads.norm for heads in (q, k))
    return HeadTransform(
        None if q_norm is None else own(q_norm.weight),
        None if k_norm is None else own(k_norm.weight),
        1e-6 if q_norm is None else q_norm.eps,
        None if q.rope is None else own(q.rope.cos),
        None if q.rope is None else own(q.rope.sin),
        None if k.rope is None else own(k.rope.cos),
        None if k.rope is None else own(k.rope.sin),
    )


def _is_embedding(node: Node) -> bool:
    """A sum of token and position rows."""
    return isinstance(node, Sum) and isinstance(node.y, Embed) and node.y.rows is POSITIONS


def _parts_of_embedding(node: Node) -> list[Node]:
    """The node, and its parts."""
    parts = [node]
    if isinstance(node, Sum):
        parts += [node.y, *_parts_of_embedding(node.x)]
    elif isinstance(node, Scale):
        parts += _parts_of_embedding(node.x)
    return parts


def _form_of(spec: AttentionSpec) -> AttentionForm:
    def vector(given: Vector | None) -> Tensor | None:
        return None if given is None else own(given)

    return AttentionForm(spec.scale, spec.window, spec.soft_cap, vector(spec.sinks), vector(spec.slopes))


def _put(values: Values, node: Node, made: Tensor) -> Tensor:
    values[node] = made
    return made


def _wanted(x: Tensor, step: CompiledStep) -> Tensor:
    """The rows that need logits."""
    return x if step.logit_rows is None else x.index_select(0, step.logit_rows)


def _like(values: Values, node: Node, x: Node) -> Tensor:
    """A new tensor for the node, of x's shape."""
    return _put(values, node, torch.empty_like(values[x], memory_format=torch.contiguous_format))


class SplitTable:
    """An embedding table over ranks: token ids in, whole rows out."""

    def __init__(self, table: Tensor, starts: Sequence[int], group: RankGroup) -> None:
        """`table`: this rank's rows, [starts[rank], starts[rank + 1]) of the whole one."""
        self._table, self._group = table, group
        self._first, self._last = starts[group.rank], starts[group.rank + 1]
        self._bounds = torch.tensor(starts[1:-1], dtype=torch.int32, device=table.device)

    def rows(self, step: TokenPlaces, factor: float, positions_table: Tensor | None) -> Tensor:
        """(T, E), with the bits of `embed`: each rank looks up its own rows, all pieces are gathered, and
        each token uses its owner's."""
        positions = step.positions.clamp(min=0)
        tokens = step.tokens[step.table_rows[step.chunks], positions]
        own = self._table[tokens.clamp(self._first, self._last - 1) - self._first]
        owners = (tokens[:, None] >= self._bounds).sum(1)
        rows = self._group.gather_pieces(own)[owners, torch.arange(tokens.shape[0], device=tokens.device)]
        numbers = rows.float() * factor
        if positions_table is not None:
            numbers += positions_table[positions].float()
        return torch.where(step.positions[:, None] < 0, 0.0, numbers).to(rows.dtype)
