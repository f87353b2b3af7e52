"""Bugs planted in what is said of misses: the table of names that are gone, and who is told what."""

from __future__ import annotations

from tests.simulator.planting import PlantedBug

from octavo.memory.name_history import Cause, Departure, NameHistory
from octavo.scheduler import prompt_split
from octavo.scheduler.sequence_parts import PromptSplit


def _gone_from_one_tier(
    self: NameHistory, name: bytes, cause: Cause, request_id: int | None, now: float
) -> None:
    self._gone[name] = Departure(now, cause, request_id)


def _others_kept(self: PromptSplit) -> PromptSplit:
    return self


SPLIT_BUGS = (
    PlantedBug("last token looked up", prompt_split, "hits_max", lambda tokens, size: tokens // size),
    PlantedBug("name that is found stays gone", NameHistory, "arrive", lambda self, name: self.clock()),
    PlantedBug("why a name is gone forgotten", NameHistory, "_leave", lambda self, *of_name: None),
    PlantedBug("name gone that another tier has", NameHistory, "_leave", _gone_from_one_tier),
    PlantedBug("tenant told for whom", PromptSplit, "for_tenant", _others_kept),
)
