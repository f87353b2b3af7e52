"""What a recorded program refuses, how many phases it has, and what its results are tied to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.tiny import tiny_model

from octavo import _native
from octavo.kernels.contract import Batch, Floats, KvShape, Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.program import RowsProgram, StepProgram
from octavo.model.decoder import hidden_states

BLOCKS = 8


@pytest.fixture
def step() -> StepProgram:
    """The tiny model's, two layers over a pool of 8 blocks of 16."""
    ops = NativeOps()
    model = tiny_model(ops)
    pool = ops.allocate_kv(KvShape(2, 2, 16, 16), BLOCKS)
    return StepProgram(lambda o, batch: hidden_states(o, model, pool, batch), pool)


def batch_of(**changes: np.ndarray) -> Batch:
    """Three tokens of one sequence at positions 15, 16, 17; the last one's logits are wanted."""
    given = {
        "tokens": [5, 6, 7],
        "positions": [15, 16, 17],
        "starts": [15],
        "offsets": [0, 3],
        "tables": [[4, 2]],
        "logit_rows": [2],
    } | changes
    return Batch(**{name: np.array(value, np.int32) for name, value in given.items()})


def test_a_layer_has_nine_phases(step: StepProgram) -> None:
    """Add and norm; q, k, v; rope and store; attention; output; add and norm; gate and up; activation; down.

    Two more at the end: the wanted rows are taken, and the last ones are added and normed.
    """
    assert step._program.num_phases == 2 * 9 + 2


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"tokens": [5, 97, 7]}, IndexError, "token is 97; allowed: 0 to 96"),
        ({"positions": [15, 16, 18]}, ValueError, "positions do not follow"),
        ({"tables": [[4, BLOCKS]]}, IndexError, "block id is 8; allowed: 0 to 7"),
        ({"tables": [[4]]}, ValueError, "the block table of chunk 0 is too short"),
        ({"offsets": [0, 2]}, ValueError, "offsets must begin at 0"),
        ({"logit_rows": [3]}, IndexError, "logit row is 3"),
        ({"positions": [511, 512, 513], "starts": [511]}, IndexError, "position is 512"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(step: StepProgram, changes, error, told) -> None:
    with pytest.raises(error, match=told):
        step(batch_of(**changes))


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("weights", ["f32", "int8", "q4"])
@pytest.mark.parametrize("wanted", [[69, 146, 147, 159], range(1, 160)])
def test_a_program_has_the_bits_of_its_ops_however_many_threads_keep_its_rows(
    wanted: Sequence[int], weights: str, kv: str, rng: np.random.Generator
) -> None:
    """160 rows: up to five threads keep rows of their own, beside four bits up to ten."""
    ops = NativeOps(weights)
    ops.hidden = 128  # type: ignore[attr-defined]  # codes of a row fill their cache lines: no room to spare
    model = tiny_model(ops)
    pools = [ops.allocate_kv(KvShape(2, 2, 16, 16, kv), 24) for _ in range(2)]
    for pool in pools:
        pool.data[:] = 0
    starts, lengths = np.array([0, 3, 150, 0], np.int32), np.array([70, 77, 1, 12], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    batch = Batch(
        tokens=rng.integers(0, 97, offsets[-1]).astype(np.int32),
        positions=np.concatenate(
            [s + np.arange(n) for s, n in zip(starts, lengths, strict=True)], dtype=np.int32
        ),
        starts=starts,
        offsets=offsets,
        tables=np.array([range(10), range(5, 15), range(12, 22), range(11, 21)], np.int32),
        logit_rows=np.array(wanted, np.int32),
    )
    before = _native.num_threads()
    try:
        _native.set_num_threads(1)
        expected = hidden_states(ops, model, pools[0], batch)
        step = StepProgram(lambda o, given: hidden_states(o, model, pools[1], given), pools[1])
        for threads in (1, 2, 3, 5, 6, 10, 11):
            _native.set_num_threads(threads)
            for prefetch in (False, True, None):
                step._program.prefetch_kv(prefetch)
                for _ in range(3):
                    np.testing.assert_array_equal(step(batch), expected)
            assert pools[1].data.tobytes() == pools[0].data.tobytes()
    finally:
        _native.set_num_threads(before)


@pytest.mark.parametrize("tokens_first", [True, False])
def test_products_over_tokens_and_over_wanted_rows_share_no_phase(
    tokens_first: bool, rng: np.random.Generator
) -> None:
    """They may be ready together; of 64 tokens and 63 wanted rows two threads keep the former only."""
    ops = NativeOps("int8")
    values = rng.standard_normal((96, 64)).astype(np.float32)
    table = ops.matrix(RawTensor("w", "F32", values.shape, values.view(np.uint8).reshape(-1)))
    pool = ops.allocate_kv(KvShape(1, 1, 16, 16), 4)

    def body(o: Ops, batch: Batch) -> Floats:
        x = o.embed(table, batch.tokens)
        wanted = o.take(x, batch.logit_rows)
        if tokens_first:
            o.linear(o.rms_norm(x, np.ones(64, np.float32), 1e-5), table)
            return o.linear(wanted, table)
        o.linear(wanted, table)
        return o.linear(o.rms_norm(x, np.ones(64, np.float32), 1e-5), table)

    batch = Batch(
        tokens=rng.integers(0, 96, 64).astype(np.int32),
        positions=np.arange(64, dtype=np.int32),
        starts=np.zeros(1, np.int32),
        offsets=np.array([0, 64], np.int32),
        tables=np.arange(4, dtype=np.int32)[None],
        logit_rows=np.arange(1, 64, dtype=np.int32),
    )
    before = _native.num_threads()
    try:
        _native.set_num_threads(2)
        np.testing.assert_array_equal(StepProgram(body, pool)(batch), body(ops, batch))
    finally:
        _native.set_num_threads(before)


def test_a_step_tries_with_and_without_fetching_ahead(step: StepProgram) -> None:
    """Three runs of the same size are a comparison, 12 at first and then few; what is decided, and two rows,
    compare nothing."""
    trial = step._program.kv_prefetch_trial
    for _ in range(36):
        step(batch_of())
    comparisons, ratio = trial(3)
    assert comparisons == 12
    for _ in range(40):
        step(batch_of())
    assert trial(3) == (12, ratio)
    for _ in range(40):
        step(batch_of())
    assert trial(3)[0] == 13

    step._program.prefetch_kv(False)
    for _ in range(80):
        step(batch_of())
    step._program.prefetch_kv(None)
    for _ in range(80):
        step(batch_of(tokens=[5, 6], positions=[15, 16], offsets=[0, 2], logit_rows=[1]))
    assert trial(3)[0] == 13


def test_a_result_lives_until_the_next_run_and_keeps_its_program(step: StepProgram) -> None:
    first = step(batch_of())
    kept = first.copy()
    second = step(batch_of(tokens=[5, 6, 8]))
    assert np.shares_memory(first, second)
    del step
    assert second.tobytes() != kept.tobytes()


def test_a_finished_program_takes_nothing_more() -> None:
    program = _native.Program([])
    rows = program.given_rows(16)
    program.finish(program.scale(rows, 2.0))
    with pytest.raises(ValueError, match="finished"):
        program.scale(rows, 2.0)
    doubled = program.run_rows(np.ones((3, 16), np.float32))
    assert doubled.tolist() == [[2.0] * 16] * 3


def test_a_result_outlives_the_arena_that_a_larger_run_replaces() -> None:
    program = _native.Program([])
    program.finish(program.scale(program.given_rows(16), 2.0))
    small = program.run_rows(np.ones((1, 16), np.float32))
    program.run_rows(np.zeros((4096, 16), np.float32))
    assert small.tolist() == [[2.0] * 16]


def test_a_program_is_run_on_what_it_was_recorded_for(step: StepProgram) -> None:
    with pytest.raises(ValueError, match="takes no rows"):
        step._program.run_rows(np.ones((1, 64), np.float32))
    rows_only = _native.Program([])
    rows_only.finish(rows_only.scale(rows_only.given_rows(16), 2.0))
    empty = np.empty(0, np.int32)
    with pytest.raises(ValueError, match="takes rows, not a step"):
        rows_only.run_step(np.zeros(1, np.int32), empty, empty, empty, empty.reshape(0, 0), empty, 1)


def test_shapes_that_do_not_fit_are_refused_while_recording() -> None:
    program = _native.Program([])
    rows = program.given_rows(16)
    weight = _native.float_weight(np.zeros((2, 16, 16), np.float32), 32)
    with pytest.raises(ValueError, match="differ in shape"):
        program.add(rows, program.linear(rows, weight, None))
    with pytest.raises(ValueError, match="given rows already"):
        program.given_rows(16)
    with pytest.raises(ValueError, match="nothing was recorded"):
        program.finish(rows)
    with pytest.raises(ValueError, match="absurdly many"):
        _native.float_weight(np.zeros((0, 16, 16), np.float32), 0)
    with pytest.raises(IndexError, match="x is 9"):
        program.scale(9, 2.0)
    with pytest.raises(IndexError, match="layer is 0"):
        program.store(0, rows, rows)


def head(weights: str, values: Floats, bias: Floats | None, cap: float | None) -> RowsProgram:
    """Logits of rows 64 wide, as a model's last product makes them."""
    ops = NativeOps(weights)
    matrix = ops.matrix(RawTensor("w", "F32", values.shape, values.view(np.uint8).reshape(-1)))

    def body(o: Ops, x: Floats) -> Floats:
        logits = o.linear(x, matrix, bias)
        return logits if cap is None else o.soft_cap(logits, cap)

    return RowsProgram(body, 64)


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "q4"])
@pytest.mark.parametrize("outputs", [5, 384, 1000])
@pytest.mark.parametrize("cap", [None, 0.5])
def test_argmax_of_a_program_is_that_of_its_rows(
    weights: str, outputs: int, cap: float | None, rng: np.random.Generator
) -> None:
    """A product's outputs are looked at 384 at a time; equals lie in different ones, the cap makes more."""
    values = rng.standard_normal((outputs, 64)).astype(np.float32)
    for twin in range(outputs // 2, outputs):
        values[twin] = values[twin - outputs // 2]
    bias = np.tile(rng.standard_normal(outputs // 2 + 1).astype(np.float32), 2)[:outputs]
    bias[outputs // 2 :] = bias[: outputs - outputs // 2]
    before = _native.num_threads()
    try:
        for its_bias in (None, bias):
            program = head(weights, values, its_bias, cap)
            for rows, threads in ((1, 1), (1, 2), (5, 3), (33, 2), (70, 3)):
                _native.set_num_threads(threads)
                x = rng.standard_normal((rows, 64)).astype(np.float32)
                x[0] = values[1]
                logits = program(x)
                if outputs > 5:
                    assert (logits == logits.max(axis=1, keepdims=True)).sum() > rows, "no equals"
                np.testing.assert_array_equal(program.argmax(x), logits.argmax(axis=1))
    finally:
        _native.set_num_threads(before)


def test_argmax_of_a_program_where_some_outputs_are_no_numbers() -> None:
    values, x = np.ones((1000, 64), np.float32), np.ones((4, 64), np.float32)
    x[1, 3], x[2, 5] = np.nan, np.inf
    for first, last, bad, expected in (
        (0, 0, 0.0, 0),
        (0, 999, -np.inf, 999),  # two of three pieces hold nothing but -inf
        (0, 1000, -np.inf, -1),
        (400, 401, np.nan, -1),
        (999, 1000, np.inf, -1),
        (3, 1000, np.nan, -1),
    ):
        bias = np.zeros(1000, np.float32)
        bias[first:last] = bad
        program = head("f32", values, bias, None)
        expected_of_logits = np.empty(4, np.int32)
        _native.argmax(program(x).copy(), expected_of_logits)
        assert program.argmax(x).tolist() == expected_of_logits.tolist() == [expected, -1, -1, expected]


def test_argmax_is_refused_where_it_does_not_fit(step: StepProgram) -> None:
    with pytest.raises(ValueError, match="takes no rows"):
        step._program.run_rows_argmax(np.ones((1, 64), np.float32), np.empty(1, np.int32))
    program = head("f32", np.ones((20, 64), np.float32), None, None)._program
    with pytest.raises(ValueError, match="out has size 2"):
        program.run_rows_argmax(np.ones((3, 64), np.float32), np.empty(2, np.int32))
