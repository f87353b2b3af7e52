"""Former public names, which stay for one version after a change. CHANGELOG.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports a web framework, which --help must not load
    from octavo.server.errors import JsonObject

JSON_FIELDS: Mapping[str, str] = {
    "blocks_offloaded": "blocks_below",
    "blocks_kept_offloaded": "blocks_kept_below",
    "bytes_offloaded": "bytes_below",
    "num_offloaded": "num_below",
    "offload_tier": "below",
    "not_enforced": "let_go",
}
EVENTS: Mapping[str, str] = {
    "memory_pressure": "pressed",
    "memory_pressure_cleared": "relieved",
    "session_released": "session_gave_way",
}


def with_former_fields(row: JsonObject) -> JsonObject:
    """The row, with renamed fields under their former names too, each after the new one."""
    found: JsonObject = {}
    for name, value in row.items():
        found[name] = value
        if name in JSON_FIELDS:
            found[JSON_FIELDS[name]] = value
    return found


def without_former_fields(row: Mapping[str, object]) -> JsonObject:
    """The row without them, for people."""
    return {name: value for name, value in row.items() if name not in JSON_FIELDS.values()}


def with_former_events(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by kind of event, with renamed kinds under their former names too."""
    return {**counts, **{EVENTS[kind]: count for kind, count in counts.items() if kind in EVENTS}}
