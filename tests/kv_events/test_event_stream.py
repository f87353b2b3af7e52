"""Bytes, numbers and the buffer."""

from __future__ import annotations

import msgspec
import pytest
from tests.kv_events.readers import events_of, uint64s_of

from octavo.kv_events.identity import Identity
from octavo.kv_events.stream import CLEARINGS, Stream
from octavo.kv_events.wire import AllBlocksCleared, Form, encode_batch
from octavo.memory.changes import Change, Content, Place


def change(number: int, *, is_added: bool = True, salt: str = "") -> Change:
    content = Content(None, number.to_bytes(4, "little") + bytes(4), salt)
    return Change(bytes(31) + bytes([number]), "", Place.POOL, is_added, content)


def stream_of(
    form: Form = Form.MAP, *, replays: bool = True, batches_max: int = 100, bytes_max: int = 1 << 20
) -> Stream:
    limits = {"batches_max": batches_max, "bytes_max": bytes_max}
    return Stream(Identity(), form, lambda: 1.5, replays=replays, **limits)


def test_a_batch_is_what_vllm_writes() -> None:
    (batch,) = stream_of().apply([change(7, salt="salt"), change(8), change(7, is_added=False)])
    stored = {
        "type": "BlockStored",
        "block_hashes": [2**63 + 7],
        "parent_block_hash": None,
        "token_ids": [7, 0],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["salt"]],
        "cache_salt": "salt",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    plain = stored | {"block_hashes": [2**63 + 8], "token_ids": [8, 0]}
    del plain["extra_keys"], plain["cache_salt"]
    removed = {"type": "BlockRemoved", "block_hashes": [2**63 + 7], "medium": "GPU", "group_idx": 0}
    time_s, events, rank = msgspec.msgpack.decode(batch.payload)
    assert (time_s, rank, events) == (1.5, 0, [stored, plain, removed])
    assert [list(event) for event in events] == [list(stored), list(plain), list(removed)]
    assert {2**63 + 7, 2**63 + 8} <= uint64s_of(batch.payload)


def test_the_array_form_has_the_fields_by_position() -> None:
    (batch,) = stream_of(Form.ARRAY).apply([change(7, salt="salt"), change(7, is_added=False)])
    hash_, group = 2**63 + 7, [0, "full_attention"]
    assert msgspec.msgpack.decode(batch.payload)[1] == [
        ["BlockStored", [hash_], None, [7, 0], 2, None, "GPU", None, [["salt"]], *group],
        ["BlockRemoved", [hash_], "GPU", 0],
    ]
    cleared = encode_batch(1.5, [AllBlocksCleared()], Form.ARRAY)
    assert msgspec.msgpack.decode(cleared)[1] == [["AllBlocksCleared"]]


def test_numbers_begin_at_0_and_go_on_by_1_and_no_event_is_no_batch() -> None:
    stream = stream_of()
    numbers = [batch.number for n in range(5) for batch in stream.apply([change(n)])]
    assert numbers == [0, 1, 2, 3, 4]
    assert stream.apply([]) == []
    assert stream.apply([change(3)]) == []
    assert [batch.number for batch in stream.since(2)] == [2, 3, 4]
    assert [*stream.since(5)] == []
    assert [*stream.since(2**64 - 1)] == []


def test_where_batch_0_would_leave_the_buffer_a_new_story_begins() -> None:
    stream = stream_of(batches_max=3)
    for n in range(3):
        stream.apply([change(n)])
    batches = stream.apply([change(3)])
    assert [batch.number for batch in batches] == [*range(CLEARINGS + 1)]
    assert batches == stream.since(0)
    assert events_of(batches[0].payload, is_array=False) == [None]
    hashes = {hash_ for event in events_of(batches[-1].payload, is_array=False) for hash_ in event.hashes}  # type: ignore[union-attr]
    assert hashes == {2**63 + n for n in range(4)}
    assert [batch.number for batch in stream.apply([change(4)])] == [CLEARINGS + 1]


def test_a_buffer_of_many_bytes_begins_a_new_story_too() -> None:
    stream = stream_of(bytes_max=500)
    numbers = [batch.number for n in range(8) for batch in stream.apply([change(n)])]
    assert numbers.count(0) == 2


def test_without_replay_numbers_never_go_back_and_all_is_reported_again_now_and_then() -> None:
    stream = stream_of(replays=False, batches_max=3)
    told = [batch for n in range(20) for batch in stream.apply([change(n)])]
    assert [batch.number for batch in told] == [*range(len(told))]
    assert sum(b"AllBlocksCleared" in batch.payload for batch in told) >= 3
    assert stream.since(0) == []


@pytest.mark.parametrize("replays", [True, False])
def test_all_is_reported_at_the_next_numbers(replays: bool) -> None:
    stream = stream_of(replays=replays)
    assert [batch.number for batch in stream.begin([])] == [0]
    stream.apply([change(1)])
    cleared, whole = stream.snapshot()
    assert (cleared.number, whole.number) == (2, 3)
    assert events_of(cleared.payload, is_array=False) == [None]
    assert [batch.number for batch in stream.begin([])] == [4]
    assert len(stream.since(0)) == (5 if replays else 0)


def test_a_large_snapshot_is_cut_into_batches_and_is_never_too_large_for_the_buffer() -> None:
    stream = stream_of(batches_max=2, bytes_max=10)
    changes = [
        Change(n.to_bytes(32, "big"), "", Place.POOL, True, Content(None, n.to_bytes(8, "big")))
        for n in range(1, 3001)
    ]
    batches = stream.begin(changes)
    assert [batch.number for batch in batches] == [0, 1, 2, 3]
    assert stream.apply([change(0)])[0].number == 4
