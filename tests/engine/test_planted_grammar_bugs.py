"""The cases of grammars refuse bugs that are planted on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.engine import grammar_cases
from tests.exactness import Subject, in_random

from octavo.executor import rows
from octavo.executor.runner import Runner
from octavo.executor.walks import TokenSampler
from octavo.kernels.native_ops import NativeOps
from octavo.params import SamplerParams
from octavo.sampling.grammars import Grammars
from octavo.sampling.guides import Guide, guide_of
from octavo.sampling.sampler import SampleRow
from octavo.scheduler.committer import Committer
from octavo.scheduler.sequence import Sequence as Running

pytestmark = pytest.mark.full

CASES = range(80)


def share_by_forks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guide, "copy", lambda self: self)


def begin_afresh_when_readmitted(patch: pytest.MonkeyPatch) -> None:
    def begun(params: SamplerParams, grammars: Grammars | None, output: Sequence[int]) -> Guide | None:
        return guide_of(params, grammars, ())

    patch.setattr(rows, "guide_of", begun)


def publish_what_is_forced_early(patch: pytest.MonkeyPatch) -> None:
    publish = Committer._publish

    def early(self: Committer, sequence: Running, num_computed: int) -> None:
        assert sequence.table is not None
        publish(self, sequence, num_computed)
        size = self._context.ledger.block_size
        there = min(len(sequence.tokens), len(sequence.table) * size)
        if sequence.num_forced and there > num_computed:
            self._context.ledger.publish(sequence.table, sequence.chain.names, there)

    patch.setattr(Committer, "_publish", early)


def mask_the_wrong_row(patch: pytest.MonkeyPatch) -> None:
    sample_row = TokenSampler._sample_row

    def neighbours(self: TokenSampler, row: int) -> SampleRow:
        own = sample_row(self, row)
        others = (entry.guide for entry in self._rows._rows if entry is not None and entry.is_constrained)
        guide = own.guide and next((one for one in others if one is not own.guide), own.guide)
        return replace(own, guide=guide)

    patch.setattr(TokenSampler, "_sample_row", neighbours)


def plan_ahead_of_a_grammar(patch: pytest.MonkeyPatch) -> None:
    """The host is not told that a grammar leads, and plans on while what is forced comes along."""
    run = Runner.run
    patch.setattr(Runner, "run", lambda self, plan: replace(run(self, plan), in_grammar=frozenset()))


PLANTED = (
    share_by_forks,
    begin_afresh_when_readmitted,
    publish_what_is_forced_early,
    mask_the_wrong_row,
    plan_ahead_of_a_grammar,
)


@pytest.fixture(scope="module")
def subject() -> Subject:
    """What its cases come to alone is computed without a bug."""
    made = grammar_cases.subject(NativeOps())
    for seed in CASES:
        made.alone(seed)
    return made


def notices(subject: Subject) -> bool:
    """Whether any case does."""
    return any(in_random(subject, seed, Counter()) for seed in CASES)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(subject: Subject, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        assert notices(subject), "it was not noticed"


def test_without_a_bug_nothing_is_found(subject: Subject) -> None:
    assert not notices(subject)
