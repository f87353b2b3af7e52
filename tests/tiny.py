"""A tiny random Llama, and an engine over it, for tests that need a model but no file."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.core import Engine
from octavo.engine.inbox import Inbox
from octavo.engine.memory_watch import MemoryWatch
from octavo.executor.executor import InlineExecutor, ThreadedExecutor
from octavo.executor.forward import HostForward
from octavo.executor.runner import Runner, RunnerConfig, kv_shape
from octavo.executor.transfers import BlockStore, TransferWorker
from octavo.kernels.contract import (
    Expert,
    Floats,
    KvPool,
    KvShape,
    Linear,
    Matrix,
    Ops,
    RawTensor,
    Routing,
)
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import BLOCKS
from octavo.kernels.reference import ReferenceOps
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.tiers import OffloadTier
from octavo.model.rope import RopeSpec
from octavo.model.spec import LayerWeights, Mixture, Model, ModelSpec, ModelWeights, Norm, rope_tables_of
from octavo.model.split import Split, rows_of_heads
from octavo.params import SamplerParams
from octavo.sampling.grammars import Grammars
from octavo.scheduler.scheduler import Scheduler
from octavo.speculation.speculator import Speculator
from octavo.step.context import SchedulerConfig
from octavo.types import FinishReason, Request, SampledToken
from tests.blocks import SUPER_KINDS, encoded

VOCAB, CONTEXT, EOS = 97, 512, 1
MIXED, MIXTURE = "MIXED", ("Q2_K", "Q3_K", "Q5_K", "IQ4_XS", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")


def tiny_model(ops: Ops, seed: int = 0, split: Split | None = None, **changes: object) -> Model:
    """Two layers, 4 query and 2 kv heads of 16, hidden 64 or `ops.hidden`, vocabulary 97, random weights; a
    rank's part of these.

    Over `ops.routing` both layers have seven experts, the second a part that all tokens share, too.
    """
    rng = np.random.default_rng(seed)
    hidden: int = getattr(ops, "hidden", 64)
    ffn = 96 if hidden == 64 else hidden
    narrower = (64 / hidden) ** 0.5  # so that a wide model is not surer of its tokens
    spec = ModelSpec(
        family="llama",
        num_layers=2,
        hidden_size=hidden,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        ffn_size=ffn,
        vocab_size=VOCAB,
        context_length=CONTEXT,
        attention_scale=0.25,
        routing=getattr(ops, "routing", None),
        num_experts=7 if hasattr(ops, "routing") else 0,
        expert_ffn_size=ffn if hasattr(ops, "routing") else 0,
        ropes=(RopeSpec(10_000.0, 16),) * 2,
        **changes,  # type: ignore[arg-type]
    )

    split = split or Split()

    def matrix(outputs: int, inputs: int, spread: float = 0.2, own: range | None = None):  # type: ignore[no-untyped-def]
        values = rng.normal(0, spread * narrower, (outputs, inputs)).astype(np.float32)
        own = own or split.rows(outputs)
        values = np.ascontiguousarray(values[own.start : own.stop])
        return ops.matrix(RawTensor("w", "F32", values.shape, values.view(np.uint8).reshape(-1)))

    def norm() -> Norm:
        return Norm(ops.vector(rng.normal(1, 0.1, hidden).astype(np.float32)))

    def mixture() -> Mixture | None:
        if not hasattr(ops, "routing"):
            return None
        experts = [
            [matrix(*shape) for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn))] for _ in range(7)
        ]
        router = Linear(matrix(7, hidden, own=range(7)))
        return Mixture(router, tuple(Expert(*map(Linear, parts)) for parts in experts))

    def shared_part(index: int) -> dict[str, Linear]:
        if hasattr(ops, "routing") and index == 0:
            return {}
        up, down, gate = ((ffn, hidden), (hidden, ffn), (ffn, hidden))
        return {"up": Linear(matrix(*up)), "down": Linear(matrix(*down)), "gate": Linear(matrix(*gate))}

    layers = tuple(
        LayerWeights(
            attention_norm=norm(),
            q=Linear(matrix(64, hidden, own=rows_of_heads(split.heads(4), 16))),
            k=Linear(matrix(32, hidden, own=rows_of_heads(split.kv_heads(2), 16))),
            v=Linear(matrix(32, hidden, own=rows_of_heads(split.kv_heads(2), 16))),
            o=Linear(matrix(hidden, 64)),
            ffn_norm=norm(),
            **shared_part(index),
            mixture=mixture(),
        )
        for index in range(2)
    )
    embedding = matrix(VOCAB, hidden, 0.5)
    weights = ModelWeights(embedding, layers, norm(), embedding)
    return Model("tiny", spec, weights, b"\0" * 32, rope_tables_of(spec, ops.vector), split)


@dataclass(slots=True)
class Answer:
    """What one choice came to: tokens, and the bits of their logprobs."""

    tokens: list[int] = field(default_factory=list)
    bits: list[bytes] = field(default_factory=list)
    prompt_bits: list[bytes] = field(default_factory=list)
    finish: FinishReason | None = None
    cached: int = 0
    preemptions: int = 0
    drafted: int = 0
    accepted: int = 0
    embedding: bytes = b""

    def add(self, tokens: Sequence[SampledToken]) -> None:
        self.tokens += [t.token for t in tokens]
        self.bits += [bits_of(t) for t in tokens]

    @property
    def essence(self) -> tuple[list[int], list[bytes], list[bytes], FinishReason | None, bytes]:
        """What the exactness contract promises."""
        return self.tokens, self.bits, self.prompt_bits, self.finish, self.embedding


def bits_of(token: SampledToken) -> bytes:
    """The token's logprobs, bit for bit."""
    flat = [token.logprob, *(logprob for _, logprob in token.top)]
    return np.array(flat, np.float64).tobytes() + np.array([t for t, _ in token.top], np.int32).tobytes()


def tiny_engine(
    ops: Ops,
    *,
    num_blocks: int = 200,
    block_size: int = 16,
    rows: int = 16,
    step_tokens: int = 64,
    depth: int = 0,
    model: Model | None = None,
    prefix_caching: bool = True,
    max_waiting: int = 1000,
    kv: str = "f32",
    store: BlockStore | None = None,
    num_host: int = 0,
    staging: int = 0,
    watch: MemoryWatch | None = None,
    clock: Callable[[], float] = time.perf_counter,
    grammars: Grammars | None = None,
    fast_forward: bool = True,
    speculator: Speculator | None = None,
    long_context: bool = False,
) -> Engine:
    """An engine over the tiny model, turned by the caller."""
    if model is None:
        model = mixed_model(ops) if hasattr(ops, "routing") else tiny_model(ops)
    inbox = Inbox()
    worker = None if store is None else TransferWorker(store, inbox.finish_transfer)
    vocabulary, ends = model.spec.vocab_size, frozenset([EOS])
    of_runner = RunnerConfig(block_size, rows, CONTEXT, ends, vocabulary, fast_forward=fast_forward)
    shape = kv_shape(model, block_size, kv)
    if hasattr(ops, "new_runner"):  # torch's
        runner = ops.new_runner(model, shape, num_blocks + staging, of_runner, worker, grammars)
    else:
        runner = Runner(HostForward(model, ops, shape, num_blocks + staging), of_runner, worker, grammars)
    config = SchedulerConfig(
        rows,
        step_tokens,
        max_waiting,
        CONTEXT,
        frozenset([EOS]),
        prefix_caching=prefix_caching,
        pace=False,
        pin_blocks=num_blocks // 2,
        staging_blocks=staging,
        parts_max=runner.cold_reach.num_parts,
    )

    def scheduler() -> Scheduler:
        num_readable = runner.cold_reach.num_slots if long_context else 0
        tier = None
        if store is not None:
            tier = OffloadTier(store.num_slots, store.entries(), num_host=num_host, num_readable=num_readable)
        memory = Ledger(num_blocks, block_size)
        return Scheduler(memory, config, lambda tenant: root_name(tenant.encode()), tier, speculator)

    if hasattr(ops, "new_executor"):
        executor = ops.new_executor(runner)
    else:
        executor = ThreadedExecutor(runner) if depth else InlineExecutor(runner)
    return Engine(scheduler, executor, runner.reset, depth, clock, inbox, watch)


def pool_bytes(engine: Engine):  # type: ignore[no-untyped-def]
    """The bytes of all its blocks, (N, bytes of a block), to be written over."""
    runner = engine.executor._runner  # type: ignore[attr-defined]
    return runner.forward.pool.data


def request(request_id: int, prompt: Sequence[int], max_tokens: int, n: int = 1, **params: object) -> Request:
    """A request with logprobs, so that bits can be compared."""
    params = {"logprobs": 3, "temperature": 0.0, **params}
    sampling = SamplerParams(**params)  # type: ignore[arg-type]
    return Request(request_id, tuple(prompt), sampling, max_tokens, sampling.seed or 0, n)


def run(
    engine: Engine, requests: Sequence[Request], between: Callable[[int], None] = lambda step: None
) -> dict[tuple[int, int], Answer]:
    """Submit all, turn until idle with every invariant checked; answers by (request id, choice)."""
    for one in requests:
        engine.scheduler.submit(one)
    answers: dict[tuple[int, int], Answer] = {}
    step = 0
    while engine.has_work:
        if engine.idle:
            engine.inbox.wait(10)  # for a transfer
        for update in engine.step():
            answer = answers.setdefault((update.request_id, update.choice), Answer())
            answer.add(update.tokens)
            answer.prompt_bits += [bits_of(t) for t in update.prompt_logprobs]
            assert answer.finish is None, "an update after the final one"
            answer.finish, answer.embedding = update.finish, update.embedding
            usage = update.usage
            answer.cached, answer.preemptions = usage.num_cached, usage.preemptions
            answer.drafted, answer.accepted = usage.num_drafted, usage.num_accepted
        engine.scheduler.check()
        step += 1
        between(step)
        assert step < 10_000, "livelock"
    return answers


def settle(engine: Engine) -> None:
    """Step until nothing is on its way between the pool and the tier below."""
    engine.step()
    while engine.scheduler.transfers.in_flight:
        engine.inbox.wait(10)
        engine.step()
        engine.scheduler.check()


def random_prompt(rng: np.random.Generator, length: int) -> list[int]:
    """Token ids without the end-of-sequence token."""
    return [int(t) for t in rng.integers(2, VOCAB, length)]


def floats(values: object) -> Floats:
    """As float32."""
    return np.asarray(values, np.float32)


def over_weights_of(kind: str, ops: NativeOps | ReferenceOps) -> NativeOps | ReferenceOps:
    """The same ops, as if every float32 matrix came from a file that holds it in `kind`.

    A kind of super-blocks makes the tiny model 256 wide; its rows of 64 become Q8_0, as in real files. MIXED
    means any kind of `MIXTURE`, by what the matrix holds.
    """
    plain = ops.matrix
    known: dict[bytes, RawTensor] = {}  # encoding takes longer than many a step

    def kind_of(raw: RawTensor) -> str:
        fitting = [k for k in (MIXTURE if kind == MIXED else [kind]) if raw.shape[1] % BLOCKS[k].size == 0]
        return fitting[zlib.adler32(raw.data) % len(fitting)] if fitting else "Q8_0"

    def matrix(raw: RawTensor, table: bool = False) -> Matrix:
        key = raw.data.tobytes()
        if key not in known or known[key].shape != raw.shape:
            known[key] = encoded(raw, kind_of(raw))
        return plain(known[key], table)

    ops.matrix = matrix  # type: ignore[method-assign]
    if kind in SUPER_KINDS or kind == MIXED:
        ops.hidden = 256  # type: ignore[union-attr]
    return ops


def over_kv_of(kind: str, ops: NativeOps | ReferenceOps) -> NativeOps | ReferenceOps:
    """The same ops, as if every pool had been asked for in `kind`."""
    plain = ops.allocate_kv

    def allocate_kv(shape: KvShape, num_blocks: int) -> KvPool:
        return plain(dataclasses.replace(shape, kind=kind), num_blocks)

    ops.allocate_kv = allocate_kv  # type: ignore[method-assign]
    return ops


def mixed_model(ops: Ops) -> Model:
    """The tiny model of ops with a routing, made once: its experts take a while."""
    if not hasattr(ops, "mixed"):
        ops.mixed = tiny_model(ops)  # type: ignore[attr-defined]
    model: Model = ops.mixed
    return model


def over_experts(routing: Routing, ops: NativeOps | ReferenceOps) -> NativeOps | ReferenceOps:
    """The same ops, over a tiny model whose layers are mixtures."""
    ops.routing = routing  # type: ignore[union-attr]
    return ops
