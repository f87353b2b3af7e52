"""The exactness contract on a tiny random model of every family: alone, in company, in chunks, preempted and
from the prefix cache, a request's tokens and logprobs are bit-identical."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.engine.test_exactness import preempt_at
from tests.model import model_bench
from tests.tiny import Answer, request, run, tiny_engine

from octavo import _native
from octavo.kernels.contract import Ops
from octavo.model.spec import Model
from octavo.types import Request

LENGTHS = (5, 17, 40, 70)  # within and beyond windows of 8, blocks of 16 and a chunk
NAMES = ["llama", "mistral-window", "qwen2-window", "qwen3", "gemma2", "gpt2", *model_bench.FAMILY_CONFIGS]
NAMES += ["mixtral", "qwen3_moe-some-dense", "olmoe", "gpt_oss-window-8", "llama4_text-no-norm"]
# Of each kind of layer: no norm before a branch, parallel branches, two ropes, scaled queries, fused, experts
IN_NUMPY = ["olmo3", "gpt_neox", "gemma3_text", "ministral3", "glm4", "mixtral"]
CASES = [("native", name) for name in NAMES] + [("reference", name) for name in IN_NUMPY]


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    before = _native.num_threads()
    yield
    _native.set_num_threads(before)


def requests_for(seed: int) -> list[Request]:
    """A greedy and a sampled one by turns."""
    rng = np.random.default_rng(seed)
    made = []
    for index, length in enumerate(LENGTHS):
        prompt = rng.integers(3, model_bench.VOCABULARY, length).tolist()
        sampled = {"temperature": 0.9, "seed": index} if index % 2 else {}
        made.append(request(index, prompt, 8, **sampled))
    return made


def alone(ops: Ops, model: Model, wanted: Request, step_tokens: int) -> Answer:
    return run(tiny_engine(ops, model=model, step_tokens=step_tokens), [wanted])[wanted.request_id, 0]


@pytest.mark.parametrize("backend,name", CASES)
def test_alone_in_company_chunked_preempted_and_cached_are_equal(
    backend: str, name: str, tmp_path: Path
) -> None:
    theirs = model_bench.make_model(name)
    ops, model = model_bench.load(model_bench.save_model(theirs, tmp_path), backend)
    requests = requests_for(len(name))
    _native.set_num_threads(1)
    wanted = [alone(ops, model, one, step_tokens=512).essence for one in requests]
    assert len({tuple(bits) for _, bits, *_ in wanted}) == len(requests)

    _native.set_num_threads(2)
    assert [alone(ops, model, one, step_tokens=7).essence for one in requests] == wanted, "in chunks"
    for step_tokens, depth in ((24, 0), (512, 1)):
        engine = tiny_engine(ops, model=model, step_tokens=step_tokens, depth=depth)
        answers = run(engine, requests)
        assert [answers[one.request_id, 0].essence for one in requests] == wanted, "in company"
        again = run(engine, requests)
        assert [again[one.request_id, 0].essence for one in requests] == wanted, "from the prefix cache"
        assert [again[one.request_id, 0].cached for one in requests] == [0, 16, 32, 64]
        engine.executor.close()

    engine = tiny_engine(ops, model=model, step_tokens=24, prefix_caching=False)
    answers = run(engine, requests, preempt_at(engine, {3, 6, 9}))
    assert [answers[one.request_id, 0].essence for one in requests] == wanted, "preempted"
    assert sum(answer.preemptions for answer in answers.values()) > 0
