"""Several ranks answer, to the bit, as one does: in each circumstance of the exactness suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.device.over_ranks import TinyRanked
from tests.device.over_torch import TinyTorch
from tests.drawn import crowd, plain
from tests.exactness import Subject, in_random
from tests.tiny import random_prompt, request, run, tiny_engine


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


@pytest.mark.full
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
