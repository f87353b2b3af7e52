"""Slots: one holder each, and a replica that is started for another one gets that one's."""

from __future__ import annotations

from octavo.cluster.slot_table import SlotTable


def test_replicas_get_different_slots_and_the_same_one_again() -> None:
    table = SlotTable()
    assert table.claim("a", "n1", 2, {"a"}, 0.0) == 0
    assert table.claim("b", "n1", 2, {"a", "b"}, 0.0) == 1
    assert table.claim("a", "n1", 2, {"a", "b"}, 1.0) == 0


def test_a_replica_waits_for_the_slot_of_one_that_drains() -> None:
    table = SlotTable()
    table.claim("a", "n1", 1, {"a"}, 0.0)
    assert table.claim("b", "n1", 1, {"a", "b"}, 1.0) is None
    table.release("a", 1.0)
    assert table.claim("b", "n1", 1, {"b"}, 2.0) == 0


def test_a_slot_whose_holder_died_is_free() -> None:
    table = SlotTable()
    table.claim("a", "n1", 1, {"a"}, 0.0)
    table.on_ready("a", "http://127.0.0.1:1", 7)
    assert table.claim("b", "n1", 1, {"b"}, 1.0) == 0
    assert (table.slots[0].holder, table.slots[0].base_url, table.slots[0].pid) == ("b", "", 0)


def test_a_replica_takes_the_slot_that_its_node_had() -> None:
    table = SlotTable()
    for replica, node in (("a", "n1"), ("b", "n2")):
        table.claim(replica, node, 2, {"a", "b"}, 0.0)
    assert table.claim("c", "n2", 2, {"c"}, 1.0) == 1
    assert table.claim("d", "n2", 2, {"c", "d"}, 1.0) == 0


def test_a_holder_beyond_the_number_of_replicas_keeps_its_slot() -> None:
    """Two became one, and the one that stayed has slot 1: the next one takes the other."""
    table = SlotTable()
    table.claim("a", "n1", 2, {"a"}, 0.0)
    table.claim("b", "n1", 2, {"a", "b"}, 0.0)
    table.release("a", 1.0)
    assert table.claim("b", "n1", 1, {"b"}, 1.0) == 1
    assert table.claim("c", "n1", 2, {"b", "c"}, 1.0) == 0


def test_a_replacement_gets_the_slot_of_the_one_that_died_beyond_the_number_of_replicas() -> None:
    """Four became one, and the one that stayed had slot 3."""
    table = SlotTable()
    for replica in "abcd":
        table.claim(replica, "n1", 4, "abcd", 0.0)
    for replica in "abc":
        table.release(replica, 1.0)
    assert table.claim("e", "n1", 1, "de", 2.0) is None
    assert table.claim("e", "n1", 1, "e", 3.0) == 3


def test_of_free_slots_the_one_that_was_freed_last_is_taken_on_whatever_node() -> None:
    table = SlotTable()
    for replica, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        table.claim(replica, node, 3, "abc", 0.0)
    table.release("a", 1.0)
    table.release("b", 2.0)
    assert table.claim("d", "n1", 2, "cd", 3.0) == 1
    assert table.claim("e", "n1", 2, "cde", 3.0) is None
