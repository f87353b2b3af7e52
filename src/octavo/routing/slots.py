"""Ids with the slot of the replica that made them, so that a relay finds it again.

session      k3-Zb0c...           response   resp_k3-Zb0c...       request   k3-17
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SLOT_MAX = 99_999


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """The slot and name of an engine that is a replica."""

    slot: int
    name: str


_SLOTTED = re.compile(r"(?:[a-z]{1,8}_)?k(0|[1-9][0-9]{0,4})-")
_KIND = re.compile(r"[a-z]{1,8}_")


def with_slot(slot: int, given: str) -> str:
    """Insert the slot into an id, after its prefix ("resp_") if it has one."""
    assert 0 <= slot <= SLOT_MAX
    kind = _KIND.match(given) if given.startswith("resp_") else None
    start = 0 if kind is None else kind.end()
    return f"{given[:start]}k{slot}-{given[start:]}"


def slot_of(given: str) -> int | None:
    """The slot in an id; None: it has none."""
    found = _SLOTTED.match(given)
    return None if found is None else int(found[1])


def without_slot(given: str) -> str:
    """Remove the slot from an id. An id without a slot is returned as it is."""
    found = _SLOTTED.match(given)
    return given if found is None else given[: found.start(1) - 1] + given[found.end() :]
