"""The engine over Octavo's own kernels, in its interpreter: padded replays, forks, draws, host rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.device.over_torch import TinyCompiled, TinyTorch
from tests.tiny import Answer, random_prompt, request, run, tiny_engine, tiny_model

from octavo.device import open_backend, sized_steps
from octavo.types import Request

pytestmark = pytest.mark.full


def asked() -> list[Request]:
    rng = np.random.default_rng(4)
    prompts = [random_prompt(rng, length) for length in (11, 5, 19)]
    return [
        request(1, prompts[0], 2),
        request(2, prompts[1], 2, n=2, temperature=0.9, seed=3, top_p=0.9, logprobs=None),
        request(3, prompts[2], 2, repetition_penalty=1.3, presence_penalty=0.5),  # the host's sampler's
    ]


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("kv", ["int8"])
def test_alone_and_in_a_crowd_of_every_kind_are_equal_and_near_what_the_reference_says(
    kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = TinyCompiled(kv)
    model = tiny_model(ops)  # type: ignore[arg-type]
    alone: dict[tuple[int, int], Answer] = {}
    for one in asked():
        alone |= run(tiny_engine(ops, model=model), [one])  # type: ignore[arg-type]
    # As on a device of many multiprocessors: decoding's attention is cut into partitions, and merged.
    monkeypatch.setattr(open_backend, "_PROCESSORS_OF_A_CPU", 64)
    splits = TinyCompiled(kv)
    engine = tiny_engine(splits, model=model, depth=1, step_tokens=14)  # type: ignore[arg-type]
    crowd = run(engine, asked())
    assert {key: answer.essence for key, answer in crowd.items()} == {
        key: answer.essence for key, answer in alone.items()
    }
    monkeypatch.setattr(sized_steps, "_LAUNCHED_FIRST", 1)
    for _ in range(3):
        replayed = run(engine, asked())
        assert {key: answer.essence for key, answer in replayed.items()} == {
            key: answer.essence for key, answer in alone.items()
        }
    counted = engine._counters.device_steps
    assert counted.keys() == {"first", "warming", "replayed"}
    assert sum(counted.values()) == engine._counters.steps
    reference = run(tiny_engine(TinyTorch(kv)), asked())  # type: ignore[arg-type]
    assert {key: answer.tokens for key, answer in crowd.items()} == {
        key: answer.tokens for key, answer in reference.items()
    }
