"""Promises of the native functions that are not ops: strings, noise, vocabulary reductions, refusals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.probe import probe


def _strings(*texts: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<Q", len(text)) + text for text in texts), np.uint8)


def test_strings_are_read_with_the_offset_behind_them() -> None:
    data = np.concatenate([np.zeros(3, np.uint8), _strings(b"a", b"", "é".encode()), np.zeros(5, np.uint8)])
    assert _native.read_string_array(data, 3, 3) == ([b"a", b"", "é".encode()], data.size - 5)
    assert _native.read_string_array(data, data.size, 0) == ([], data.size)


@pytest.mark.parametrize(
    "data, offset, count",
    [
        (_strings(b"abc"), 0, 2),  # one string too many
        (_strings(b"abc"), 0, 2**62),  # absurd
        (_strings(b"abc"), 0, -1),
        (_strings(b"abc"), -1, 1),
        (_strings(b"abc"), 99, 0),
        (_strings(b"abc")[:-1], 0, 1),  # cut
        (np.full(16, 255, np.uint8), 0, 1),  # a length of 2**64 - 1
        (np.full(16, 255, np.uint8), 16, 1),
    ],
)
def test_a_string_array_that_overruns_is_refused(data: np.ndarray, offset: int, count: int) -> None:
    with pytest.raises(ValueError):
        _native.read_string_array(data, offset, count)


@pytest.mark.parametrize(
    "counter, key, words",
    [  # the known answers of the paper's own implementation (Random123, kat_vectors)
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: tuple, key: tuple, words: tuple) -> None:
    assert tuple(_native.philox(counter, key)) == words


def test_noise_follows_its_formula_and_its_counter() -> None:
    seed, choice, position, size = 0x0123456789ABCDEF, 3, 7, 131
    out = np.empty(size, np.float32)
    _native.gumbel(seed, choice, position, out)
    words = [
        _native.philox((t // 4, position, choice, 0), (seed & 0xFFFFFFFF, seed >> 32))[t % 4]
        for t in range(size)
    ]
    u = ((np.array(words, np.uint64) >> 8).astype(np.float64) + 0.5) * 2.0**-24
    np.testing.assert_allclose(out, -np.log(-np.log(u)), rtol=1e-7)


def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    whole = np.empty(20_000, np.float32)
    _native.gumbel(1, 0, 0, whole)
    assert np.isfinite(whole).all()
    assert abs(float(whole.mean()) - 0.5772) < 0.03
    for size in (1, 63, 64, 65, 8191, 8193):
        part = np.empty(size, np.float32)
        _native.gumbel(1, 0, 0, part)
        np.testing.assert_array_equal(part, whole[:size])


def test_log_sum_exp_is_exact_and_row_independent(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((7, 1003)) * 20).astype(np.float32)
    x[3, 5:900] = -np.inf
    out = np.empty(7, np.float32)
    _native.log_sum_exp(x, out)
    wide = x.astype(np.float64)
    top = wide.max(axis=1)
    expected = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    np.testing.assert_allclose(out, expected, rtol=2e-7)
    for row in range(7):
        alone = np.empty(1, np.float32)
        _native.log_sum_exp(x[row : row + 1].copy(), alone)
        assert alone[0] == out[row]


def test_log_sum_exp_shows_a_poisoned_row() -> None:
    x = np.zeros((3, 40), np.float32)
    x[0, 17], x[1, 3] = np.nan, np.inf
    out = np.empty(3, np.float32)
    _native.log_sum_exp(x, out)
    assert np.isnan(out[:2]).all()
    assert out[2] == np.float32(np.log(40))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 48, 100, 1024, 1040, 5000])
def test_argmax_takes_the_lowest_of_equals(size: int, rng: np.random.Generator) -> None:
    x = rng.integers(-3, 4, (50, size)).astype(np.float32)
    x[0, : size - 1], x[1, :] = -np.inf, -1.0
    out = np.empty(50, np.int32)
    _native.argmax(x, out)
    np.testing.assert_array_equal(out, x.argmax(axis=1))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 48, 1000, 2100])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_argmax_of_a_row_that_holds_no_numbers(size: int, bad: float, rng: np.random.Generator) -> None:
    x = rng.standard_normal((size + 2, size), np.float32)
    x[np.arange(size), np.arange(size)] = bad  # anywhere: among whole vectors, and behind them
    x[size] = -np.inf
    x[size + 1, 1:] = -np.inf
    out = np.empty(size + 2, np.int32)
    _native.argmax(x, out)
    assert out.tolist() == [-1] * (size + 1) + [0]


def test_blocks_are_copied_in_order() -> None:
    pool = np.arange(4 * 8, dtype=np.uint8).reshape(4, 8)
    expected = pool.copy()
    _native.copy_blocks(pool, np.array([0, 1, 3], np.int32), np.array([1, 2, 3], np.int32))
    expected[1] = expected[0]
    expected[2] = expected[1]  # what the first copy put there
    np.testing.assert_array_equal(pool, expected)


@pytest.mark.parametrize("source, target", [(4, 0), (0, 4), (-1, 0), (0, -1)])
def test_a_block_that_does_not_exist_is_refused(source: int, target: int) -> None:
    pool = np.zeros((4, 8), np.uint8)
    with pytest.raises(IndexError):
        _native.copy_blocks(pool, np.array([source], np.int32), np.array([target], np.int32))


def test_wrong_arrays_are_refused() -> None:
    x, panels, out = (
        np.zeros((2, 8), np.float32),
        np.zeros((1, 8, 16), np.float32),
        np.zeros((2, 5), np.float32),
    )
    _native.linear(x, panels, None, out)
    with pytest.raises(ValueError):
        _native.linear(x, np.zeros((2, 8, 16), np.float32), None, out)
    with pytest.raises(ValueError):
        _native.linear(x, panels, np.zeros(4, np.float32), out)
    with pytest.raises(ValueError):
        _native.linear(x, panels, None, np.zeros((3, 5), np.float32))
    with pytest.raises(TypeError):
        _native.linear(x.astype(np.float64), panels, None, out)
    with pytest.raises(TypeError):
        _native.linear(np.zeros((8, 2), np.float32).T, panels, None, out)
    with pytest.raises(IndexError):
        _native.embed(panels, 5, np.array([5], np.int32), np.zeros((1, 8), np.float32))
    read_only = np.zeros(4, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        _native.gumbel(0, 0, 0, read_only)


@pytest.mark.parametrize("count", [0, -1, 257])
def test_an_absurd_number_of_threads_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="num_threads"):
        _native.set_num_threads(count)


def test_the_machine_describes_itself() -> None:
    machine = probe()
    assert machine.usable[0] == "portable"
    assert machine.chosen in machine.usable
    assert machine.cores >= 1
    assert machine.memory_total >= machine.memory_available > 0


@pytest.mark.parametrize("isa", ["sse9", "AVX2"])
def test_an_unknown_instruction_set_is_refused(isa: str) -> None:
    code = "import octavo._native as n; n.simd_probe()"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "OCTAVO_ISA": isa}, capture_output=True, text=True
    )
    assert run.returncode != 0
    assert f"OCTAVO_ISA is '{isa}'; this machine can run: portable" in run.stderr
