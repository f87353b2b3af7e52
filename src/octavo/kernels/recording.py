"""The decoder's ops written down instead of done, as nodes that name what they read.

    record_step(body, pool)  -->  nodes in order  -->  `program.py`: a native program's phases
                                                  -->  `device/lowering.py`: launches of kernels

A node stands for its result. A record knows no array but weights, so one serves every step of a model.
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
class Given(Node):
    """Rows that come from outside, (R, width)."""

    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Embed(Node):
    """Rows of a table for tokens, or for positions. `starts`: which rows each rank's table has; (): all."""

    table: Matrix
    rows: StepArray
    starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Gathered(Node):
    """The columns of all ranks, so many of each."""

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
    """The rows whose logits are wanted."""

    x: Node


@dataclass(frozen=True, slots=True, eq=False)
class Product(Node):
    """x @ weight.T + bias."""

    x: Node
    weight: Matrix
    bias: Vector | None


@dataclass(frozen=True, slots=True, eq=False)
class Normed(Node):
    """RMS norm without a bias, layer norm with one."""

    x: Node
    weight: Vector
    bias: Vector | None
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Node):
    """Rope."""

    x: Node
    cos: Vector
    sin: Vector
    head_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Stored(Node):
    """K and V in their slots; it has no result."""

    layer: int
    k: Node
    v: Node


@dataclass(frozen=True, slots=True, eq=False)
class Attended(Node):
    """What the heads of a layer see."""

    layer: int
    q: Node
    spec: AttentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class Gated(Node):
    """activation(gate) * up."""

    gate: Node
    up: Node
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Activated(Node):
    """activation(x)."""

    x: Node
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Mixed(Node):
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
class Scaled(Node):
    """x * factor."""

    x: Node
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class Capped(Node):
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

    def gather(self, x: Node, widths: Sequence[int]) -> Gathered:
        """The columns of all ranks."""
        return self.note(Gathered(x, widths))

    def columns(self, x: Node, first: int, last: int) -> Columns:
        """Some of x."""
        return self.note(Columns(x, first, last))

    def take(self, x: Node, rows: StepArray) -> Take:
        """The rows whose logits are wanted."""
        assert rows is LOGIT_ROWS, "not an array of the step"
        return self.note(Take(x))

    def linear(self, x: Node, weight: Matrix, bias: Vector | None = None) -> Product:
        """x @ weight.T + bias."""
        return self.note(Product(x, weight, bias))

    def rms_norm(self, x: Node, weight: Vector, eps: float) -> Normed:
        """Of rows, or of heads."""
        return self.note(Normed(x, weight, None, eps))

    def layer_norm(self, x: Node, weight: Vector, bias: Vector, eps: float) -> Normed:
        """Of rows."""
        return self.note(Normed(x, weight, bias, eps))

    def rope(self, x: Node, positions: StepArray, cos: Vector, sin: Vector, head_size: int) -> Rope:
        """Halves of each head, rotated."""
        assert positions is POSITIONS, "not an array of the step"
        return self.note(Rope(x, cos, sin, head_size))

    def store(self, pool: object, layer: int, k: Node, v: Node, batch: Batch[StepArray]) -> None:
        """K and V into their slots."""
        self._require_own(pool, batch)
        self.note(Stored(layer, k, v))

    def attend(
        self,
        pool: object,
        layer: int,
        q: Node,
        batch: Batch[StepArray],
        spec: AttentionSpec,
        log_sum_exp: Node | None = None,
    ) -> Attended:
        """Causal attention over the block tables."""
        self._require_own(pool, batch)
        assert log_sum_exp is None, "a recorded step has no second result"
        return self.note(Attended(layer, q, spec))

    def gated(self, gate: Node, up: Node, activation: str) -> Gated:
        """activation(gate) * up."""
        return self.note(Gated(gate, up, activation))

    def activate(self, x: Node, activation: str) -> Activated:
        """activation(x)."""
        return self.note(Activated(x, activation))

    def experts(
        self,
        x: Node,
        router_logits: Node,
        experts: Sequence[Expert],
        routing: Routing,
        activation: str,
        widths: Sequence[int] = (),
    ) -> Mixed:
        """Each row's weighted sum of its experts."""
        return self.note(Mixed(x, router_logits, experts, routing, activation, widths))

    def add(self, x: Node, y: Node) -> Sum:
        """x + y."""
        return self.note(Sum(x, y))

    def scale(self, x: Node, factor: float) -> Scaled:
        """x * factor."""
        return self.note(Scaled(x, factor))

    def soft_cap(self, x: Node, cap: float) -> Capped:
        """cap * tanh(x / cap)."""
        return self.note(Capped(x, cap))

    def note(self, node: NodeT) -> NodeT:
        """Write a node down."""
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
    return Record(recorder.nodes, body(recorder, recorder.note(Given(width))))
