"""When a device or its memory fails: a kernel takes its own requests, a lost device ends the engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.device.over_torch import CPU, TinyTorch
from tests.tiny import random_prompt, request, run, tiny_engine, tiny_model
from triton.runtime.errors import OutOfResources

from octavo.config import StartOptions
from octavo.device import backend as backend_module
from octavo.device.forward import describe_trouble
from octavo.device.layout import DevicePool
from octavo.device.open_backend import reference_backend
from octavo.device.rows import Writes
from octavo.device.weights import DeviceWeights
from octavo.errors import ConfigError, DeviceLost
from octavo.executor.backend import PoolSize
from octavo.executor.batch import StepShape
from octavo.executor.forward import Trouble
from octavo.executor.runner import Runner, RunnerConfig
from octavo.kernels.contract import KvShape, RawTensor
from octavo.model.loader import LoadedModel
from octavo.params import Pooling
from octavo.serving.start import size_pool
from octavo.types import FinishReason

pytestmark = pytest.mark.full

PROMPT = random_prompt(np.random.default_rng(2), 40)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step", [1, 3])
def test_a_kernel_that_fails_takes_its_requests_and_the_engine_goes_on(depth: int, step: int) -> None:
    ops = TinyTorch()
    wanted = run(tiny_engine(ops), [request(9, PROMPT, 6)])[9, 0]
    engine = tiny_engine(ops, depth=depth)
    arithmetic = engine.executor._runner.forward.arithmetic  # type: ignore[attr-defined]
    plain, calls = arithmetic.hidden, []

    def fails_once() -> torch.Tensor:
        calls.append(1)
        if len(calls) == step:
            raise RuntimeError("Triton Error [CUDA]: out of resource: shared memory\nmore of it")
        return plain()

    arithmetic.hidden = fails_once
    answers = run(engine, [request(1, PROMPT, 6), request(2, PROMPT[::-1], 6)])
    assert {answer.finish for answer in answers.values()} == {FinishReason.ERROR}
    after = run(engine, [request(3, PROMPT, 6)])[3, 0]
    assert after.essence == wanted.essence
    assert after.cached == 0, "a block that a failed step may have written was found again"
    [said] = {event.text.partition(": ")[2] for event in engine.scheduler.events.recent(2)} - {""}
    assert said == "a kernel failed on cpu: Triton Error [CUDA]: out of resource: shared memory"


@pytest.mark.parametrize("depth", [0, 1])
def test_children_of_a_fork_fail_with_their_parent_and_nothing_else_breaks(depth: int) -> None:
    """The next plan, made before the failure is known, counts on the children's rows; the error is Triton's
    own, which is no RuntimeError."""
    ops = TinyTorch()
    engine = tiny_engine(ops, depth=depth)
    arithmetic = engine.executor._runner.forward.arithmetic  # type: ignore[attr-defined]
    plain, errors = arithmetic.hidden, [OutOfResources(229_376, 166_912, "shared memory")]

    def fails_once() -> torch.Tensor:
        if errors:
            raise errors.pop()
        return plain()

    arithmetic.hidden = fails_once
    answers = run(engine, [request(1, PROMPT, 6, n=3)])
    assert [answer.finish for answer in answers.values()] == [FinishReason.ERROR] * 3
    wanted = run(tiny_engine(ops), [request(2, PROMPT, 6, n=3)])
    after = run(engine, [request(2, PROMPT, 6, n=3)])
    assert {key: answer.essence for key, answer in after.items()} == {
        key: answer.essence for key, answer in wanted.items()
    }


def test_requests_of_other_steps_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = TinyTorch()
    wanted = run(tiny_engine(ops), [request(1, PROMPT, 12)])[1, 0]
    engine = tiny_engine(ops)
    arithmetic = engine.executor._runner.forward.arithmetic  # type: ignore[attr-defined]
    plain = arithmetic.logits
    first = run(engine, [request(1, PROMPT, 12)])[1, 0]
    monkeypatch.setattr(arithmetic, "logits", lambda hidden: (_ for _ in ()).throw(RuntimeError("no")))
    assert run(engine, [request(2, PROMPT[:20], 3)])[2, 0].finish is FinishReason.ERROR
    monkeypatch.setattr(arithmetic, "logits", plain)
    assert first.essence == wanted.essence == run(engine, [request(3, PROMPT, 12)])[3, 0].essence


def test_a_bug_of_ours_is_no_kernels_failure() -> None:
    engine = tiny_engine(TinyTorch())
    engine.executor._runner.forward.arithmetic.hidden = lambda: PROMPT.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        run(engine, [request(1, PROMPT, 6)])


CUDA = torch.device("cuda", 0)


def test_a_device_that_answers_no_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand so on")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(DeviceLost, match=r"cuda:0 is lost \(CUDA error: an illegal memory access was"):
        describe_trouble(RuntimeError("launch failed"), CUDA)


def test_a_device_that_still_answers_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert describe_trouble(RuntimeError("launch failed"), CUDA) == Trouble(
        "a kernel failed on cuda:0: launch failed"
    )
    short = describe_trouble(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), CUDA)
    assert short.is_shortage
    assert "no memory left for the step (CUDA out of memory." in short.text
    assert "give a smaller --kv-memory or --step-tokens" in short.text


@pytest.mark.parametrize("depth", [0, 1])
def test_a_mean_whose_first_chunk_found_no_memory_is_the_same(depth: int) -> None:
    params = {"pooling": Pooling.MEAN, "temperature": 0.0, "logprobs": None}
    prompt = random_prompt(np.random.default_rng(5), 90)  # in two steps of 64 at most
    asked = request(1, prompt, 1, **params)
    wanted = run(tiny_engine(TinyTorch(), depth=depth), [asked])
    engine = tiny_engine(TinyTorch(), depth=depth)
    arithmetic = engine.executor._runner.forward.arithmetic  # type: ignore[attr-defined]
    plain, failures = arithmetic.hidden, [torch.OutOfMemoryError("CUDA out of memory")]

    def hidden() -> torch.Tensor:
        if failures:
            raise failures.pop()
        return plain()

    arithmetic.hidden = hidden
    found = run(engine, [asked])
    assert engine.num_recoveries == 0
    assert found[1, 0].finish is FinishReason.LENGTH
    assert found[1, 0].essence == wanted[1, 0].essence


@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_without_memory_is_computed_in_smaller_ones(depth: int) -> None:
    asked = [request(i, PROMPT[i:], 12, n=2, temperature=1.0) for i in range(1, 5)]
    wanted = run(tiny_engine(TinyTorch(), depth=depth), asked)
    engine = tiny_engine(TinyTorch(), depth=depth)
    arithmetic = engine.executor._runner.forward.arithmetic  # type: ignore[attr-defined]
    plain, prepare, sizes = arithmetic.hidden, arithmetic.prepare, list[int]()

    def prepare_noting(shape: StepShape, writes: Writes) -> None:
        sizes.append(shape.positions.size)
        prepare(shape, writes)

    def hidden() -> torch.Tensor:
        if sizes[-1] > 13:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain()

    arithmetic.prepare, arithmetic.hidden = prepare_noting, hidden
    answers = run(engine, asked)
    assert {key: answer.essence for key, answer in answers.items()} == {
        key: answer.essence for key, answer in wanted.items()
    }
    assert max(sizes) > 13 >= engine.scheduler.context.step_tokens
    engine.scheduler.check()


def no_memory(*given: object) -> DevicePool:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_pool_that_does_not_fit_says_what_was_asked_what_is_free_and_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_module, "allocate_pool", no_memory)
    backend = reference_backend("f32", lambda: 4 << 20)
    size = PoolSize(KvShape(2, 2, 16, 16, "f32"), 1023)
    config = RunnerConfig(16, 4, 512, frozenset(), 97)
    with pytest.raises(ConfigError) as refused:
        backend.new_runner(tiny_model(TinyTorch()), config, size)
    assert "KV memory of 8.0 MiB was asked for, and 1.0 MiB are free" in str(refused.value)
    assert "give a smaller --kv-memory" in str(refused.value)


def test_a_pool_leaves_what_steps_were_seen_to_need(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, gib, tried = reference_backend("f32", lambda: 4 << 30), 1 << 30, list[int]()
    backend.is_measured = True
    monkeypatch.setattr(backend, "memory_available", lambda: 10 * gib)
    monkeypatch.setattr(backend, "memory_free", lambda: 7 * gib)
    monkeypatch.setattr(Runner, "warm", lambda runner, step_tokens, progress: tried.append(step_tokens))
    loaded = LoadedModel(tiny_model(TinyTorch()), tokenizer=None)  # type: ignore[arg-type]
    shape, config = KvShape(2, 2, 16, 16, "f32"), RunnerConfig(16, 4, 512, frozenset(), 97)
    seen = backend.measure_steps(loaded.model, config, shape, 300, print)
    assert (seen, tried) == (3 * gib, [300])
    options = StartOptions(max_seqs=4096)
    budget = size_pool(loaded, backend, options, seen)
    guessed = size_pool(loaded, backend, options)
    per_block = budget.bytes_per_block
    room = 10 * gib - (3 * gib + 3 * gib // 8 + 256 * 2**20)
    useful = 4096 * -(-loaded.model.spec.context_length // 16)
    assert budget.num_blocks == min(useful, room // per_block)
    assert guessed.num_blocks == min(useful, (10 * gib - 2 * gib) // per_block)


def test_a_step_that_cannot_be_tried_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, closed = reference_backend("f32", lambda: 4 << 30), list[bool]()
    backend.is_measured = True
    shape, config = KvShape(2, 2, 16, 16, "f32"), RunnerConfig(16, 4, 512, frozenset(), 97)

    def fail(*given: object) -> None:
        raise ConfigError("it does not fit")

    monkeypatch.setattr(Runner, "warm", fail)
    monkeypatch.setattr(Runner, "close", lambda runner: closed.append(True))
    with pytest.raises(ConfigError, match="it does not fit"):
        backend.measure_steps(tiny_model(TinyTorch()), config, shape, 300, print)
    assert closed == [True]


def test_weights_that_do_not_fit_say_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = DeviceWeights(CPU, torch.float32)
    data = np.zeros((512, 1024), np.float32)
    raw = RawTensor("blk.7.ffn_up.weight", "F32", data.shape, data.reshape(-1).view(np.uint8))
    plain = torch.Tensor.to

    def to(self: torch.Tensor, where: object) -> torch.Tensor:
        return no_memory() if where == CPU else plain(self, where)  # type: ignore[return-value, call-overload]

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 << 20)
    said = r"3\.0 MiB are there, blk\.7\.ffn_up\.weight of 2\.0 MiB is next, 1\.0 MiB"
    with pytest.raises(ConfigError, match=said):
        weights.matrix(raw)
