"""Records the decoder's ops instead of running them, as nodes that name their inputs.

    record_step(body, pool)  -->  nodes in order  -->  `program.py`: a native program's phases
                                                  -->  `device/lowering.py`: launches of kernels

A node stands for its result. A record holds no arrays but weights, so one serves every step of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from octavo.kernels.contract import AttentionSpec, Batch, Expert, Matrix, Routing, RowsBody, Vector


@dataclass(frozen=True, slots=True)
class StepArray:
    """An array of the step, by name."""

    name: str


TOKENS, POSITIONS, STARTS, OFFSETS, TABLES, LOGIT_ROWS = (
    StepArray(name) for name in ("tokens", "positions", "starts", "offsets", "tables", "logit_rows")
)
RECORDED = Batch(TOKENS, POSITIONS, STARTS, OFFSETS, TABLES, LOGIT_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The result of an op."""


NodeT = TypeVar("NodeT", bound=Node)


@dataclass(frozen=True, slots=True, eq=False)
class RowsInput(Node):
    """The rows passed to the function, (R, width)."""

    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Embed(Node):
    """Rows of a table for tokens, or for positions. `starts`: which rows each rank's table has; (): all."""

    table: Matrix
    rows: StepArray
    starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Gather(Node):
    """The columns of all ranks; `widths`: the number of each rank."""

    x: Node
    widths: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Columns(Node):
    """x[:, first:last]."""

    x: Node
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Take(Node):
    """The rows that need logits."""

    x: Node


@dataclass(frozen=True, slots=True, eq=False)
class Product(Node):
    """x @ weight.T + bias."""

    x: Node
    weight: Matrix
    bias: Vector | None


@dataclass(frozen=True, slots=True, eq=False)
class RowNorm(Node):
    """RMS norm without a bias, layer norm with one."""

    x: Node
    weight: Vector
    bias: Vector | None
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Node):
    """Rotary position embedding of x."""

    x: Node
    cos: Vector
    sin: Vector
    head_size: int


@dataclass(frozen=True, slots=True, eq=False)
class StoreKv(Node):
    """Writes K and V to their slots; it has no result."""

    layer: int
    k: Node
    v: Node


@dataclass(frozen=True, slots=True, eq=False)
class Attention(Node):
    """Attention of a layer's heads."""

    layer: int
    q: Node
    spec: AttentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class GatedActivation(Node):
    """activation(gate) * up."""

    gate: Node
    up: Node
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Activation(Node):
    """activation(x)."""

    x: Node
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOfExperts(Node):
    """Each row's weighted sum of its experts."""

    x: Node
    router_logits: Node
    experts: Sequence[Expert]
    routing: Routing
    activation: str
    widths: Sequence[int] = ()  # inner columns of each rank; (): one has all


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Node):
    """x + y."""

    x: Node
    y: Node


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Node):
    """x * factor."""

    x: Node
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class SoftCap(Node):
    """cap * tanh(x / cap)."""

    x: Node
    cap: float


@dataclass(frozen=True, slots=True)
class Record:
    """Nodes in order, and the one whose value is the result."""

    nodes: Sequence[Node]
    result: Node


@dataclass
class NodeRecorder:
    """`StepOps` over nodes; `nodes` are all of them, in order."""

    pool: object = None  # the only one that the step may name
    nodes: list[Node] = field(default_factory=list)

    def embed(self, table: Matrix, tokens: StepArray, starts: Sequence[int] = ()) -> Embed:
        """Rows of the table for the step's tokens or positions."""
        assert tokens is TOKENS or tokens is POSITIONS, "not an array of the step"
        return self.note(Embed(table, tokens, starts))

    def gather(self, x: Node, widths: Sequence[int]) -> Gather:
        """The columns of all ranks."""
        return self.note(Gather(x, widths))

    def columns(self, x: Node, first: int, last: int) -> Columns:
        """Columns [first, last) of x."""
        return self.note(Columns(x, first, last))

    def take(self, x: Node, rows: StepArray) -> Take:
        """The rows that need logits."""
        assert rows is LOGIT_ROWS, "not an array of the step"
        return self.note(Take(x))

    def linear(self, x: Node, weight: Matrix, bias: Vector | None = None) -> Product:
        """x @ weight.T + bias."""
        return self.note(Product(x, weight, bias))

    def rms_norm(self, x: Node, weight: Vector, eps: float) -> RowNorm:
        """RMS norm of rows, or of heads."""
        return self.note(RowNorm(x, weight, None, eps))

    def layer_norm(self, x: Node, weight: Vector, bias: Vector, eps: float) -> RowNorm:
        """Layer norm of rows."""
        return self.note(RowNorm(x, weight, bias, eps))

    def rope(self, x: Node, positions: StepArray, cos: Vector, sin: Vector, head_size: int) -> Rope:
        """Halves of each head, rotated."""
        assert positions is POSITIONS, "not an array of the step"
        return self.note(Rope(x, cos, sin, head_size))

    def store(self, pool: object, layer: int, k: Node, v: Node, batch: Batch[StepArray]) -> None:
        """K and V into their slots."""
        self._require_own(pool, batch)
        self.note(StoreKv(layer, k, v))

    def attend(
        self,
        pool: object,
        layer: int,
        q: Node,
        batch: Batch[StepArray],
        spec: AttentionSpec,
        log_sum_exp: Node | None = None,
    ) -> Attention:
        """Causal attention over the block tables."""
        self._require_own(pool, batch)
        assert log_sum_exp is None, "a recorded step has no second result"
        return self.note(Attention(layer, q, spec))

    def gated(self, gate: Node, up: Node, activation: str) -> GatedActivation:
        """activation(gate) * up."""
        return self.note(GatedActivation(gate, up, activation))

    def activate(self, x: Node, activation: str) -> Activation:
        """activation(x)."""
        return self.note(Activation(x, activation))

    def experts(
        self,
        x: Node,
        router_logits: Node,
        experts: Sequence[Expert],
        routing: Routing,
        activation: str,
        widths: Sequence[int] = (),
    ) -> MixtureOfExperts:
        """Each row's weighted sum of its experts."""
        return self.note(MixtureOfExperts(x, router_logits, experts, routing, activation, widths))

    def add(self, x: Node, y: Node) -> Sum:
        """x + y."""
        return self.note(Sum(x, y))

    def scale(self, x: Node, factor: float) -> Scale:
        """x * factor."""
        return self.note(Scale(x, factor))

    def soft_cap(self, x: Node, cap: float) -> SoftCap:
        """cap * tanh(x / cap)."""
        return self.note(SoftCap(x, cap))

    def note(self, node: NodeT) -> NodeT:
        """Record a node."""
        self.nodes.append(node)
        return node

    def _require_own(self, pool: object, batch: Batch[StepArray]) -> None:
        assert pool is self.pool, "a step is recorded over one pool"
        assert batch is RECORDED, "not the step's batch"


def record_step(body: Callable[[NodeRecorder, Batch[StepArray]], Node], pool: object) -> Record:
    """The nodes of a step over this pool."""
    recorder = NodeRecorder(pool)
    return Record(recorder.nodes, body(recorder, RECORDED))


def record_rows(body: RowsBody, width: int) -> Record:
    """The nodes of a function of rows (R, width)."""
    recorder = NodeRecorder()
    return Record(recorder.nodes, body(recorder, recorder.note(RowsInput(width))))
