"""Embeddings over torch's ops: the very tests of the processor's backends, on torch's CPU."""

from __future__ import annotations

import numpy as np
import pytest
from tests.device.over_torch import TinyTorch
from tests.engine.test_embeddings_exact import (  # noqa: F401 - collected here, with the fixtures of this file
    alone,
    crowd,
    pooling,
    test_a_prefix_hit_gives_an_equal_last_embedding_and_a_mean_takes_none,
    test_a_prompt_as_long_as_the_context_has_an_embedding_and_a_longer_one_is_refused,
    test_an_embedding_preempted_at_every_step_is_equal,
    test_any_chunking_and_any_number_of_threads_gives_equal_embeddings,
    wants_embedding,
)
from tests.exactness import Preempter
from tests.tiny import random_prompt, run, tiny_engine, tiny_model

from octavo.kernels.native_ops import NativeOps
from octavo.params import Pooling

pytestmark = pytest.mark.full

OPS = {kv: TinyTorch(kv) for kv in ("f32", "int8")}


@pytest.fixture(params=OPS)
def ops(request: pytest.FixtureRequest) -> TinyTorch:
    return OPS[request.param]


def test_an_embedding_is_equal_in_a_crowd_whose_rows_are_drawn_on_the_device(
    ops: TinyTorch,
    pooling: Pooling,  # noqa: F811
) -> None:
    wanted = wants_embedding(1, random_prompt(np.random.default_rng(5), 70), pooling)
    whole = alone(ops, wanted)  # type: ignore[arg-type]
    for seed in range(4):
        engine = tiny_engine(ops, step_tokens=37, depth=1, rows=5)  # type: ignore[arg-type]
        answers = run(engine, [*crowd(seed, 5), wanted], Preempter(engine, {2, 5}))
        assert answers[1, 0].embedding == whole
        engine.executor.close()


def test_an_embedding_is_nearly_the_processor_s(pooling: Pooling) -> None:  # noqa: F811
    wanted = wants_embedding(1, random_prompt(np.random.default_rng(6), 70), pooling)
    host = NativeOps()
    ours = np.frombuffer(alone(host, wanted, model=tiny_model(host)), np.float32)
    theirs = np.frombuffer(alone(OPS["f32"], wanted), np.float32)  # type: ignore[arg-type]
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)
