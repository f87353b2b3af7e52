"""The decoder over torch's ops: the cases of the processor's tests, at every kind of chunking equal to the
bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from tests.device.over_torch import TinyTorch
from tests.device.reusing import TorchInstead, step_of
from tests.model import test_decoder
from tests.model.test_decoder import (  # noqa: F401 - collected here, with the fixtures of this file
    peer,
    test_only_the_wanted_rows_are_projected,
    test_prompt_in_chunks_and_decoding_give_the_peers_logits,
)

from octavo.device.eager import batch_of
from octavo.device.layout import DevicePool, allocate_pool
from octavo.kernels.contract import HostBatch, KvShape
from octavo.kernels.packed import unpack_vector
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model, turns_of

pytestmark = pytest.mark.full


@pytest.fixture
def ops() -> TinyTorch:
    return TorchInstead()


@pytest.fixture(autouse=True)
def tensors_instead_of_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module builds its batches, vectors and pools in NumPy: here they become tensors."""
    spec, plain_model, steps = test_decoder.SPEC, test_decoder._model, []
    ops = TorchInstead()

    def model_of(own: TinyTorch, given: object) -> Model:
        model = plain_model(own, given)
        return dataclasses.replace(model, turns=turns_of(model.spec, own.vector))

    def pool_of(own: TinyTorch) -> DevicePool:
        shape = KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, 16)
        pool = allocate_pool(shape, 40, own.device)
        pool.data[...] = 0xFF  # NaN
        return pool

    def hidden_of(own: TinyTorch, model: Model, pool: DevicePool, batch: HostBatch) -> torch.Tensor:
        steps.append(batch)
        return hidden_states(own, model, pool, batch_of(step_of(batch), 16))

    monkeypatch.setattr(test_decoder, "NativeOps", TorchInstead)
    monkeypatch.setattr(test_decoder, "_model", model_of)
    monkeypatch.setattr(test_decoder, "_pool", pool_of)
    monkeypatch.setattr(test_decoder, "hidden_states", hidden_of)
    monkeypatch.setattr(test_decoder, "project", lambda own, model, x: project(own, model, x).numpy())
    monkeypatch.setattr(test_decoder, "unpack_vector", lambda raw: ops.vector(unpack_vector(raw)))
    yield
    assert steps, "nothing ran on torch"
