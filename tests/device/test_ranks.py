"""Several ranks answer, to the bit, as one does: in each circumstance of the exactness suite."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.device.over_ranks import TinyRanked, TinyRankedKernels
from tests.device.over_torch import TinyCompiled, TinyTorch
from tests.drawn import crowd, plain, varied, varied_crowd
from tests.engine import grammar_cases
from tests.engine.test_embeddings_exact import wants_embedding
from tests.exactness import Preempter, Subject, in_random
from tests.tiny import random_prompt, request, run, settle, tiny_engine
from torch import Tensor
from triton.runtime import interpreter

from octavo.device.layout import Layout
from octavo.device.ranks.collectives import RankGroup
from octavo.executor.disk import DiskStore
from octavo.executor.host import HostStore, TieredStore
from octavo.executor.transfers import BlockStore
from octavo.kernels.contract import Floats, KvShape, Routing
from octavo.kernels.reference import ReferenceOps
from octavo.model.split import Split
from octavo.params import BeamParams, Pooling
from octavo.retention.transfers import Transfers

pytestmark = pytest.mark.full


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_prompt_and_its_answers(num_ranks: int) -> None:
    rng = np.random.default_rng(3)
    requests = [
        request(1, random_prompt(rng, 40), 8),
        request(2, random_prompt(rng, 21), 6, n=3, temperature=0.9, seed=4, top_p=0.9),
        request(
            3, random_prompt(rng, 5), 6, temperature=0.7, seed=9, presence_penalty=0.5, prompt_logprobs=2
        ),
    ]
    expected = run(tiny_engine(TinyTorch()), requests)
    engine = tiny_engine(TinyRanked(num_ranks), depth=1)
    answers = run(engine, requests)
    engine.executor.close()
    assert {k: a.essence for k, a in answers.items()} == {k: a.essence for k, a in expected.items()}


@dataclass
class AgainstOne(Subject):
    """Several ranks, compared with what one came to alone."""

    one: Subject = field(kw_only=True)

    def alone(self, seed: int) -> list[object]:
        return self.one.alone(seed)

    def tokens(self, seed: int) -> list[list[int]]:
        return self.one.tokens(seed)


@pytest.mark.parametrize(
    ("num_ranks", "kv"), [(2, "f32"), (2, "bf16"), (2, "int8"), (2, "fp8"), (4, "f32"), (4, "int8")]
)
@pytest.mark.parametrize("drafts", [False, True])
def test_in_random_circumstances(num_ranks: int, kv: str, drafts: bool) -> None:
    met: Counter[str] = Counter()
    one = Subject(TinyTorch(kv), plain, crowd)
    several = AgainstOne(TinyRanked(num_ranks, kv), plain, crowd, one=one)
    for seed in range(6 if num_ranks == 2 else 3):
        assert in_random(several, seed, met, drafts=drafts) == []
    assert met["preempted"]
    assert met["in a crowd"]


def test_with_masks_grammars_beams_and_experts() -> None:
    one, several, met = TinyTorch(), TinyRanked(2), Counter[str]()
    of_one = Subject(one, varied, varied_crowd)
    for seed in range(8):
        own = AgainstOne(several, varied, varied_crowd, one=of_one)
        assert in_random(own, seed, met, drafts=seed % 2 == 0) == []
    led = grammar_cases.subject(one)
    own = AgainstOne(several, led.draw, led.crowd, grammars=led.grammars, one=led)
    for seed in range(6):
        assert in_random(own, seed, met, drafts=seed % 2 == 0) == []
    assert met["masked"]
    assert met["accepted"]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_mixture(num_ranks: int) -> None:
    one, several, met = TinyTorch(), TinyRanked(num_ranks), Counter[str]()
    for ops in (one, several):
        ops.routing = Routing(2, "softmax", normalised=True)  # type: ignore[attr-defined]
    of_one = Subject(one, plain, crowd)
    for seed in range(3):
        assert in_random(AgainstOne(several, plain, crowd, one=of_one), seed, met) == []


def test_embeddings_and_beams() -> None:
    rng = np.random.default_rng(6)
    wanted = [
        wants_embedding(1, random_prompt(rng, 70), Pooling.LAST),
        wants_embedding(2, random_prompt(rng, 33), Pooling.MEAN),
        request(3, random_prompt(rng, 20), 6, n=3, beams=BeamParams(3), logprobs=0),
    ]
    expected = run(tiny_engine(TinyTorch()), wanted)
    engine = tiny_engine(TinyRanked(2), step_tokens=24, depth=1)
    answers = run(engine, wanted)
    engine.executor.close()
    assert {k: a.essence for k, a in answers.items()} == {k: a.essence for k, a in expected.items()}


@pytest.mark.parametrize("tiers", ["host", "disk", "both"])
@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_blocks_come_back_from_the_tiers_below(tiers: str, kv: str, tmp_path: Path) -> None:
    """Each rank moves its share; a pool that is too small preempts, and a restart finds what is on disk."""
    rng = np.random.default_rng(8)
    wanted = [request(i, random_prompt(rng, 60 + i), 20, temperature=0.8, seed=i) for i in range(6)]
    expected = {k: a.essence for k, a in run(tiny_engine(TinyTorch(kv)), wanted).items()}
    block_bytes = 2 * Layout(KvShape(2, 1, 16, 16, kv)).bytes_per_block
    met = 0
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        for _ in range(2):
            disk = None if tiers == "host" else DiskStore.open(tmp_path, 80 << 20, block_bytes, b"f" * 32)
            host = None if tiers == "disk" else HostStore(40 * block_bytes, block_bytes)
            store: BlockStore
            if disk is None or host is None:
                store = disk or host  # type: ignore[assignment]
            else:
                store = TieredStore(host, disk)
            num_host = 0 if host is None else host.num_slots
            engine = tiny_engine(
                TinyRanked(2, kv), num_blocks=14, store=store, num_host=num_host, staging=4, step_tokens=32
            )
            for _ in range(2):
                answers = run(engine, wanted, Preempter(engine, {6, 9, 12, 20, 30}))
                assert {k: a.essence for k, a in answers.items()} == expected
                settle(engine)
            met += engine.scheduler.transfers.num_loaded
            engine.executor.close()
    assert met


def flipped(group: RankGroup, x: Tensor) -> Tensor:
    return gather_pieces(group, x).flip(0)


def uncut(ops: ReferenceOps, x: Floats, widths: Sequence[int]) -> Floats:
    widest = max(widths)
    return gather(ops, x, [widest] * len(widths))[:, : sum(widths)]


def exchanged(split: Split, num_heads: int) -> range:
    return heads(split.of(split.num_ranks - 1 - split.rank), num_heads)


gather_pieces, gather, heads = RankGroup.gather_pieces, ReferenceOps.gather, Split.heads
PLANTED = [
    (RankGroup, "gather_pieces", flipped),
    (ReferenceOps, "gather", uncut),
    (Split, "heads", exchanged),
]


@pytest.mark.parametrize(("where", "name", "bug"), PLANTED, ids=["order", "padding", "head"])
def test_a_planted_bug_is_caught(where: type, name: str, bug: object) -> None:
    wanted = [request(1, random_prompt(np.random.default_rng(3), 40), 8)]
    expected = run(tiny_engine(TinyTorch()), wanted)
    with mock.patch.object(where, name, bug):
        engine = tiny_engine(TinyRanked(2))
        answers = run(engine, wanted)
        engine.executor.close()
    assert answers[1, 0].essence != expected[1, 0].essence


def test_one_that_is_interrupted_in_a_step_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a script: the next step would pair its gathers with those of the one before."""
    engine = tiny_engine(TinyRanked(2))
    ranks = engine.executor._runner.forward._ranks  # type: ignore[attr-defined]
    add = ReferenceOps.add

    def interrupt(ops: ReferenceOps, x: Floats, y: Floats) -> Floats:
        if ops.ranks is not None and ops.ranks.rank == 0:
            raise KeyboardInterrupt
        return add(ops, x, y)

    monkeypatch.setattr(ReferenceOps, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(engine, [request(1, [5, 6, 7], 4)])
    assert "rank 0 was interrupted while all ranks compute (KeyboardInterrupt)" in str(ranks.failures)


@pytest.fixture
def one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is one for all threads."""
    lock, call = threading.Lock(), interpreter.GridExecutor.__call__

    def call_alone(*given: object, **named: object) -> object:
        with lock:
            return call(*given, **named)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call_alone)


@pytest.mark.usefixtures("chained_dots", "one_kernel_at_a_time")
@pytest.mark.parametrize(("num_ranks", "kv"), [(2, "f32"), (2, "int8"), (4, "bf16")])
def test_kernels_over_ranks_give_the_bits_of_one(num_ranks: int, kv: str) -> None:
    rng = np.random.default_rng(4)
    wanted = [
        request(1, random_prompt(rng, 11), 3),
        request(2, random_prompt(rng, 5), 3, n=2, temperature=0.9, seed=3, top_p=0.9, logprobs=None),
        request(3, random_prompt(rng, 19), 3, repetition_penalty=1.3, presence_penalty=0.5),
    ]
    expected = run(tiny_engine(TinyCompiled(kv)), wanted)  # type: ignore[arg-type]
    engine = tiny_engine(TinyRankedKernels(num_ranks, kv), depth=1, step_tokens=14)  # type: ignore[arg-type]
    answers = run(engine, wanted)
    engine.executor.close()
    assert {k: a.essence for k, a in answers.items()} == {k: a.essence for k, a in expected.items()}
