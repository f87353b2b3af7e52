"""Ids name the slot of the replica that made them."""

from __future__ import annotations

import pytest

from octavo.routing.slots import SLOT_MAX, slot_of, with_slot, without_slot


@pytest.mark.parametrize("slot", [0, 7, 12, SLOT_MAX])
@pytest.mark.parametrize(
    ("given", "beginning"),
    [
        ("Zb0c-x", "k"),
        ("resp_Zb0c", "resp_k"),
        ("resp_-a_b", "resp_k"),
        ("17", "k"),
        ("_x", "k"),
        ("a_b", "k"),
    ],
)
def test_an_id_names_its_slot_and_can_be_had_without(slot: int, given: str, beginning: str) -> None:
    made = with_slot(slot, given)
    assert made.startswith(f"{beginning}{slot}-")
    assert slot_of(made) == slot
    assert without_slot(made) == given


@pytest.mark.parametrize(
    "given", ["", "17", "k", "k3", "k-1", "k03-x", "k100000-x", "resp_x", "Zk3-x", "K3-x"]
)
def test_other_ids_name_none(given: str) -> None:
    assert slot_of(given) is None
    assert without_slot(given) == given


def test_items_of_a_response_name_its_slot() -> None:
    assert slot_of("msg_k3-Zb0c_0") == 3
