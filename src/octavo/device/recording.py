"""The decoder's ops written down instead of done, as nodes that name what they read.

    hidden_states(NodeRecorder(), model, pool, RECORDED)  -->  nodes in order  -->  lowering.py  -->  launches

A node stands for its result. It knows no tensor but weights, so one record serves every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from octavo.errors import UnsupportedModel
from octavo.kernels.contract import AttentionSpec, Batch, Expert, Matrix, Routing, Vector


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
class Embed(Node):
    """Rows of a table for tokens, or for positions."""

    table: Matrix
    rows: StepArray


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
class Turned(Node):
    """Rope."""

    x: Node
    cos: Vector
    sin: Vector


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


class NodeRecorder:
    """`StepOps` over nodes; `nodes` are all of them, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def embed(self, table: Matrix, tokens: StepArray) -> Embed:
        """Rows of the table."""
        return self._note(Embed(table, tokens))

    def take(self, x: Node, rows: StepArray) -> Take:
        """The rows whose logits are wanted."""
        assert rows is LOGIT_ROWS, "not an array of the step"
        return self._note(Take(x))

    def linear(self, x: Node, weight: Matrix, bias: Vector | None = None) -> Product:
        """x @ weight.T + bias."""
        return self._note(Product(x, weight, bias))

    def rms_norm(self, x: Node, weight: Vector, eps: float) -> Normed:
        """Of rows, or of heads."""
        return self._note(Normed(x, weight, None, eps))

    def layer_norm(self, x: Node, weight: Vector, bias: Vector, eps: float) -> Normed:
        """Of rows."""
        return self._note(Normed(x, weight, bias, eps))

    def rope(self, x: Node, positions: StepArray, cos: Vector, sin: Vector, head_size: int) -> Turned:
        """Halves of each head, rotated."""
        assert positions is POSITIONS, "not an array of the step"
        return self._note(Turned(x, cos, sin))

    def store(self, pool: object, layer: int, k: Node, v: Node, batch: Batch[StepArray]) -> None:
        """K and V into their slots."""
        self._note(Stored(layer, k, v))

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
        assert log_sum_exp is None, "a recorded step has no second result"
        return self._note(Attended(layer, q, spec))

    def gated(self, gate: Node, up: Node, activation: str) -> Gated:
        """activation(gate) * up."""
        return self._note(Gated(gate, up, activation))

    def activate(self, x: Node, activation: str) -> Activated:
        """activation(x)."""
        return self._note(Activated(x, activation))

    def experts(
        self, x: Node, router_logits: Node, experts: Sequence[Expert], routing: Routing, activation: str
    ) -> NoReturn:
        """Raises UnsupportedModel: how many rows an expert gets is known to the device alone, while launches
        and captured steps have sizes that the host fixes; a grouped product would have to be a kernel."""
        raise UnsupportedModel(
            f"the model is a mixture of {len(experts)} experts, for which the GPU's kernels have no product; "
            "allowed: --backend native, or --backend torch --device cpu"
        )

    def add(self, x: Node, y: Node) -> Sum:
        """x + y."""
        return self._note(Sum(x, y))

    def scale(self, x: Node, factor: float) -> Scaled:
        """x * factor."""
        return self._note(Scaled(x, factor))

    def soft_cap(self, x: Node, cap: float) -> Capped:
        """cap * tanh(x / cap)."""
        return self._note(Capped(x, cap))

    def _note(self, node: NodeT) -> NodeT:
        self.nodes.append(node)
        return node
