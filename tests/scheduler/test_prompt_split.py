"""Why each part of a prompt was a hit or a miss, for each reason; and what is kept of requests that ended."""

from __future__ import annotations

import msgspec
import pytest
from tests.scheduler.served import Served
from tests.scheduler.test_transfers import PROMPT, finish, go_below, turn

from octavo.engine.port import inspector_of
from octavo.inspect.views import RequestView
from octavo.scheduler.ended_requests import EndedRequests
from octavo.scheduler.sequence_parts import PromptPart, PromptSplit
from octavo.scheduler.sequence_parts import PromptSource as Source
from octavo.step.step_times import StepWork
from octavo.types import FinishReason, Move, Update, Usage

FIRST = tuple(range(500, 514))  # 3 blocks of 4 that can be hits, and two tokens


def card(served: Served, request: int, tenant: str | None = None) -> RequestView | None:
    """What the operator, or a tenant, is told of it."""
    return inspector_of(served.scheduler).request(request, served.now, tenant)


def split(served: Served, request: int, tenant: str | None = None) -> dict[Source, int]:
    """Its prompt by source."""
    view = card(served, request, tenant)
    assert view is not None
    assert view.split is not None
    counts: dict[Source, int] = {}
    for part in view.split.parts:
        counts[part.source] = counts.get(part.source, 0) + part.num_tokens
    return counts


def serve(served: Served, prompt: int | tuple[int, ...], **fields: object) -> int:
    """Until it has ended, and nothing is in flight."""
    request = served.add(prompt, **fields)  # type: ignore[arg-type]
    while served.scheduler.has_work or served.scheduler.could_store:
        plan = served.scheduler.schedule(served.now)
        if plan is not None:
            served.commit(plan)
            finish(served, [one for one in plan.transfers if one.move is not Move.FORGET])
    return request


def test_a_prompt_that_was_never_seen_is_computed_but_for_its_tail_no_block_was_looked_up() -> None:
    served = Served()
    assert split(served, serve(served, FIRST)) == {Source.NEVER_COMPUTED: 12, Source.TAIL: 2}


@pytest.mark.parametrize(("length", "tail"), [(1, 1), (4, 4), (5, 1), (8, 4)])
def test_the_last_token_is_always_of_the_tail(length: int, tail: int) -> None:
    served = Served()
    told = split(served, serve(served, FIRST[:length]))
    assert (told[Source.TAIL], sum(told.values())) == (tail, length)


def test_what_the_pool_has_is_a_hit_of_the_pool_and_its_age_is_counted() -> None:
    served = Served()
    serve(served, FIRST)
    served.now = 20.0
    request = serve(served, (*FIRST[:8], 1, 2, 3, 4, 5))
    assert split(served, request) == {
        Source.POOL: 8,
        Source.NEVER_COMPUTED: 4,
        Source.TAIL: 1,
    }
    ages = served.memory.history.ages_at_hit["pool"]  # type: ignore[index]
    assert (sum(ages.counts), ages.seconds) == (2, 40.0)


def test_what_was_evicted_says_when_and_for_which_request() -> None:
    served = Served(blocks=5)
    serve(served, FIRST)
    served.now = 7.0
    other = serve(served, 19)  # five blocks, of which three have names
    served.now = 9.0
    request = serve(served, FIRST)
    view = card(served, request)
    assert view is not None
    assert view.split == PromptSplit(
        0, (PromptPart(Source.EVICTED, 12, "evicted", 7.0, other), PromptPart(Source.TAIL, 2))
    )
    assert view.split.in_words() == f"found: nothing; computed: 12 evicted for request {other}, 2 at its end"


def test_a_tenant_does_not_learn_for_whom_its_blocks_were_evicted_nor_for_how_many() -> None:
    served = Served(blocks=6)
    serve(served, FIRST, tenant="alice")
    for now, length in ((3.0, 16), (4.0, 23)):  # four blocks, and then all six
        served.now = now
        serve(served, length, tenant="bob")
    request = serve(served, FIRST, tenant="alice")
    told, own = card(served, request), card(served, request, "alice")
    assert told is not None
    assert told.split is not None
    assert own is not None
    assert own.split is not None
    whom = {part.request_id for part in told.split.parts if part.source is Source.EVICTED}
    assert len(whom) == 2
    [evicted] = (part for part in own.split.parts if part.source is Source.EVICTED)
    assert evicted == PromptPart(Source.EVICTED, 12, "evicted", 4.0)
    assert b"bob" not in msgspec.json.encode(own)
    assert card(served, request, "bob") is None


def test_what_an_offload_tier_gives_is_a_hit_of_that_tier() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    request = serve(served, PROMPT)
    assert split(served, request) == {Source.DISK: 32, Source.TAIL: 3}
    assert sum(served.memory.history.ages_at_hit["disk"].counts) == 8  # type: ignore[index]


def test_what_host_memory_gives_is_a_hit_of_host_memory() -> None:
    served = Served(blocks=20, slots=50, host_slots=6)
    go_below(served, PROMPT)
    assert split(served, serve(served, PROMPT)) == {
        Source.DISK: 8,
        Source.HOST: 24,
        Source.TAIL: 3,
    }


def test_what_could_not_be_loaded_is_lost_and_so_is_what_lies_behind_it() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    request = served.add(PROMPT, 1)
    loads = turn(served)
    finish(served, [loads[2]], ok=False)
    finish(served, loads[:2] + loads[3:])
    while served.scheduler.has_work:
        finish(served, turn(served))
    view = card(served, request)
    assert view is not None
    assert view.split is not None
    assert view.split.parts == (
        PromptPart(Source.DISK, 8),
        PromptPart(Source.LOST, 24, "unreadable", 0.0),
        PromptPart(Source.TAIL, 3),
    )


def test_what_is_slower_to_load_is_cheaper_to_compute() -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    served.scheduler.context.times.observe(StepWork(prompt=100), 0.1)
    served.scheduler.transfers._load_s.add(5.0, 0.0)
    request = serve(served, PROMPT)
    assert split(served, request) == {Source.CHEAPER_TO_COMPUTE: 32, Source.TAIL: 3}


def test_what_a_failed_request_computed_is_lost() -> None:
    served = Served()
    request = served.add(FIRST, 3)
    served.step()
    served.commit(served.plan(), request)
    view = card(served, serve(served, FIRST))
    assert view is not None
    assert view.split is not None
    assert (view.split.parts[0].source, view.split.parts[0].cause) == (Source.LOST, "poisoned")


def test_what_a_smaller_pool_had_no_room_for_is_lost() -> None:
    served = Served(blocks=12)
    serve(served, 20)  # the last of these blocks are beyond the pool's new end
    serve(served, FIRST)
    served.scheduler.resizer.resize(6)
    view = card(served, serve(served, FIRST))
    assert view is not None
    assert view.split is not None
    assert view.split.parts[:2] == (
        PromptPart(Source.POOL, 4),
        PromptPart(Source.LOST, 8, "resized", 0.0),
    )


def test_a_request_that_wants_all_positions_looks_nothing_up() -> None:
    served = Served()
    serve(served, FIRST)
    request = serve(served, FIRST, prompt_logprobs=0)
    assert split(served, request) == {Source.NOT_LOOKED_UP: 12, Source.TAIL: 2}


def test_the_split_of_the_first_admission_stays_after_a_preemption() -> None:
    served = Served(blocks=6)
    serve(served, FIRST)
    request = served.add(FIRST, 8)
    served.step()
    before = split(served, request)
    assert before == {Source.POOL: 12, Source.TAIL: 2}
    served.scheduler.preemption.preempt(served.scheduler.live.sequences_of(request)[0], None)
    served.drain()
    assert served.usage(request).preemptions == 1
    assert split(served, request) == before
    assert served.usage(request).num_cached == 12


def test_all_choices_have_one_split() -> None:
    served = Served()
    serve(served, FIRST)
    request = served.add(FIRST, 3, n=3)
    served.step()
    assert {s.num_cached for s in served.scheduler.live.sequences_of(request)} == {12}
    assert split(served, request) == {Source.POOL: 12, Source.TAIL: 2}


def test_a_request_that_waits_has_no_split_and_one_that_never_ran_ends_without() -> None:
    served = Served(rows=1)
    served.add(20, 20)
    request = served.add(FIRST, 1)
    served.step()
    view = card(served, request)
    assert view is not None
    assert view.split is None
    served.scheduler.cancel(request)
    view = card(served, request)
    assert view is not None
    assert (view.split, view.ended) == (None, 0.0)


def final(request_id: int, choice: int = 0) -> Update:
    return Update(request_id, choice, (), Usage(14, 3, 12, 0), FinishReason.LENGTH)


def test_of_ended_requests_the_newest_are_kept_with_how_each_choice_ended() -> None:
    served = Served()
    ended = served.scheduler.live.ended = EndedRequests(2)
    first, second, third = (serve(served, FIRST) for _ in range(3))
    for update in served.updates:
        ended.note_final(update, is_live=False)
    assert [one.request_id for one in ended.cards()] == [second, third]
    assert card(served, first) is None
    view = card(served, third)
    assert view is not None
    [choice] = view.sequences
    assert (choice.state, choice.finish, choice.num_prompt, choice.num_output) == (
        "finished",
        "length",
        14,
        1,
    )
    assert (choice.num_cached, view.ended) == (12, 0.0)


def test_a_choice_that_ended_before_the_others_is_on_the_card() -> None:
    served = Served()
    ended = served.scheduler.live.ended
    request = served.add(FIRST, 2, n=2)
    ended.note_final(final(request, 1), is_live=True)
    while served.scheduler.has_work:
        served.step()
    ended.note_final(final(request, 0), is_live=False)
    view = card(served, request)
    assert view is not None
    assert [one.choice for one in view.sequences] == [0, 1]


def test_an_engine_that_begins_again_keeps_cards_and_says_what_was_lost() -> None:
    old, new = Served(), Served()
    done = serve(old, FIRST)
    live = old.add(20, 5)
    old.step()
    new.scheduler.continue_from(old.scheduler)
    assert card(new, done) is not None
    assert card(new, live) is not None
    new._next_id = old.next_id
    view = card(new, serve(new, FIRST))
    assert view is not None
    assert view.split is not None
    assert (view.split.parts[0].source, view.split.parts[0].cause) == (Source.LOST, "restarted")
