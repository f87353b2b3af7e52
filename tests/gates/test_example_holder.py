"""The example of docs/holders.md runs, and what the page says of it is true."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scheduler.served import Served, State

from octavo.engine.port import inspector_of
from octavo.inspect.views import draw_map

PAGE = Path(__file__).parents[2] / "docs" / "holders.md"


def example() -> dict[str, object]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(code.splitlines()) <= 60
    scope: dict[str, object] = {}
    exec(code, scope)
    return scope


def served(blocks: int, pins: int) -> Served:
    served = Served(blocks=blocks, pins=pins)
    example()["LastAnswers"](served.scheduler)  # type: ignore[operator]
    return served


def to_the_end(served: Served, request: int) -> None:
    while served.state(request) is not State.FINISHED:
        served.step()


def test_the_last_answer_is_held_found_and_drawn_although_others_fill_the_pool() -> None:
    house = served(blocks=20, pins=10)
    prompt = tuple(range(100, 130))
    to_the_end(house, house.add(prompt, 3, tenant="a"))
    assert house.memory.counts().held == 8
    drawn = draw_map(inspector_of(house.scheduler).glimpse(0.0))
    assert (drawn.states.count("p"), drawn.owners) == (8, ("last answer",))
    for _ in range(4):
        to_the_end(house, house.add(30, 3, tenant="b"))
    again = house.add((*prompt, 1, 2), 1, tenant="a")
    to_the_end(house, again)
    assert house.updates[-1].usage.num_cached == 28
    house.scheduler.check()


def test_it_goes_when_a_request_could_not_run_alongside_it_and_a_smaller_pool_moves_it() -> None:
    house = served(blocks=20, pins=10)
    to_the_end(house, house.add(tuple(range(100, 130)), 3, tenant="a"))
    assert house.scheduler.resizer.resize(12)
    house.step()
    house.scheduler.check()
    assert house.memory.counts().held == 8
    to_the_end(house, house.add(40, 4, tenant="b"))
    texts = [event.text for event in house.scheduler.events.recent(5)]
    assert any(text.startswith("last answer released 8 blocks") for text in texts)
    house.scheduler.check()


def test_without_room_for_pins_it_keeps_nothing() -> None:
    house = served(blocks=20, pins=3)
    to_the_end(house, house.add(tuple(range(100, 130)), 3, tenant="a"))
    assert house.memory.counts().held == 0
