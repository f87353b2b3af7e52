"""What beams share, counted on the real engine over the tiny model."""

from __future__ import annotations

from tests.tiny import tiny_engine

from octavo.bench.beams import beam_sharing, searches
from octavo.bench.lengths import Trace
from octavo.kernels.native_ops import NativeOps
from octavo.params import SamplerParams
from octavo.sim.policies import Job
from octavo.types import Request

TRACE = Trace("mine", (Job(100, 20), Job(60, 40), Job(33, 10)))
TOKENS = list(range(2, 90)) * 5


def test_beams_share_their_prompt_and_more_the_more_there_are() -> None:
    engine = tiny_engine(NativeOps(), prefix_caching=False)
    rows = [beam_sharing("mine", w, searches(TRACE, w, TOKENS, 0), engine) for w in (1, 2, 5)]
    assert rows[0].saved == 0.0
    assert 0.3 < rows[1].saved < 0.5 < rows[2].saved < 0.8
    assert [row.steps for row in rows] == [rows[0].steps] * 3
    assert rows[0].num_requests == 3
    engine.scheduler.check()


def test_nothing_is_saved_where_no_one_shares() -> None:
    engine = tiny_engine(NativeOps(), prefix_caching=False)
    alone = [Request(1, tuple(TOKENS[:40]), SamplerParams(temperature=0.0, ignore_eos=True), 20, 0)]
    assert beam_sharing("mine", 1, alone, engine).saved == 0.0


def test_searches_have_the_lengths_of_the_trace_and_repeat_themselves() -> None:
    found = searches(TRACE, 4, TOKENS, 0)
    assert [(len(r.prompt), r.max_tokens) for r in found] == [(100, 20), (60, 40), (33, 10)]
    assert found == searches(TRACE, 4, TOKENS, 0)
    assert found != searches(TRACE, 4, TOKENS, 1)
