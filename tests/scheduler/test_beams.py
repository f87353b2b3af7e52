"""Beam groups: what goes on and what has ended; rows, blocks, preemption and ends as one."""

from __future__ import annotations

import pytest
from tests.simulator.beams import plain_search

from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.memory.capacity import blocks_needed, tokens_that_fit
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import BeamParams, SamplerParams, Timeouts
from octavo.scheduler.beams import Beam, BeamGroup, Child, PathStep, shared_length, steps_of
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State
from octavo.scheduler.waits import WaitReason
from octavo.sim.oracle import OracleExecutor
from octavo.step.context import SchedulerConfig
from octavo.types import FinishReason, Request, StepPlan, Update

VOCAB, EOS = 50, 0


def search(
    request_id: int, prompt: int, max_tokens: int, beams: BeamParams, n: int = 1, **fields: object
) -> Request:
    """A search whose beams end by length alone, unless `ends` is given."""
    ends = fields.pop("ends", ())
    params = SamplerParams(temperature=0.0, ignore_eos=True, stop_token_ids=ends, beams=beams)  # type: ignore[arg-type]
    tokens = tuple(1 + (request_id * 7 + i) % (VOCAB - 1) for i in range(prompt))
    return Request(request_id, tokens, params, max_tokens, request_id, n, **fields)  # type: ignore[arg-type]


class Turned:
    """A scheduler over the oracle, turned by hand and checked after each step."""

    def __init__(self, blocks: int = 100, block: int = 4, rows: int = 8, tokens: int = 64) -> None:
        config = SchedulerConfig(rows, tokens, 1000, 10_000, frozenset([EOS]), pace=False)
        self.memory = Ledger(blocks, block)
        self.scheduler = Scheduler(self.memory, config, lambda tenant: root_name(tenant.encode()))
        self.executor = OracleExecutor(blocks, block, VOCAB, stop_ids=frozenset([EOS]))
        self.updates: list[Update] = []
        self.plans: list[StepPlan] = []

    def step(self, now: float = 0.0) -> StepPlan:
        self.updates += self.scheduler.expire(now)
        plan = self.scheduler.schedule(now)
        self.scheduler.check()
        assert plan is not None
        self.plans.append(plan)
        self.updates += self.scheduler.commit(plan, self.executor.run(plan), now)
        self.scheduler.check()
        return plan

    def drain(self) -> None:
        while self.scheduler.has_work:
            self.step()
            assert len(self.plans) < 1000, "livelock"

    def outputs(self, request_id: int) -> list[tuple[int, ...]]:
        own = sorted((u for u in self.updates if u.request_id == request_id), key=lambda u: u.choice)
        return [tuple(sampled.token for sampled in update.tokens) for update in own]


def group_of(turned: Turned, request_id: int) -> BeamGroup:
    group = turned.scheduler.live.sequences_of(request_id)[0].group
    assert group is not None
    return group


def wanted(request: Request) -> list[tuple[int, ...]]:
    return [found.tokens for found in plain_search(request, frozenset([EOS]), VOCAB)[-1]][: request.n]


# -- the search by itself ------------------------------------------------------------------------------------


def grown(group: BeamGroup, *delivered: list[tuple[int, float]]) -> list[Child]:
    for beam, candidates in zip(group.beams, delivered, strict=True):
        beam.candidates = tuple(candidates)
    children = group.advance()
    group.beams = [Beam(child.score, child.path) for child in children]
    return children


def a_group(max_tokens: int = 10, ends: tuple[int, ...] = (9,), **params: object) -> BeamGroup:
    beams = BeamParams(2, **params)  # type: ignore[arg-type]
    return BeamGroup(search(1, 4, max_tokens, beams), beams, frozenset(ends))


def test_the_best_over_all_beams_go_on_and_equals_rank_by_beam_then_lowest_id() -> None:
    group = a_group()
    first = grown(group, [(7, -1.0), (5, -1.0), (8, -2.0)])
    assert [child.path.token for child in first] == [5, 7]
    second = grown(group, [(3, -1.5), (4, -2.0)], [(1, -0.5), (2, -1.5)])
    assert [(child.path.before, child.path.token) for child in second] == [
        (first[1].path, 1), (first[0].path, 3),
    ]  # fmt: skip
    assert [child.score for child in second] == [-1.5, -2.5]


def test_only_the_first_width_candidates_may_end() -> None:
    group = a_group()
    children = grown(group, [(1, -1.0), (2, -1.1), (9, -1.2), (3, -1.3)])
    assert [child.path.token for child in children] == [1, 2]
    assert group.ended == []
    children = grown(group, [(9, -0.1), (4, -2.0)], [(5, -1.0), (6, -3.0)])
    assert [hypothesis.stop_token for hypothesis in group.ended] == [9]
    assert [child.path.token for child in children] == [5, 4]


def test_hypotheses_rank_by_their_score_after_the_length_penalty() -> None:
    for penalty, best in ((1.0, 2), (0.0, 1)):
        group = a_group(length_penalty=penalty, early_stopping="never")
        grown(group, [(9, -1.0), (1, -1.1), (2, -5.0)])
        grown(group, [(9, -0.5), (3, -0.6)], [(4, -9.0), (5, -9.1)])
        assert len(group.ended[0].tokens) == best


@pytest.mark.parametrize("early_stopping, is_over", [(True, True), (False, True), ("never", False)])
def test_when_a_search_is_over(early_stopping: bool, is_over: bool) -> None:
    """Two have ended at -1.0 and -0.7 a token. What runs has -1.1: over 2 tokens worse, over 10 better."""
    group = a_group(early_stopping=early_stopping)
    grown(group, [(9, -1.0), (1, -1.2), (2, -1.3), (3, -1.4)])
    children = grown(group, [(9, -0.2), (4, -0.9)], [(5, -2.0), (6, -3.0)])
    assert [round(hypothesis.score, 6) for hypothesis in group.ended] == [-0.7, -1.0]
    assert (children == []) is is_over


def test_at_the_last_token_everything_ends_and_the_best_are_kept() -> None:
    group = a_group(max_tokens=1)
    assert grown(group, [(9, -1.0), (1, -1.1), (2, -1.2)]) == []
    assert [hypothesis.stop_token for hypothesis in group.ended] == [9, None]


def test_paths_share_what_they_have_in_common() -> None:
    root = PathStep(1, -1.0, 1, None)
    one = PathStep(3, -1.0, 3, PathStep(2, -1.0, 2, root))
    other = PathStep(3, -1.0, 3, PathStep(2, -1.0, 2, root))
    assert shared_length(one, other) == 1, "equal tokens of two paths are two steps"
    assert shared_length(one, one) == 3
    assert shared_length(None, None) == 0
    assert [step.token for step in steps_of(one)] == [1, 2, 3]


# -- rows and blocks -----------------------------------------------------------------------------------------


def test_a_search_equals_the_one_without_paging_in_one_batch_a_step() -> None:
    request = search(1, 9, 12, BeamParams(4), n=4)
    turned = Turned()
    turned.scheduler.submit(request)
    turned.drain()
    assert turned.outputs(1) == wanted(request)
    assert len(turned.plans) == 12
    assert [plan.num_tokens for plan in turned.plans] == [9] + [4] * 11
    assert {update.finish for update in turned.updates} == {FinishReason.LENGTH}


def test_what_beams_share_is_held_once_and_copied_at_the_first_write() -> None:
    turned = Turned()
    turned.scheduler.submit(search(1, 10, 3, BeamParams(4)))
    turned.step()
    assert turned.memory.counts().held == 3, "four beams hold the prompt's three blocks"
    plan = turned.step()
    assert len(plan.copies) == 3, "the last holder of the shared tail writes in place"
    assert len(plan.token_writes) == 1, "the first child goes on in its parent's row"
    assert len(plan.admitted) == 3
    assert turned.memory.counts().held <= 2 + 4
    turned.drain()
    assert turned.memory.counts().held == 0


def test_rows_of_all_beams_are_promised_at_admission() -> None:
    turned = Turned(rows=5)
    turned.scheduler.submit(search(1, 4, 6, BeamParams(3)))
    turned.scheduler.submit(search(2, 4, 6, BeamParams(3)))
    turned.scheduler.submit(search(3, 4, 6, BeamParams(2)))
    turned.step()
    (waiting,) = turned.scheduler.live.waiting
    assert waiting.request.request_id == 2
    wait = turned.scheduler.live.why_waiting(waiting)
    assert (wait.reason, wait.needed) == (WaitReason.ROWS, 3)
    turned.drain()
    for request_id in (1, 2, 3):
        assert len(turned.outputs(request_id)) == 1


def test_a_group_is_preempted_as_one_and_comes_back_to_the_same_answer() -> None:
    request = search(1, 9, 14, BeamParams(4), n=4)
    for step in range(1, 14):
        turned = Turned()
        turned.scheduler.submit(request)
        for _ in range(step):
            turned.step()
        beams = turned.scheduler.live.sequences_of(1)
        assert len(beams) == 4
        turned.scheduler.preemption.preempt(beams[-1], None)
        turned.scheduler.check()
        assert turned.memory.counts().held == 0
        (leader,) = turned.scheduler.live.waiting
        assert turned.scheduler.live.sequences_of(1) == [leader]
        assert all(s.state is State.FINISHED for s in beams if s is not leader)
        turned.drain()
        assert turned.outputs(1) == wanted(request)
        assert turned.updates[0].usage.preemptions == 1


def test_two_groups_that_do_not_fit_together_are_interleaved() -> None:
    one = search(1, 40, 8, BeamParams(4), n=2)
    other = search(2, 40, 8, BeamParams(4), n=2, priority=5)
    turned = Turned(blocks=blocks_needed(one, 4))
    turned.scheduler.submit(one)
    for _ in range(4):
        turned.step()
    turned.scheduler.submit(other)
    turned.step()
    assert {s.request.request_id for s in turned.scheduler.live.running} == {2}, "a part of a group runs on"
    turned.drain()
    assert turned.outputs(1) == wanted(one)
    assert turned.outputs(2) == wanted(other)
    assert turned.scheduler.live.num_preemptions == 1


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9])
def test_a_group_alone_fits_its_worst_case_exactly(width: int, prompt: int) -> None:
    request = search(1, prompt, 15, BeamParams(width))
    turned = Turned(blocks=blocks_needed(request, 4))
    turned.scheduler.submit(request)
    turned.drain()
    assert turned.scheduler.live.num_preemptions == 0
    assert turned.outputs(1) == wanted(request)


def test_tokens_that_fit_is_the_inverse_of_blocks_needed() -> None:
    for width in (1, 2, 5):
        for prompt in (1, 4, 7, 12):
            beams = BeamParams(width)
            for blocks in range(4, 40):
                most = tokens_that_fit(prompt, search(1, prompt, 1, beams).params, blocks, 4)
                if most < 1:
                    assert blocks_needed(search(1, prompt, 1, beams), 4) > blocks
                    continue
                assert blocks_needed(search(1, prompt, most, beams), 4) <= blocks
                assert blocks_needed(search(1, prompt, most + 1, beams), 4) > blocks


def test_a_group_larger_than_the_pool_is_refused_at_once() -> None:
    turned = Turned(blocks=10)
    with pytest.raises(RequestTooLarge, match="in 4 beams needs 13 KV blocks"):
        turned.scheduler.submit(search(1, 4, 10, BeamParams(4)))
    with pytest.raises(InvalidRequest, match="n is 3 and beam_width 2"):
        turned.scheduler.submit(search(1, 4, 2, BeamParams(2), n=3))
    with pytest.raises(InvalidRequest, match=r"beam_width is 9; allowed: 1 to 8 \(setting max_seqs\)"):
        turned.scheduler.submit(search(1, 4, 1, BeamParams(9)))


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_cancelled_search_holds_nothing_and_shows_each_choice_once() -> None:
    turned = Turned()
    turned.scheduler.submit(search(1, 9, 12, BeamParams(4), n=3))
    for _ in range(4):
        turned.step()
    first = turned.scheduler.cancel(1, 1)
    assert [(update.choice, update.finish) for update in first] == [(1, FinishReason.CANCELLED)]
    assert turned.scheduler.cancel(1, 1) == []
    rest = turned.scheduler.cancel(1)
    assert [update.choice for update in rest] == [0, 2]
    assert turned.memory.counts().held == 0
    turned.scheduler.check()


def test_a_choice_that_was_cancelled_leaves_the_others_their_ranks() -> None:
    request = search(1, 9, 12, BeamParams(4), n=3)
    turned = Turned()
    turned.scheduler.submit(request)
    turned.step()
    turned.scheduler.cancel(1, 0)
    turned.drain()
    assert [update.choice for update in turned.updates] == [1, 2]
    assert turned.outputs(1) == wanted(request)[1:]


def test_a_deadline_shows_the_best_as_far_as_they_came() -> None:
    request = search(1, 9, 12, BeamParams(4), n=2, timeouts=Timeouts(total=5.0))
    turned = Turned()
    turned.scheduler.submit(request)
    for _ in range(6):
        turned.step()
    turned.updates += turned.scheduler.expire(6.0)
    stage = plain_search(request, frozenset([EOS]), VOCAB)[5]
    assert turned.outputs(1) == [found.tokens for found in stage][:2]
    assert {update.finish for update in turned.updates} == {FinishReason.TIMEOUT}
    assert turned.memory.counts().held == 0


def test_a_deadline_before_the_first_token_shows_nothing_but_why() -> None:
    turned = Turned(rows=4)
    turned.scheduler.submit(search(1, 9, 12, BeamParams(4)))
    turned.scheduler.submit(search(2, 9, 12, BeamParams(4), n=2, timeouts=Timeouts(queue=1.0)))
    turned.step()
    updates = turned.scheduler.expire(2.0)
    assert [(update.choice, update.tokens) for update in updates] == [(0, ()), (1, ())]
    assert "rows" in updates[0].error


def test_stop_tokens_end_hypotheses_and_are_reported() -> None:
    ends = tuple(range(20, 30))
    request = search(1, 9, 30, BeamParams(4), n=4, ends=ends)
    turned = Turned()
    turned.scheduler.submit(request)
    turned.drain()
    assert turned.outputs(1) == wanted(request)
    stopped = [update for update in turned.updates if update.finish is FinishReason.STOP]
    assert stopped
    assert all(update.stop_token == update.tokens[-1].token for update in stopped)
    assert all(update.stop_token in ends for update in stopped)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"temperature": 1.0}, "temperature is 1.0; allowed with beam search: 0.0"),
        ({"stop": ("x",)}, "stop is .*; allowed with beam search: none"),
        ({"logprobs": 2}, "logprobs is 2; allowed with beam search: none or 0"),
        ({"min_tokens": 2}, "min_tokens is 2; allowed with beam search: 0"),
        ({"allowed_token_ids": (5,)}, "allowed_token_ids is .*; allowed with beam search: none"),
        ({"banned_sequences": ((5, 6),)}, "banned_sequences is .*; allowed with beam search: none"),
    ],
)
def test_sampling_fields_mean_nothing_with_beams(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        SamplerParams(**{"temperature": 0.0, "beams": BeamParams(2), **fields})  # type: ignore[arg-type]
