"""Pins keep what they name, never more than their budget, and never wedge whoever wants to run."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served, State

from octavo.errors import InvalidRequest, PinRefused, RequestTooLarge, UnknownPin
from octavo.retention.client_pins import PinRequest
from octavo.types import FinishReason

PROMPT = tuple(range(100, 122))  # five blocks of 4, and two tokens


def pinned(
    served: Served, name: str = "greeting", prompt: tuple[int, ...] = PROMPT, ttl: float = 60.0
) -> int:
    """Open a pin and serve the request that fills it."""
    served.scheduler.client_pins.open(PinRequest(name, prompt, ttl), served.next_id, 0.0)
    request = served.add(prompt, 1, fills_pin=name)
    while served.state(request) is not State.FINISHED:
        served.step()
    return request


def evict_everything(served: Served) -> None:
    for _ in range(8):
        served.add(60, 1)
    while served.scheduler.has_work:
        served.step()


def test_a_pinned_prompt_survives_eviction_and_an_unpinned_one_does_not() -> None:
    served = Served(blocks=40)
    pinned(served)
    other = tuple(range(500, 522))
    served.add(other, 1)
    served.step()
    served.step()
    evict_everything(served)
    assert served.memory.counts().held == 5
    for prompt, hits in ((PROMPT, 20), (other, 0)):
        request = served.add(prompt, 1)
        while served.state(request) is not State.FINISHED:
            served.step()
        assert next(u.usage.num_cached for u in served.updates if u.request_id == request) == hits


def test_a_pin_ends_with_its_time_and_renewing_gives_it_more() -> None:
    served = Served()
    pinned(served, ttl=60.0)
    assert served.scheduler.next_event() == 60.0
    served.scheduler.client_pins.renew("", "greeting", 100.0, now=50.0)
    served.scheduler.expire(149.0)
    assert served.memory.counts().held == 5
    served.scheduler.expire(150.0)
    served.scheduler.check()
    assert served.memory.counts().held == 0
    with pytest.raises(UnknownPin, match="no pin named 'greeting'"):
        served.scheduler.client_pins.renew("", "greeting", 10.0, now=151.0)


def test_deleting_a_pin_leaves_its_blocks_findable() -> None:
    served = Served()
    pinned(served)
    served.scheduler.client_pins.release("", "greeting")
    assert served.memory.counts().held == 0
    assert served.memory.counts().cached == 5


def test_pins_keep_within_their_budget_and_the_refusal_says_who_holds_what() -> None:
    served = Served(blocks=100, pins=7)
    pinned(served)
    with pytest.raises(PinRefused, match=r"needs 5 blocks and 3 are missing.*held by pins greeting 5"):
        served.scheduler.client_pins.open(
            PinRequest("second", tuple(range(900, 920)), 60.0), served.next_id, 0.0
        )
    served.scheduler.check()


def test_pins_leave_room_for_the_largest_request_that_was_taken() -> None:
    served = Served(blocks=20, pins=20)
    served.add(60, 5)  # 16 blocks at its longest
    with pytest.raises(PinRefused, match=r"1 are missing.*the largest request needs 16 of the pool's 20"):
        served.scheduler.client_pins.open(
            PinRequest("big", tuple(range(900, 920)), 60.0), served.next_id, 0.0
        )
    pinned(served, "small", tuple(range(900, 916)))
    served.add(60, 5)
    with pytest.raises(
        RequestTooLarge, match=r"needs 17 KV blocks; allowed: 16, what pins leave of the pool"
    ):
        served.add(64, 5)
    while served.scheduler.has_work:
        served.step()


def test_a_pin_goes_with_the_request_that_was_to_fill_it() -> None:
    for end in ("cancel", "fail"):
        served = Served()
        served.scheduler.client_pins.open(PinRequest("greeting", PROMPT, 60.0), served.next_id, 0.0)
        request = served.add(PROMPT, 1, fills_pin="greeting")
        if end == "cancel":
            served.scheduler.cancel(request)
        else:
            served.step()
            served.commit(served.plan(), request)
        assert len(served.scheduler.pins) == 0
        served.scheduler.check()
        assert served.memory.counts().held == 0


def test_a_pin_that_is_deleted_while_it_is_filled_fails_its_request_with_a_reason() -> None:
    served = Served()
    served.scheduler.client_pins.open(PinRequest("greeting", PROMPT, 60.0), served.next_id, 0.0)
    request = served.add(PROMPT, 1, fills_pin="greeting")
    served.step()
    served.scheduler.client_pins.release("", "greeting")
    served.step()
    assert served.finished(request) == {0: FinishReason.ERROR}
    assert "deleted while it was being filled" in served.updates[-1].error


def test_a_pin_on_blocks_that_are_found_poisoned_is_let_go() -> None:
    served = Served()
    pinned(served)
    victim = served.add((*PROMPT, 7, 8, 9), 5)
    served.commit(served.plan(), victim)
    assert len(served.scheduler.pins) == 0
    served.scheduler.check()


def test_what_a_pin_must_be() -> None:
    served = Served()
    pinning = served.scheduler.client_pins
    with pytest.raises(InvalidRequest, match="name is 'a b'; allowed: 1 to 64 letters"):
        PinRequest("a b", PROMPT, 60.0)
    with pytest.raises(InvalidRequest, match=r"ttl is 0\.5; allowed: 1\.0 to"):
        PinRequest("a", PROMPT, 0.5)
    with pytest.raises(InvalidRequest, match="the prompt has 3 tokens; allowed: at least 4"):
        pinning.open(PinRequest("a", (1, 2, 3), 60.0), served.next_id, 0.0)
    pinned(served)
    with pytest.raises(InvalidRequest, match="there is a pin named 'greeting' already"):
        pinning.open(PinRequest("greeting", PROMPT, 60.0), served.next_id, 0.0)


def test_a_pin_belongs_to_the_request_that_fills_it_and_to_no_other_of_its_name() -> None:
    served = Served()
    served.scheduler.client_pins.open(PinRequest("greeting", PROMPT, 60.0), served.next_id, 0.0)
    first = served.add(PROMPT, 1, fills_pin="greeting")
    served.step()
    served.scheduler.client_pins.release("", "greeting")
    other = tuple(range(700, 720))
    served.scheduler.client_pins.open(PinRequest("greeting", other, 60.0), served.next_id, 0.0)
    second = served.add(other, 1, fills_pin="greeting")
    while served.scheduler.has_work:
        served.step()
    assert served.finished(first) == {0: FinishReason.ERROR}
    assert served.finished(second) == {0: FinishReason.LENGTH}
    assert [pin.filler for pin in served.scheduler.pins.all()] == [second]
