"""The Python blocks of README and quickstart, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.real_model]

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    if "from octavo import" in block
]


@pytest.mark.parametrize("page, block", BLOCKS, ids=[page for page, _ in BLOCKS])
def test_what_a_page_says_to_write_runs_and_says_something(page: str, block: str) -> None:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", block]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip()


def test_both_pages_have_a_program() -> None:
    assert {page for page, _ in BLOCKS} == set(PAGES)
