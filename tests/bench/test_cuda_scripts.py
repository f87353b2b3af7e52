"""The probes for a GPU machine run here in Triton's interpreter, tiny, so that a typo is not found there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "bench" / "cuda"
NAMES = (
    "build",
    "kernels_on_device",
    "bits",
    "exactness",
    "attention",
    "products",
    "steps",
    "exact_cost",
    "transfers",
    "endurance",
)
# Of each script: the lines that it must print, and what those must tell.
KEYS = {
    "kernels_on_device": {
        "kernel": {"kernel", "case", "dtype", "ok", "error_of_largest", "allowed"},
        "summary": {"cases", "bad"},
    },
    "bits": {
        "product alone": {"case", "equal", "differ"},
        "product tiling": {"case", "equal", "rows"},
        "product crowd": {"case", "equal", "by"},
        "matmul": {"case", "equal", "of"},
        "logits": {"equal"},
        "argmax": {"equal"},
        "norm": {"equal"},
        "product gated": {"equal"},
        "attention split": {"equal"},
        "attention again": {"times", "differ"},
        "attention alone": {"equal"},
        "attention prefill": {"equal"},
        "summary": {"comparisons", "unequal", "first"},
    },
    "attention": {
        "copy rate": {"gb_per_s"},
        "decoding": {"kv", "batch", "way", "kv_gb_per_s", "of_copy_rate"},
        "prefill": {"tokens", "by", "tflop_per_s", "ratio_to_torch"},
    },
    "products": {"product": {"product", "rows", "gb_per_s", "of_copy_rate", "speed_over_cublas", "tiles"}},
    "exact_cost": {
        "run": {"mode", "in_flight", "decode_tokens_per_s"},
        "cost": {"against", "in_flight", "cost_of_exactness"},
    },
    "transfers": {
        "copies": {"way", "gb_per_s", "us_per_block"},
        "session": {"suspend_s", "resume_s", "gone_on"},
        "preemption": {"way", "seconds", "preemptions", "tokens_recomputed"},
    },
    "endurance": {
        "interval": {"output_tokens_per_s", "host_mb", "device_mb", "finishes"},
        "summary": {"is_flat", "ratio", "host_growth_mb"},
    },
    "exactness": {
        "exactness": {"circumstance", "equal", "first_difference", "preemptions", "cached_tokens"},
        "summary": {"differences"},
    },
    "steps": {
        "engine": {"in_flight", "output_tokens_per_s", "of_floor"},
        "sampled": {"at_once", "kind", "output_tokens_per_s"},
        "gap": {"steps", "idle_us_per_step"},
        "kernels": {"steps", "us_per_step"},
        "replay": {"batch", "step_ms", "floor_ms", "of_floor"},
        "transformers": {"at_once"},
    },
}
pytestmark = pytest.mark.full


def started(*command: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, which knows nothing of this one's Triton."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=variables, timeout=240
    )


def lines_of(*command: str) -> list[dict[str, object]]:
    """What it prints; it must succeed."""
    made = started(*command)
    assert made.returncode == 0, made.stderr[-3000:] + made.stdout[-1000:]
    return [json.loads(line) for line in made.stdout.splitlines()]


@pytest.mark.parametrize("name", KEYS)
def test_a_tiny_run_shows_what_is_promised(name: str) -> None:
    lines = lines_of(str(SCRIPTS / f"{name}.py"), "--device", "cpu", "--tiny")
    assert lines[0]["what"] == "machine"
    assert {line["probe"] for line in lines} == {name}
    for what, keys in KEYS[name].items():
        told = [line for line in lines if line["what"] == what]
        assert told, f"no line of {what!r}"
        for line in told:
            assert "error" not in line, line
            assert keys <= line.keys(), line
    for line in lines:
        assert line["what"] != "skipped"
        if line["what"] in ("kernel", "exactness", "norm", "attention split", "attention alone"):
            assert line.get("ok", line.get("equal")) is True, line


def test_the_build_shows_what_is_there() -> None:
    lines = lines_of(str(SCRIPTS / "build.py"), "--device", "cpu", "--tiny", "--no-build", "--no-kernels")
    assert {"tool", "imports", "summary"} <= {line["what"] for line in lines}
    groups = {line["group"]: line for line in lines if line["what"] == "imports"}
    assert set(groups) == {"kernels", "engine", "web", "others"}
    assert groups["kernels"]["missing"] == {}


def test_without_a_device_each_says_so_in_one_line() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    code = f"""
import runpy, sys
sys.path.insert(0, {str(SCRIPTS)!r})
for name in {NAMES!r}:
    sys.argv = [name]
    try:
        runpy.run_path({str(SCRIPTS)!r} + "/" + name + ".py", run_name="__main__")
    except SystemExit as ended:
        print(name, ended.code, flush=True)
"""
    made = started("-c", code)
    assert made.returncode == 0, made.stderr[-3000:]
    lines = made.stdout.splitlines()
    assert len(lines) == len(NAMES), made.stdout
    for name, line in zip(NAMES, lines, strict=True):
        assert line.startswith(f"{name} {name}: no CUDA device: "), line
        assert line.endswith("--device cpu --tiny")
    alone = started(str(SCRIPTS / "bits.py"))
    assert (alone.returncode, alone.stdout) == (1, "")
    assert alone.stderr.strip() == lines[2].removeprefix("bits ")
