"""The kernel benchmarks call what they name, over data that are there, and set it against true limits."""

import json

import numpy as np
import pytest
from tests.blocks import QUANTISED

from octavo import _native
from octavo.bench import kernels
from octavo.bench.kernels import (
    BLOCK_SIZE,
    SHAPES,
    Case,
    PreparedCase,
    Shape,
    all_cases,
    attention_cases,
    batch_of,
    filled_pool,
    linear_cases,
    row_cases,
    run_case,
    run_paging,
    vocabulary_cases,
)
from octavo.bench.limits import Limits
from octavo.cli import bench_kernels
from octavo.errors import ConfigError
from octavo.kernels.contract import AttentionSpec
from octavo.kernels.native_ops import NativeOps

SMALL = Shape("small", 64, 96, 4, 2, 16, 128)
LIMITS = Limits(1e9, 1e9, 1e10, 2e10, 4e10)


@pytest.fixture
def no_copies(monkeypatch):
    """One copy of everything: what is measured is tested elsewhere than how fast."""
    monkeypatch.setattr(kernels, "COLD_BYTES", 1)
    monkeypatch.setattr(kernels, "_NUM_TOKENS", 32)


def test_every_kernel_runs_at_a_small_size(no_copies):
    names = set()
    for case in (*linear_cases(SMALL), *row_cases(SMALL), *vocabulary_cases(SMALL)):
        measured = run_case(case, LIMITS, 0.0)
        assert measured.seconds > 0
        assert measured.gigabytes_per_s > 0
        assert (measured.gigaoperations_per_s > 0) == (case.operations > 0)
        names.add(measured.kernel)
    assert {"linear F32", "linear Q4_1", "rms norm", "rope", "argmax", "gumbel noise"} <= names


def test_every_kind_has_cases():
    kernels_named = {case.kernel for shape in SHAPES for case in linear_cases(shape)}
    assert {f"linear {kind}" for kind in ("F32", "F16", "BF16", *QUANTISED)} == kernels_named


def test_every_kind_runs_at_a_small_size(no_copies):
    wide = Shape("wide", 256, 256, 4, 2, 16, 48)
    for case in linear_cases(wide):
        out = case.prepare().call()
        assert np.isfinite(np.asarray(out)).all(), case.kernel


def test_every_attention_case_runs(no_copies):
    cases = [case for case in attention_cases(SMALL) if not case.size.endswith(("7168", "6656"))]
    assert {case.kernel.rpartition(" ")[0] for case in cases} == {
        "attention decode",
        "attention prefill",
        "store",
    }
    for case in cases:
        out = case.prepare().call()
        assert out is None or np.isfinite(np.asarray(out)).all()


def test_cases_cover_both_models_and_are_named_apart():
    cases = [(case.kernel, case.size) for case in all_cases()]
    assert len(cases) == len(set(cases)) > 100


def test_a_share_is_of_the_limit_that_binds():
    assert LIMITS.shortest_s(2e9, 1e10, "f32") == 2.0
    assert LIMITS.binds(2e9, 1e10, "f32") == "memory"
    assert LIMITS.shortest_s(1e9, 8e10, "int8") == 2.0
    assert LIMITS.binds(1e9, 8e10, "int8") == "int8"
    slow = Case("a", "b", 0, "f32", lambda: PreparedCase(lambda: sum(range(10_000)), 1e3))
    measured = run_case(slow, LIMITS, 0.0)
    assert measured.share == pytest.approx(1e-6 / measured.seconds)


def test_decode_reads_what_a_sequence_wrote():
    ops = NativeOps()
    pool = filled_pool(ops, SMALL, "f32", 1, 8)
    batch = batch_of(2, 1, 4 * BLOCK_SIZE, np.arange(8))
    assert batch.starts.tolist() == [63, 63]
    assert batch.offsets.tolist() == [0, 1, 2]
    assert batch.tables.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    q = np.ones((2, 64), np.float32)
    both = ops.attend(pool, 0, q, batch, AttentionSpec(0.25))
    assert np.array_equal(both[0], both[1])  # all blocks are filled alike
    assert np.isfinite(both).all()


def test_paging_is_measured_in_pairs(monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "duration", lambda call: calls.append(call.args[3].tables) or 1e-3)
    found = run_paging("it", SMALL, 2, 1, 64, 0.0)
    assert found.ratio == 1.0
    assert found.pairs * 2 == len(calls)
    in_order = [np.array_equal(np.sort(t.reshape(-1)), t.reshape(-1)) for t in calls]
    assert in_order[:4] == [False, True, True, False]  # the order alternates


def test_limits_count_what_they_do():
    threads = _native.num_threads()
    try:
        _native.set_num_threads(1)
        peaks = _native.peak_multiply_add, _native.peak_pairs, _native.peak_dots
        one = [peak(1000) for peak in peaks]
        _native.set_num_threads(2)
        assert [peak(1000) for peak in peaks] == [2 * count for count in one]
        assert _native.peak_multiply_add(2000) == 4 * one[0]
    finally:
        _native.set_num_threads(threads)
    if _native.simd_probe()["chosen"] == "avx512_amx":
        assert one[1] == 1000 * 4 * 16 * 16 * 32 * 2  # four products of matrix registers
    else:
        assert one[1] == 2 * one[0]  # two numbers where there was a float
    assert one[2] == 2 * one[1]


@pytest.mark.parametrize("peak", [_native.peak_multiply_add, _native.peak_pairs])
def test_doing_more_takes_longer(peak):
    # A loop that the compiler had folded would take no time, and the limit would be a fantasy.
    few, many = (
        min(kernels.duration(lambda r=rounds: peak(r)) for _ in range(3)) for rounds in (50_000, 1_000_000)
    )
    assert many > 5 * few


def test_copies_are_exact_and_wrong_sizes_are_refused():
    source = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
    target = np.zeros_like(source)
    _native.copy_bytes(source, target)
    assert np.array_equal(source, target)
    _native.read_bytes(source)
    with pytest.raises(ValueError, match="512"):
        _native.read_bytes(source[:100])
    with pytest.raises(ValueError, match="512"):
        _native.copy_bytes(source[:100], target[:100])
    with pytest.raises(ValueError, match="target"):
        _native.copy_bytes(source, target[:512])
    with pytest.raises(ValueError, match="overlap"):
        _native.copy_bytes(target[:1024], target[512:1536])
    with pytest.raises(ValueError, match="rounds"):
        _native.peak_dots(0)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_shows_limits_and_every_kernel(monkeypatch, capsys, as_json):
    cases = [Case("norm", "10 x 10", 0, "f32", lambda: PreparedCase(lambda: None, 100.0))]
    monkeypatch.setattr(kernels, "all_cases", lambda: iter(cases))
    monkeypatch.setattr(bench_kernels, "measure_limits", lambda: LIMITS)
    bench_kernels.run("", 0.0, None, as_json=as_json)
    told = capsys.readouterr().out
    if as_json:
        limits, line = map(json.loads, told.splitlines())
        assert limits["limits"]["read_bytes_per_s"] == 1e9
        assert line["kernel"] == "norm"
    else:
        assert "10 GFLOP/s" in told
        assert "norm" in told
    with pytest.raises(ConfigError, match="--only"):
        bench_kernels.run("nothing", 0.0, None, as_json=as_json)
