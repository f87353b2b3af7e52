"""`octavo bench kernels --device`: its cases run here in the interpreter, at sizes that mean nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.device.over_torch import CPU

from octavo.device.kernel_times import DeviceSizes, measure_kernels

pytestmark = pytest.mark.full

SMALL = DeviceSizes(32, 48, 4, 2, 16, cold_bytes=1 << 14, sequences=2, rows=(1, 17))


def test_every_case_runs_and_the_copy_rate_comes_first() -> None:
    measured = list(measure_kernels(CPU, torch.float32, SMALL))
    assert measured[0].kernel == "copy"
    assert measured[0].share == 1.0
    kernels = [one.kernel for one in measured[1:]]
    both = ["attention, walking", "attention, split"]
    assert kernels == ["product"] * 4 + ["norm"] + both * 2
    assert all(one.seconds > 0 and one.gigabytes_per_s > 0 for one in measured)


def test_without_a_gpu_the_command_says_so() -> None:
    code = "from octavo.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "kernels", "--device", "cuda"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "device is cuda, which cannot be used: " in run.stderr
    assert "Traceback" not in run.stderr
