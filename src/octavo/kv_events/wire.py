"""The events in the format of vLLM 0.33: msgpack maps whose first key is `type`, or arrays for routers that
only read the older form.

    batch    [time (float64, seconds since 1970), [event, ...], 0]     0: the rank of data parallelism
    message  topic | sequence (8 bytes, unsigned, big endian) | batch

All hashes have bit 63 set, so msgpack writes each as a uint64. `group_idx` and `kv_cache_spec_kind` are
always there: llm-d refuses one without the other. A tag is in `extra_keys` of a prompt's first block, as vLLM
writes a cache_salt, and in `cache_salt`, where Dynamo reads it. Source: vllm/distributed/kv_events.py of vLLM
0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from octavo.memory.changes import Place

MEDIUM = {Place.POOL: "GPU", Place.HOST: "CPU", Place.DISK: "STORAGE"}  # "GPU": also for CPU backends
_KIND = "full_attention"


class Form(StrEnum):
    """The encoding of events."""

    MAP = "map"
    ARRAY = "array"


class BlockStored(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Consecutive blocks of a prompt have come to a medium. `token_ids`: of all these blocks."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    cache_salt: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Blocks have left a medium."""

    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag_field="type"):
    """All earlier blocks are gone."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def stored(block_size: int, medium: str, tag: str, parent: int | None) -> BlockStored:
    """An event without blocks."""
    return BlockStored([], parent, [], block_size, None, medium, None, None, tag or None, 0, _KIND)


def removed(medium: str) -> BlockRemoved:
    """An event without blocks."""
    return BlockRemoved([], medium, 0)


_encoder = msgspec.msgpack.Encoder()


def encode_batch(time_s: float, events: Sequence[Event], form: Form) -> bytes:
    """The last frame of a message."""
    rows: Sequence[object] = events if form is Form.MAP else [_row(event) for event in events]
    return _encoder.encode((float(time_s), rows, 0))


def _row(event: Event) -> list[object]:
    """The older form: fields by position, without `cache_salt`."""
    kind = type(event).__name__
    match event:
        case BlockStored():
            fields: list[object] = [event.block_hashes, event.parent_block_hash, event.token_ids]
            fields += [event.block_size, event.lora_id, event.medium, event.lora_name, event.extra_keys]
            return [kind, *fields, event.group_idx, event.kv_cache_spec_kind]
        case BlockRemoved():
            return [kind, event.block_hashes, event.medium, event.group_idx]
        case AllBlocksCleared():
            return [kind]
