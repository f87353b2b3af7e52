"""The random cases with drafts refuse bugs that are planted on purpose in the executor. Those of the
scheduler are in `tests.simulator.planted_drafts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.engine import grammar_cases
from tests.engine.test_drafts_exactness import subject_of
from tests.exactness import Subject, in_random

from octavo.executor.draws import SamplingResult
from octavo.executor.walks import TokenSampler, _VerifyState
from octavo.kernels.native_ops import NativeOps
from octavo.sampling.guides import Guide
from octavo.sampling.sampler import SampleFailure, SampleRow
from octavo.types import SampledToken

pytestmark = pytest.mark.full

CASES = range(12)


def sample_with_the_history_of_another_row(patch: pytest.MonkeyPatch) -> None:
    sample_row = TokenSampler._sample_row

    def mistaken(self: TokenSampler, row: int) -> SampleRow:
        others = (i for i, entry in enumerate(self._rows._rows) if entry is not None and i != row)
        return replace(sample_row(self, row), history=self._rows.history(next(others, row)))

    patch.setattr(TokenSampler, "_sample_row", mistaken)


def sample_with_the_history_before_the_drafts(patch: pytest.MonkeyPatch) -> None:
    sample = TokenSampler.sample

    def remembering(self: TokenSampler, draws: object, forward: object) -> SamplingResult:
        began = [None if entry is None else entry.length for entry in self._rows._rows]
        sample_row = TokenSampler._sample_row

        def stale(walker: TokenSampler, row: int) -> SampleRow:
            own = sample_row(walker, row)
            return replace(own, history=own.history[: began[row]])

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TokenSampler, "_sample_row", stale)
            return sample(self, draws, forward)  # type: ignore[arg-type]

    patch.setattr(TokenSampler, "sample", remembering)


def go_on_behind_a_draft_that_is_wrong(patch: pytest.MonkeyPatch) -> None:
    take = TokenSampler._take

    def credulous(
        self: TokenSampler, walk: _VerifyState, outcome: SampledToken | SampleFailure, taken: SamplingResult
    ) -> None:
        take(self, walk, outcome, taken)
        if isinstance(outcome, SampledToken) and len(walk.taken) <= len(walk.draw.drafts):
            walk.is_over = False

    patch.setattr(TokenSampler, "_take", credulous)


def take_all_from_the_first_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_VerifyState, "place", property(lambda self: self.draw.first))


def forget_the_grammar_amid_a_draft(patch: pytest.MonkeyPatch) -> None:
    """A guide is told of the first token of a walk alone."""
    take, accept = TokenSampler._take, Guide.accept

    def told_once(
        self: TokenSampler, walk: _VerifyState, outcome: SampledToken | SampleFailure, taken: SamplingResult
    ) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Guide, "accept", accept if not walk.taken else lambda guide, token: "")
            take(self, walk, outcome, taken)

    patch.setattr(TokenSampler, "_take", told_once)


PLANTED = (
    sample_with_the_history_of_another_row,
    sample_with_the_history_before_the_drafts,
    go_on_behind_a_draft_that_is_wrong,
    take_all_from_the_first_position,
    forget_the_grammar_amid_a_draft,
)


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    """What their cases come to alone is computed without a bug."""
    made = [subject_of(NativeOps()), grammar_cases.subject(NativeOps())]
    for subject in made:
        for seed in CASES:
            subject.alone(seed)
    return made


def notices(subjects: list[Subject]) -> bool:
    """Whether any case does."""
    try:
        return any(in_random(each, seed, Counter(), drafts=True) for seed in CASES for each in subjects)
    except (IndexError, KeyError):
        return True


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_drafts_is_caught(
    subjects: list[Subject], plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        assert notices(subjects), "it was not noticed"


def test_without_a_planted_bug_the_cases_notice_nothing(subjects: list[Subject]) -> None:
    assert not notices(subjects)
