"""Ids that name the slot of the replica which made them, so that a router finds it again.

session      k3-Zb0c...           response   resp_k3-Zb0c...       request   k3-17
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SLOT_MAX = 99_999


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """What an engine must know that is a replica's."""

    slot: int
    name: str


_SLOTTED = re.compile(r"(?:[a-z]{1,8}_)?k(0|[1-9][0-9]{0,4})-")
_KIND = re.compile(r"[a-z]{1,8}_")


def slotted(slot: int, given: str) -> str:
    """The id with its slot, behind the prefix that says its kind ("resp_") where it has one."""
    assert 0 <= slot <= SLOT_MAX
    kind = _KIND.match(given) if given.startswith("resp_") else None
    start = 0 if kind is None else kind.end()
    return f"{given[:start]}k{slot}-{given[start:]}"


def slot_of(given: str) -> int | None:
    """The slot that an id names; None: it names none."""
    found = _SLOTTED.match(given)
    return None if found is None else int(found[1])


def without_slot(given: str) -> str:
    """What `slotted` was given; an id that names no slot as it is."""
    found = _SLOTTED.match(given)
    return given if found is None else given[: found.start(1) - 1] + given[found.end() :]
