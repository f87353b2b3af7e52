"""Steps over a second memory: the bits of a pool that holds all, however they are cut; what is refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.contract import (
    AttentionSpec,
    Batch,
    Floats,
    HostBatch,
    KvPool,
    KvShape,
    RawTensor,
    StepBody,
)
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_layer
from octavo.kernels.program import ColdStepProgram, StepProgram
from octavo.types import COLD_FIRST

LAYERS, HEADS, KV_HEADS, SIZE, HIDDEN, VOCAB = 3, 4, 2, 16, 32, 61
LENGTHS = (1500, 700)  # positions that the two sequences have in memory
WIDTH = 100  # blocks of a table at most


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = _native.num_threads()
    yield
    _native.set_num_threads(before)


def decoder(ops: NativeOps, pool: KvPool, specs: Sequence[AttentionSpec]) -> StepBody:
    """Layers of attention, each over a pool that a step's own tokens are stored in, with products between."""
    rng = np.random.default_rng(5)

    def matrix(outputs: int, inputs: int):  # type: ignore[no-untyped-def]
        values = rng.normal(0, 0.3, (outputs, inputs)).astype(np.float32)
        return ops.matrix(RawTensor("w", "F32", values.shape, values.view(np.uint8).reshape(-1)))

    table = matrix(VOCAB, HIDDEN)
    layers = [
        (
            matrix(HEADS * SIZE, HIDDEN),
            *(matrix(KV_HEADS * SIZE, HIDDEN) for _ in "kv"),
            matrix(HIDDEN, HEADS * SIZE),
        )
        for _ in specs
    ]
    norm = np.ones(HIDDEN, np.float32)

    def body(o, batch):  # type: ignore[no-untyped-def]
        x = o.embed(table, batch.tokens)
        for layer, (spec, (wq, wk, wv, wo)) in enumerate(zip(specs, layers, strict=True)):
            normed = o.rms_norm(x, norm, 1e-5)
            q, k, v = (o.linear(normed, w) for w in (wq, wk, wv))
            o.store(pool, layer, k, v, batch)
            x = o.add(x, o.linear(o.attend(pool, layer, q, batch, spec), wo))
        return o.rms_norm(o.take(x, batch.logit_rows), norm, 1e-5)

    return body


@dataclass(slots=True)
class Whole:
    """A pool that holds two sequences, and what chunks behind them come to over it."""

    shape: KvShape
    pool: KvPool
    tables: np.ndarray  # (2, WIDTH)
    specs: Sequence[AttentionSpec]

    def program(self) -> StepProgram:
        return StepProgram(decoder(NativeOps("f32"), self.pool, self.specs), self.pool)


def plain_specs() -> list[AttentionSpec]:
    return [AttentionSpec(0.25)] * LAYERS


def odd_specs() -> list[AttentionSpec]:
    """A window, a soft cap with slopes, sinks; and no window in between."""
    sinks, slopes = np.array([0.5, -1, 2, 0], np.float32), np.array([0.5, 0.1, 0.01, 0.001], np.float32)
    return [
        AttentionSpec(0.25, window=530, sinks=sinks),
        AttentionSpec(0.25, soft_cap=3.0, slopes=slopes),
        AttentionSpec(0.25, window=40, soft_cap=5.0),
    ]


def whole(kind: str, specs: Sequence[AttentionSpec], block_size: int = 16) -> Whole:
    """Random K and V at scattered blocks."""
    ops = NativeOps("f32")
    shape = KvShape(len(specs), KV_HEADS, SIZE, block_size, kind)
    rng = np.random.default_rng(7)
    pool = ops.allocate_kv(shape, 2 * WIDTH)
    pool.data[:] = 0xFF  # no number
    tables = rng.permutation(2 * WIDTH).astype(np.int32).reshape(2, WIDTH)
    for layer in range(len(specs)):
        for table, length in zip(tables, LENGTHS, strict=True):
            k, v = (rng.normal(0, 1, (length, KV_HEADS * SIZE)).astype(np.float32) for _ in "kv")
            ops.store(pool, layer, k, v, batch_of([(0, length, table)]))
    return Whole(shape, pool, tables, specs)


def batch_of(chunks: Sequence[tuple[int, int, np.ndarray]]) -> HostBatch:
    """Chunks (start, length, table); every token's row is wanted."""
    lengths = [length for _, length, _ in chunks]
    positions = [start + np.arange(length) for start, length, _ in chunks]
    count = sum(lengths)
    return Batch(
        tokens=(np.arange(count) * 7 % VOCAB).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        starts=np.array([start for start, _, _ in chunks], np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        tables=np.array([table for _, _, table in chunks], np.int32),
        logit_rows=np.arange(count, dtype=np.int32),
    )


@dataclass(slots=True)
class Split:
    """The same sequences with some blocks in slots: a pool of the others, a memory, and cold tables."""

    pool: KvPool
    memory: _native.SecondMemory
    tables: np.ndarray
    path: Path
    program: ColdStepProgram


def split(
    full: Whole,
    path: Path,
    is_cold: Callable[[int], bool],
    num_host: int = 0,
    lanes: int = 4,
    window_bytes: int = 1 << 20,
    num_readers: int = 2,
) -> Split:
    """Blocks at table places that `is_cold` chooses, of those before each sequence's last, go to slots."""
    shape, layer_bytes = full.shape, bytes_per_layer(full.shape)
    pieces = shape.num_layers + 1
    pool = NativeOps("f32").allocate_kv(shape, full.pool.num_blocks)
    pool.data[:] = full.pool.data
    tables = full.tables.copy()
    cold = [
        (c, place)
        for c, length in enumerate(LENGTHS)
        for place in range(length // shape.block_size)
        if is_cold(place)
    ]
    num_slots = max(len(cold), num_host)
    num_host = min(num_host, num_slots)
    stripes = max(1, -(-(num_slots - num_host) // lanes))
    host = np.full((max(num_host, 1), full.pool.bytes_per_block), 0xFF, np.uint8)
    file = np.full((stripes, pieces, lanes, layer_bytes), 0xFF, np.uint8)
    order = (
        range(len(cold)) if num_host else np.roll(np.arange(len(cold)), 3)
    )  # slots in a somewhat mixed order
    for slot, (c, place) in zip(order, cold, strict=True):
        block = full.pool.data[tables[c, place]]
        if slot < num_host:
            host[slot] = block
        else:
            stripe, lane = divmod(slot - num_host, lanes)
            for layer in range(shape.num_layers):
                file[stripe, layer, lane] = block[layer * layer_bytes : (layer + 1) * layer_bytes]
        pool.data[tables[c, place]] = 0xFF
        tables[c, place] = COLD_FIRST + slot
    path.write_bytes(file.tobytes())
    has_file = num_slots > num_host
    fd = os.open(path, os.O_RDONLY) if has_file else -1
    memory = _native.SecondMemory(
        host.reshape(-1), host.shape[1], num_host, fd, lanes, pieces, num_slots, window_bytes, num_readers
    )
    if has_file:
        os.close(fd)
    program = ColdStepProgram(decoder(NativeOps("f32"), pool, full.specs), pool, memory)
    return Split(pool, memory, tables, path, program)


CHUNKS: dict[str, list[tuple[int, int, int]]] = {  # (sequence, start, length)
    "one token": [(0, 1499, 1)],
    "many": [(0, 1440, 55)],
    "several": [(1, 690, 20), (0, 1499, 1)],
}


def batch_over(tables: np.ndarray, chunks: Sequence[tuple[int, int, int]]) -> HostBatch:
    return batch_of([(start, length, tables[c]) for c, start, length in chunks])


def ended(program: ColdStepProgram, batch: HostBatch, num_layers: int = LAYERS) -> Floats:
    """All of a step, so many layers at a time."""
    program.begin(batch)
    calls = 1
    while (result := program.advance(batch.tables, num_layers)) is None:
        calls += 1
    assert calls == -(-LAYERS // num_layers)
    return result.copy()


MEMORIES: dict[str, dict[str, int]] = {
    "host": {"num_host": 1000},
    "file": {"lanes": 64},
    "file, one lane": {"lanes": 1},
    "both": {"num_host": 50, "lanes": 7},
}


@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("specs", [plain_specs, odd_specs])
@pytest.mark.parametrize("where", MEMORIES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_bits_are_those_of_a_pool_that_holds_all(kind, specs, where, chunks, tmp_path: Path) -> None:
    full = whole(kind, specs())
    apart = split(full, tmp_path / "slots", lambda place: place % 10 < 8 and place < 85, **MEMORIES[where])
    batch = batch_over(full.tables, CHUNKS[chunks])
    expected = full.program()(batch)
    assert np.isfinite(expected).all()
    for threads in (1, 2, 3):
        _native.set_num_threads(threads)
        for num_layers in (1, 2, LAYERS):
            cold = dataclasses.replace(batch, tables=batch_over(apart.tables, CHUNKS[chunks]).tables)
            np.testing.assert_array_equal(ended(apart.program, cold, num_layers), expected)
    assert apart.program.failed_slots() == []
    assert (apart.program.stats().bytes_read > 0) == ("file" in where or where == "both")


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_window_of_two_frames_is_enough(block_size: int, tmp_path: Path) -> None:
    full = whole("bf16", plain_specs(), block_size)
    frame = 256 // block_size * bytes_per_layer(full.shape)
    apart = split(full, tmp_path / "slots", lambda place: True, window_bytes=2 * frame, num_readers=3)
    chunks = CHUNKS["one token"] if block_size == 16 else [(0, 1499 // block_size * block_size, 5)]
    expected = full.program()(batch_over(full.tables, chunks))
    for _ in range(3):
        np.testing.assert_array_equal(ended(apart.program, batch_over(apart.tables, chunks)), expected)
    small = split(full, tmp_path / "other", lambda place: True, window_bytes=2 * frame - 1)
    with pytest.raises(ValueError, match=f"window_bytes is {2 * frame - 1}; allowed: from {2 * frame}"):
        small.program.begin(batch_over(small.tables, chunks))


def test_only_what_a_window_shows_is_read(tmp_path: Path) -> None:
    full = whole("f32", [AttentionSpec(0.25, window=64)] * LAYERS)
    apart = split(full, tmp_path / "slots", lambda place: True)
    ended(apart.program, batch_over(apart.tables, [(0, 1499, 1)]))
    blocks = 1499 // 16 - (1499 - 63) // 16
    assert apart.program.stats().bytes_read == LAYERS * blocks * bytes_per_layer(full.shape)


def test_another_program_runs_between_layers(tmp_path: Path) -> None:
    full = whole("bf16", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: place < 60)
    other = StepProgram(decoder(NativeOps("f32"), apart.pool, full.specs), apart.pool)
    batch, second = batch_over(full.tables, CHUNKS["many"]), batch_over(full.tables, [(1, 0, 9)])
    second.tables[0, 0] = apart.pool.num_blocks - 1
    used = set(apart.tables[apart.tables < COLD_FIRST][: LENGTHS[0] // 16 + 1])
    free = next(b for b in range(apart.pool.num_blocks) if b not in used and b not in apart.tables)
    second.tables[0, 0] = free
    expected, expected_second = full.program()(batch).copy(), other(second).copy()
    cold = batch_over(apart.tables, CHUNKS["many"])
    apart.program.begin(cold)
    for _ in range(LAYERS - 1):
        assert apart.program.advance(cold.tables, 1) is None
        np.testing.assert_array_equal(other(second), expected_second)
    np.testing.assert_array_equal(apart.program.advance(cold.tables, 1), expected)


def test_tables_may_change_between_layers(tmp_path: Path) -> None:
    """A hot block moves; then a hot entry turns cold, and a cold one hot."""
    full = whole("int8", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: place < 60 and place % 2 == 0, lanes=5)
    batch = batch_over(full.tables, CHUNKS["one token"])
    expected = full.program()(batch).copy()
    cold = batch_over(apart.tables, CHUNKS["one token"])
    free = int(np.setdiff1d(np.arange(apart.pool.num_blocks), cold.tables)[0])
    apart.program.begin(cold)
    assert apart.program.advance(cold.tables, 1) is None
    moved = cold.tables.copy()
    moved[0, 61] = free
    apart.pool.data[free] = apart.pool.data[cold.tables[0, 61]]
    apart.pool.data[cold.tables[0, 61]] = 0xFF
    assert apart.program.advance(moved, 1) is None
    turned = moved.copy()
    turned[0, 0], turned[0, 59] = turned[0, 61], COLD_FIRST  # the slot of place 0 gets another block's bytes
    slot = int(cold.tables[0, 0]) - COLD_FIRST
    turned[0, 59] = COLD_FIRST + slot
    apart.pool.data[turned[0, 61]] = full.pool.data[batch.tables[0, 61]]
    second = int(np.setdiff1d(np.arange(apart.pool.num_blocks), turned)[0])
    apart.pool.data[second] = full.pool.data[batch.tables[0, 0]]
    turned[0, 0] = second
    layer_bytes, pieces = bytes_per_layer(full.shape), LAYERS + 1
    stripe, lane = divmod(slot, 5)
    with apart.path.open("r+b") as file:
        for layer in range(LAYERS):
            block = full.pool.data[batch.tables[0, 59]]
            file.seek((stripe * pieces * 5 + layer * 5 + lane) * layer_bytes)
            file.write(block[layer * layer_bytes : (layer + 1) * layer_bytes].tobytes())
    np.testing.assert_array_equal(apart.program.advance(turned, 1), expected)


def test_slots_beyond_the_end_of_the_file_are_reported(tmp_path: Path) -> None:
    full = whole("f32", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: place < 60, lanes=4)
    layer_bytes = bytes_per_layer(full.shape)
    stripe_bytes = 4 * (LAYERS + 1) * layer_bytes
    os.truncate(
        apart.path, 5 * stripe_bytes + 2 * 4 * layer_bytes + layer_bytes // 2
    )  # within layer 2 of slot 20
    batch = batch_over(apart.tables, CHUNKS["one token"])
    ended(apart.program, batch)
    in_use = batch.tables[0, : 1499 // 16 + 1]
    slots = sorted(int(e) - COLD_FIRST for e in in_use[in_use >= COLD_FIRST])
    assert apart.program.failed_slots() == [s for s in slots if s >= 20]


def test_an_abandoned_step_leaves_room_for_another(tmp_path: Path) -> None:
    full = whole("bf16", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: True)
    expected = full.program()(batch_over(full.tables, CHUNKS["one token"])).copy()
    batch = batch_over(apart.tables, CHUNKS["one token"])
    apart.program.abandon()  # none is under way
    for layers in range(LAYERS):
        apart.program.begin(batch)
        for _ in range(layers):
            assert apart.program.advance(batch.tables, 1) is None
        with pytest.raises(RuntimeError, match="a cold step is under way"):
            apart.program.begin(batch)
        with pytest.raises(RuntimeError, match="a cold step is under way"):
            apart.program._program.run_step(
                *(getattr(batch_over(full.tables, CHUNKS["one token"]), name) for name in FIELDS), 2 * WIDTH
            )
        apart.program.abandon()
    with pytest.raises(RuntimeError, match="no cold step"):
        apart.program.advance(batch.tables, 1)
    np.testing.assert_array_equal(ended(apart.program, batch), expected)


FIELDS = ("tokens", "positions", "starts", "offsets", "tables", "logit_rows")


def test_a_memory_serves_one_program_at_a_time(tmp_path: Path) -> None:
    full = whole("f32", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: True)
    second = ColdStepProgram(decoder(NativeOps("f32"), apart.pool, full.specs), apart.pool, apart.memory)
    batch = batch_over(apart.tables, CHUNKS["one token"])
    apart.program.begin(batch)
    with pytest.raises(RuntimeError, match="serves a step of another program"):
        second.begin(batch)
    del apart.program  # a suspended step ends with its program
    assert ended(second, batch).shape == (1, HIDDEN)


def test_a_step_without_cold_entries_runs_too(tmp_path: Path) -> None:
    full = whole("bf16", odd_specs())
    apart = split(full, tmp_path / "slots", lambda place: False, num_host=1)
    batch = batch_over(full.tables, CHUNKS["several"])
    np.testing.assert_array_equal(ended(apart.program, batch), full.program()(batch))


def test_entries_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    full = whole("f32", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: place < 10)
    good = batch_over(apart.tables, [(0, 1499, 1)])
    num_slots = 20

    def changed(place: int, entry: int) -> HostBatch:
        tables = good.tables.copy()
        tables[0, place] = entry
        return dataclasses.replace(good, tables=tables)

    refused = [
        (changed(3, COLD_FIRST + num_slots), IndexError, "slot of the second memory is 20; allowed: 0 to 19"),
        (changed(3, 2 * WIDTH), IndexError, "block id is 200; allowed: 0 to 199"),
        (changed(3, -1), IndexError, "block id is -1"),
        (changed(1499 // 16, COLD_FIRST), ValueError, "chunk 0 writes to a slot"),
    ]
    for batch, error, told in refused:
        with pytest.raises(error, match=told):
            apart.program.begin(batch)
    with pytest.raises(IndexError, match="block id is 10737418"):
        StepProgram(decoder(NativeOps("f32"), apart.pool, full.specs), apart.pool)(changed(3, COLD_FIRST))
    apart.program.begin(good)
    for batch, error, told in refused:
        with pytest.raises(error, match=told):
            apart.program.advance(batch.tables, 1)
    with pytest.raises(ValueError, match="num_layers is 0"):
        apart.program.advance(good.tables, 0)
    with pytest.raises(ValueError, match="second axis"):
        apart.program.advance(good.tables[:, :-1].copy(), 1)
    expected = full.program()(batch_over(full.tables, [(0, 1499, 1)]))
    np.testing.assert_array_equal(apart.program.advance(good.tables, LAYERS), expected)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"num_slots": 0}, ValueError, "num_slots is 0; allowed: 1 to"),
        ({"num_host": 5}, ValueError, "num_host is 5; allowed: 0 to 4"),
        ({"host": None}, ValueError, "there is no host memory"),
        ({"host_slot_bytes": 0}, ValueError, "host_slot_bytes is 0"),
        ({"host_slot_bytes": 62}, ValueError, "multiples of 4 bytes"),
        ({"host_slot_bytes": 68}, ValueError, "host has 128 bytes, too few"),
        ({"fd": -1}, ValueError, "there is no file"),
        ({"num_slots": 2}, ValueError, "no slot lies in it"),
        ({"fd": 10_000_000}, RuntimeError, "the file of a second memory"),
        ({"lanes": 0}, ValueError, "lanes is 0"),
        ({"pieces": 0}, ValueError, "pieces is 0"),
        ({"window_bytes": 0}, ValueError, "window_bytes is 0"),
        ({"num_readers": 65}, ValueError, "num_readers is 65; allowed: 1 to 64"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(changes, error, told) -> None:
    given = {
        "host": np.zeros(128, np.uint8),
        "host_slot_bytes": 64,
        "num_host": 2,
        "fd": 0,
        "lanes": 2,
        "pieces": 1,
        "num_slots": 4,
        "window_bytes": 4096,
        "num_readers": 1,
    }
    with pytest.raises(error, match=told):
        _native.SecondMemory(**(given | changes))


def test_a_memory_whose_slots_are_too_small_is_refused(tmp_path: Path) -> None:
    full = whole("f32", plain_specs())
    apart = split(full, tmp_path / "slots", lambda place: place < 10)
    batch = batch_over(apart.tables, CHUNKS["one token"])
    few_bytes = _native.SecondMemory(np.zeros(4 * 64, np.uint8), 64, 4, -1, 1, 1, 4, 0, 1)
    few_pieces = _native.SecondMemory(None, 0, 0, 0, 2, 2, 20, 1 << 20, 1)
    for memory, told in (
        (few_bytes, "host_slot_bytes is 64"),
        (few_pieces, "pieces is 2; the program has 3"),
    ):
        program = ColdStepProgram(decoder(NativeOps("f32"), apart.pool, full.specs), apart.pool, memory)
        with pytest.raises(ValueError, match=told):
            program.begin(batch)
