"""Where the turns of a session ended, and what may be asked of that."""

from __future__ import annotations

from array import array

import pytest

from octavo.conversations.turn_ends import TurnEnds
from octavo.errors import InvalidRequest


def test_turns_that_go_on_can_all_be_gone_back_to() -> None:
    ends = TurnEnds().with_turn(3, goes_on=True).with_turn(7, goes_on=True)
    assert (len(ends), ends.until(1).ends, ends.until(2), ends.until(None)) == (2, (3,), ends, ends)


def test_after_a_turn_that_did_not_go_on_those_before_are_counted_and_no_more() -> None:
    ends = TurnEnds(0, (3, 7)).with_turn(5, goes_on=False).with_turn(9, goes_on=True)
    assert (len(ends), ends.ends) == (4, (5, 9))
    assert (len(ends.until(3)), ends.until(3).ends) == (3, (5,))
    with pytest.raises(InvalidRequest, match=r"turn is 2; allowed: 3 to 4 \(what was said before turn 3 was"):
        ends.until(2)


@pytest.mark.parametrize("turn", [0, -1, 3, True, 1.5])
def test_turns_that_there_are_not_are_refused(turn: int) -> None:
    with pytest.raises(InvalidRequest, match="allowed: 1 to 2") as error:
        TurnEnds(0, (3, 7)).until(turn)
    assert error.value.param == "turn"


@pytest.mark.parametrize("ends", [TurnEnds(), TurnEnds(0, (9,)), TurnEnds(2, (4, 9))])
def test_what_is_stored_is_found_again(ends: TurnEnds) -> None:
    assert TurnEnds.from_bytes(ends.to_bytes(), ends.ends[-1] if ends.ends else 0) == ends


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "text",
        b"",
        b"abc",
        array("I", [0]).tobytes(),
        array("I", [0, 4, 8]).tobytes(),
        array("I", [0, 4, 4, 9]).tobytes(),
        array("I", [0, 0, 9]).tobytes(),
        array("I", [0, 12, 9]).tobytes(),
    ],
)
def test_of_ends_that_make_no_sense_all_that_was_said_is_one_turn(stored: object) -> None:
    assert TurnEnds.from_bytes(stored, 9) == TurnEnds(0, (9,))
