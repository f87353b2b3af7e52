"""A program against the Python API is checked as strictly as Octavo itself, and its mistakes are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "sample_program.py"
WRONG = (
    "from octavo import LLM, SamplingParams",
    'llm = LLM("m", max_model_len="long")',
    "LLM(max_modellen=5)",
    'SamplingParams(max_tokens="many")',
    "llm.generate(5)",
    'llm.chat([{"role": "user", "content": "x"}])[0].outputs[0].texts',
)


def test_a_strict_type_checker_passes_a_program_and_finds_every_mistake_of_another(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(WRONG) + "\n")
    # Silent, as of an installed package: what is in Octavo itself is checked elsewhere.
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(PROGRAM), str(wrong)],
        capture_output=True,
        text=True,
        timeout=280,
        env={"MYPYPATH": str(ROOT / "src")},
        cwd=tmp_path,
    )
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if "wrong.py" not in line] == [], run.stderr
    found = {int(line.split("wrong.py:")[1].split(":")[0]) for line in errors}
    assert found == set(range(2, len(WRONG) + 1)), run.stdout + run.stderr
