"""Promises of the thread team: any number of callers, resizing in between, forks; the bits never change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np

from octavo import _native
from octavo.kernels.contract import RawTensor
from octavo.kernels.native_ops import NativeOps


def test_concurrent_callers_and_resizing_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    ops = NativeOps()
    weight = rng.standard_normal((320, 64)).astype(np.float32)
    matrix = ops.matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
    x = rng.standard_normal((24, 64)).astype(np.float32)
    expected = ops.linear(x, matrix)
    wrong: list[int] = []

    def call(caller: int) -> None:
        for _ in range(300):
            if not np.array_equal(ops.linear(x, matrix), expected):
                wrong.append(caller)

    before = _native.num_threads()
    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for count in (1, 3, 2, 4, 2):
        _native.set_num_threads(count)
        assert _native.num_threads() == count
    for caller in callers:
        caller.join()
    _native.set_num_threads(before)
    assert wrong == []


def test_a_forked_process_computes_without_the_team() -> None:
    program = """
import os, numpy as np
from octavo import _native
_native.set_num_threads(3)
x, out = np.ones((64, 4096), np.float32), np.empty(64, np.float32)
_native.log_sum_exp(x, out)
child = os.fork()
if child == 0:
    again = np.empty(64, np.float32)
    _native.log_sum_exp(x, again)
    _native.set_num_threads(2)
    os._exit(0 if np.array_equal(out, again) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run = subprocess.run([sys.executable, "-c", program], env=dict(os.environ), timeout=60, check=False)
    assert run.returncode == 0
